// The logits of pairs: a matrix with a row for each member of one side and a column for each of the other. A row's own
// column is its partner's; all others are negatives. Each function takes some rows of a vector of columns, so that what
// it knows of the columns stays in registers. H200, 32,768 pairs in bfloat16: ColumnSums 0.63 ms, PairGradients 1.21,
// PairLogistic 1.86; to read the logits takes about 0.45, to read and write them 0.95.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/arith.h"
#include "core/class_block.h"
#include "core/exp_log.h"

namespace cudaloss {

// Rows that begin at 16 bytes and lie in memory to the end of their last vector.
struct PairLogits {
  void* data;
  int64_t rows, columns, stride;
  int64_t first;  // the first row's own column; the next row's is the next
};

template <class E>
struct PairTiles {
  using T = std::conditional_t<std::is_same_v<E, double>, double, float>;
  static constexpr int n = 16 / sizeof(E), kElements = 16 * n;  // at least
  static constexpr bool kIsHalf = sizeof(E) == 2;
  struct alignas(16) Vector {
    E element[n];
  };

  PairLogits logits;
  int64_t slice_rows;

  CUDALOSS_INLINE int64_t vectors() const { return (logits.columns + n - 1) / n; }
  CUDALOSS_INLINE int64_t slices() const { return (logits.rows + slice_rows - 1) / slice_rows; }
  CUDALOSS_INLINE int64_t tiles() const { return slices() * vectors(); }
  // Neighbours read side by side.
  CUDALOSS_INLINE int64_t column_of(int64_t index) const { return index % vectors() * n; }
  CUDALOSS_INLINE int64_t slice_of(int64_t index) const { return index / vectors(); }

  // Calls visit(row, vector) for each row of a tile, kLoads vectors in flight.
  template <class Visit>
  CUDALOSS_INLINE void each_row(int64_t index, const Visit& visit) const {
    constexpr int kLoads = 4;
    const int64_t begin = slice_of(index) * slice_rows;
    const int64_t rows = logits.rows - begin < slice_rows ? logits.rows - begin : slice_rows;
    Vector* const data =
        reinterpret_cast<Vector*>(static_cast<E*>(logits.data) + begin * logits.stride + column_of(index));
    const int64_t stride = logits.stride / n;
    for (int64_t r = 0; r < rows; r += kLoads) {
      Vector x[kLoads];
      for (int u = 0; u < kLoads; ++u) {
        if (r + u < rows) x[u] = data[(r + u) * stride];
      }
      for (int u = 0; u < kLoads; ++u) {
        if (r + u >= rows) break;
        if (visit(begin + r + u, x[u])) data[(r + u) * stride] = x[u];
      }
    }
  }
  // The place of a row's own column in a vector of columns; it may be outside.
  CUDALOSS_INLINE int64_t own_of(int64_t row, int64_t column) const { return logits.first + row - column; }
  CUDALOSS_INLINE static T exp_of(T x) {
    if constexpr (kIsHalf) {
      return fast_exp(x);
    } else {
      return std::exp(x);
    }
  }
};

// The sums of a column over a slice of rows, without its own row: exp(z - base), and the base.
template <class E>
struct ColumnSums : PairTiles<E> {
  using Tiles = PairTiles<E>;
  using T = typename Tiles::T;
  static constexpr int n = Tiles::n;
  static constexpr int64_t kSliceRows = 64, kMostSlices = 128;
  T* sums;  // (slices, 2, columns)

  ColumnSums(const PairLogits& logits, T* sums)
      : Tiles{logits,
              logits.rows > kMostSlices * kSliceRows ? (logits.rows + kMostSlices - 1) / kMostSlices : kSliceRows},
        sums(sums) {}

  // A column's base is its first logit: later ones are not likely to leave the range of exp. If one does, the column
  // is read again, for its maximum.
  CUDALOSS_INLINE void operator()(int64_t index) const {
    constexpr T kInfinity = static_cast<T>(INFINITY);
    const int64_t column = this->column_of(index);
    T base[n], sum[n], max[n];
    for (int j = 0; j < n; ++j) base[j] = sum[j] = T(0), max[j] = -kInfinity;
    bool is_first = true;
    const auto add = [&](int64_t row, const auto& x) {
      const int64_t own = this->own_of(row, column);
      for (int j = 0; j < n; ++j) {
        const T z = j == own ? -kInfinity : widen<T>(x.element[j]);
        if (is_first) base[j] = z > -kInfinity && z < kInfinity ? z : T(0);
        max[j] = z > max[j] ? z : max[j];
        sum[j] += Tiles::exp_of(z - base[j]);
      }
      is_first = false;
      return false;
    };
    this->each_row(index, add);
    bool is_far = false;
    for (int j = 0; j < n && column + j < this->logits.columns; ++j) {
      is_far |= max[j] > -kInfinity && !(sum[j] > T(1e-30) && sum[j] < T(1e30));
    }
    if (is_far) {
      for (int j = 0; j < n; ++j) base[j] = max[j] > -kInfinity && max[j] < kInfinity ? max[j] : T(0), sum[j] = T(0);
      is_first = false;
      this->each_row(index, add);
    }
    T* const at = sums + this->slice_of(index) * 2 * this->logits.columns + column;
    for (int j = 0; j < n && column + j < this->logits.columns; ++j) {
      at[j] = base[j];
      at[this->logits.columns + j] = sum[j];
    }
  }
};

// The logarithm of a column's sum over all slices, -inf for an empty one.
template <class T>
struct ColumnLogs {
  const T* sums;  // (slices, 2, columns)
  int64_t slices, columns;
  double* logs;

  CUDALOSS_INLINE void operator()(int64_t column) const {
    const T* const at = sums + column;
    T max = -static_cast<T>(INFINITY);
    for (int64_t i = 0; i < slices; ++i) {
      const T base = at[2 * i * columns];
      if (at[(2 * i + 1) * columns] != T(0) && base > max) max = base;
    }
    double total = 0.0;
    for (int64_t i = 0; i < slices; ++i) {
      const T base = at[2 * i * columns], sum = at[(2 * i + 1) * columns];
      total += sum == T(0) ? 0.0 : static_cast<double>(std::exp(base - max)) * sum;
    }
    logs[column] = total == 0.0 ? kNone : max + log(total);
  }
};

// Replaces the logits by p + q: the probabilities of a row's classes and of a column's; for partners by p + q - 2.
template <class E>
struct PairGradients : PairTiles<E> {
  using Tiles = PairTiles<E>;
  using T = typename Tiles::T;
  static constexpr int n = Tiles::n;
  const double *row_logs, *column_logs;  // of the sums of exp over whole rows and columns
  const double* of_own;                  // p + q - 2 of a row's partner

  PairGradients(const PairLogits& logits, const double* row_logs, const double* column_logs, const double* of_own)
      : Tiles{logits, 16}, row_logs(row_logs), column_logs(column_logs), of_own(of_own) {}

  CUDALOSS_INLINE void operator()(int64_t index) const {
    const int64_t column = this->column_of(index);
    T high[n], low[n];
    for (int j = 0; j < n; ++j) {
      const double log = column + j < this->logits.columns ? column_logs[column + j] : 0.0;
      high[j] = static_cast<T>(log);
      low[j] = static_cast<T>(log - high[j]);
    }
    this->each_row(index, [&](int64_t row, auto& x) {
      const double log = row_logs[row];
      const T row_high = static_cast<T>(log), row_low = static_cast<T>(log - row_high);
      const int64_t own = this->own_of(row, column);
      for (int j = 0; j < n; ++j) {
        const T z = widen<T>(x.element[j]);
        const T p = Tiles::exp_of(Tiles::kIsHalf ? z - row_high : (z - row_high) - row_low);
        const T q = Tiles::exp_of(Tiles::kIsHalf ? z - high[j] : (z - high[j]) - low[j]);
        x.element[j] = narrow<E>(j == own ? static_cast<T>(of_own[row]) : p + q);
      }
      return true;
    });
  }
};

// The losses log(1 + exp(-y z)) of z = scale x + bias, with y = 1 for partners and -1 for all others. Replaces x by the
// gradient of z.
template <class E>
struct PairLogistic : PairTiles<E> {
  using Tiles = PairTiles<E>;
  using T = typename Tiles::T;
  static constexpr int n = Tiles::n;
  const double *scale, *bias;  // bias: null is 0
  double* sums;                // (3, tiles): of the losses, of z's gradient, and of x times it

  PairLogistic(const PairLogits& logits, const double* scale, const double* bias, double* sums)
      : Tiles{logits, 16}, scale(scale), bias(bias), sums(sums) {}

  CUDALOSS_INLINE void operator()(int64_t index) const {
    using Arithmetic = std::conditional_t<Tiles::kIsHalf, FastFloat, T>;
    const int64_t column = this->column_of(index), columns = this->logits.columns;
    const T by = static_cast<T>(*scale), more = bias ? static_cast<T>(*bias) : T(0);
    double value = 0.0, of_bias = 0.0, of_scale = 0.0;
    this->each_row(index, [&](int64_t row, auto& v) {
      const int64_t own = this->own_of(row, column);
      T values = T(0), gradients = T(0), products = T(0);
      for (int j = 0; j < n; ++j) {
        const T x = widen<T>(v.element[j]), z = fused(x, by, more);
        const bool is_partner = j == own, is_wrong = is_partner ? z < T(0) : z > T(0);
        const auto of = plain_logistic_as<Arithmetic>(absolute(z));
        const T size = is_wrong ? T(1) - of.sigmoid : of.sigmoid, g = z == z ? is_partner ? -size : size : z;
        v.element[j] = narrow<E>(g);
        if (column + j >= columns) continue;
        values += (is_wrong ? absolute(z) : T(0)) + of.log;
        gradients += g;
        products = fused(g, x, products);
      }
      value += values;
      of_bias += gradients;
      of_scale += products;
      return true;
    });
    const int64_t tiles = this->tiles();
    sums[index] = value;
    sums[tiles + index] = of_bias;
    sums[2 * tiles + index] = of_scale;
  }
};

// The sum of products of the elements of two tensors, in parts. T: of sums, so float for halves.
template <class E>
struct PartialDots {
  using T = std::conditional_t<std::is_same_v<E, double>, double, float>;
  static constexpr int n = 4, kVectors = 8, kElements = n * kVectors;
  template <class X>
  struct alignas(sizeof(X) * n) Vector {
    X element[n];
  };
  const T* a;
  const E* b;
  int64_t count;
  bool in_vectors;  // both begin at 32 bytes
  double* parts;    // (indices)

  CUDALOSS_INLINE static int64_t indices(int64_t count) { return (count + kElements - 1) / kElements; }
  // Neighbours read side by side.
  CUDALOSS_INLINE void operator()(int64_t index) const {
    const int64_t all = indices(count);
    double total = 0.0;
    for (int v = 0; v < kVectors; ++v) {
      const int64_t first = (v * all + index) * n;
      T sum = T(0);
      if (in_vectors && first + n <= count) {
        const auto x = *reinterpret_cast<const Vector<T>*>(a + first);
        const auto y = *reinterpret_cast<const Vector<E>*>(b + first);
        for (int j = 0; j < n; ++j) sum = fused(x.element[j], widen<T>(y.element[j]), sum);
      } else {
        for (int64_t i = first; i < count && i < first + n; ++i) sum = fused(a[i], widen<T>(b[i]), sum);
      }
      total += sum;
    }
    parts[index] = total;
  }
};

#define CUDALOSS_EACH_OF_PAIRS(define) \
  define(ColumnSums<float>);           \
  define(ColumnSums<double>);          \
  define(ColumnSums<Half>);            \
  define(ColumnSums<BFloat16>);        \
  define(ColumnLogs<float>);           \
  define(ColumnLogs<double>);          \
  define(PairGradients<float>);        \
  define(PairGradients<double>);       \
  define(PairGradients<Half>);         \
  define(PairGradients<BFloat16>);     \
  define(PairLogistic<float>);         \
  define(PairLogistic<double>);        \
  define(PairLogistic<Half>);          \
  define(PairLogistic<BFloat16>);      \
  define(PartialDots<float>);          \
  define(PartialDots<double>);         \
  define(PartialDots<Half>);           \
  define(PartialDots<BFloat16>)

}  // namespace cudaloss
