// A block of the classes of each row of logits: of a head's, or of one process's. What a loss must know of all classes
// is a few numbers for each row, and those of several blocks can be joined. So no loss needs all logits at once.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/arith.h"

namespace cudaloss {

constexpr double kNone = -static_cast<double>(INFINITY);  // the logarithm of an empty sum

struct ClassBlock {
  DType dtype;
  const void* logits;  // classes side by side
  int64_t rows, classes;
  int64_t inner_rows;  // how many rows lie row_stride apart; the next so many lie outer_stride further
  int64_t outer_stride, row_stride;
  int64_t first_class, all_classes;
  const int64_t* target;
  const uint8_t* counts;     // null: all rows do. The gradients of the others are 0, also beside a NaN
  const void* class_weight;  // of the block's classes, floats, or doubles beside float64 logits; null: 1
  double softcap;            // z = softcap * tanh(x / softcap) / temperature; 0: without the softcap
  double temperature;
  bool entropy, shares;
  void* sums;             // SumOfRow, floats, or doubles beside float64 logits
  const double* numbers;  // NumberOfRow, of all blocks; null: makes the sums
  const double* grads;    // of the numbers
  void* gradient;         // of the logits; can be the logits' own memory
  int64_t outer_gradient_stride, gradient_stride;

  bool bends() const { return softcap != 0.0 || temperature != 1.0; }
  template <class T>
  CUDALOSS_INLINE T weight_of(int64_t column) const {
    return class_weight ? static_cast<const T*>(class_weight)[column] : T(1);
  }
  template <class E>
  CUDALOSS_INLINE const E* logits_of(int64_t row) const {
    return static_cast<const E*>(logits) + row / inner_rows * outer_stride + row % inner_rows * row_stride;
  }
  template <class E>
  CUDALOSS_INLINE E* gradient_of(int64_t row) const {
    return static_cast<E*>(gradient) + row / inner_rows * outer_gradient_stride + row % inner_rows * gradient_stride;
  }
};

// The sums of a block's classes, all but the last two without the target's: each for all rows, one after another.
enum SumOfRow { kBase, kSum, kWeighted, kShareSum, kTargetZ, kRowSums };
template <class T>
struct SumsOfRow {
  T base;      // any number that keeps exp(z - base) in range
  T sum;       // of exp(z - base)
  T weighted;  // of exp(z - base) * (z - base); only if `entropy`
  T shares;    // of class_weight * z, with the target's; only if `shares`
};
template <class T>
CUDALOSS_INLINE void store_sums(const ClassBlock& block, int64_t row, SumsOfRow<T> sums, T of_target) {
  T* const at = static_cast<T*>(block.sums) + row;
  at[kBase * block.rows] = sums.base;
  at[kSum * block.rows] = sums.sum;
  at[kWeighted * block.rows] = sums.weighted;
  at[kShareSum * block.rows] = sums.shares;
  at[kTargetZ * block.rows] = of_target;
}

// What a loss must know of a row's z, in float64: each number for all rows, one after another.
enum NumberOfRow {
  kLogSum,  // log(sum of exp(z)) over the classes except the target's. Without it, because the loss of a confident row
            // is their quotient: added to exp(z) of the target, they could be rounded away
  kOwn,     // the target's z
  kMean,    // of z over the other classes, by their probabilities; 0 if it is not asked for
  kShares,  // the sum of class_weight * z over all classes; 0 if it is not asked for
  kRowNumbers
};

// Joins the sums of all blocks of a row. Rows that do not count have zeros, rows whose target is no class NaN.
template <class T>
struct JoinSums {
  const T* sums;  // (blocks, kRowSums, rows)
  int64_t blocks, rows, all_classes;
  const int64_t* target;
  const uint8_t* counts;
  bool entropy;
  double* numbers;

  CUDALOSS_INLINE void operator()(int64_t row) const {
    double log_sum = kNone, own = kNone, mean = 0.0, shares = 0.0;
    for (int64_t i = 0; i < blocks; ++i) {
      const T* const at = sums + i * kRowSums * rows + row;
      const double base = at[kBase * rows], sum = at[kSum * rows], of_target = at[kTargetZ * rows];
      own = of_target > own || of_target != of_target ? of_target : own;
      shares += at[kShareSum * rows];
      if (sum == 0.0) continue;
      const double of_block = base + log(sum), mean_of_block = base + at[kWeighted * rows] / sum;
      if (log_sum == kNone) {
        log_sum = of_block;
        mean = mean_of_block;
        continue;
      }
      const double max = of_block > log_sum ? of_block : log_sum;
      const double before = exp(log_sum - max), added = exp(of_block - max);
      mean = (before * mean + added * mean_of_block) / (before + added);
      log_sum = max + log(before + added);
    }
    if (own == -kNone) own = NAN;  // as in PyTorch: no difference to it is a number
    const bool is_counted = !counts || counts[row], is_class = target[row] >= 0 && target[row] < all_classes;
    const double other = is_counted ? static_cast<double>(NAN) : 0.0;
    const bool has_numbers = is_counted && is_class;
    double* const at = numbers + row;
    at[kLogSum * rows] = has_numbers ? log_sum : other;
    at[kOwn * rows] = has_numbers ? own : other;
    at[kMean * rows] = !entropy ? 0.0 : has_numbers ? mean : other;
    at[kShares * rows] = has_numbers ? shares : other;
  }
};

// How a row's gradients follow from its numbers' gradients: exp(z - log_sum) * (of_exp + of_mean * (1 + z - mean)) +
// of_shares * class_weight for a class, of_own + of_shares * class_weight for the target's.
struct RowSlopes {
  double log_sum, mean, of_exp, of_mean, of_shares, of_own;
};
CUDALOSS_INLINE RowSlopes slopes_of(const ClassBlock& block, int64_t row) {
  const double *const at = block.numbers + row, *const grad = block.grads + row;
  const int64_t rows = block.rows;
  const double log_sum = at[kLogSum * rows];
  const bool is_empty = log_sum == kNone;  // all classes except the target's are -inf
  return {is_empty ? 0.0 : log_sum,
          at[kMean * rows],
          is_empty ? 0.0 : grad[kLogSum * rows],
          block.entropy && !is_empty ? grad[kMean * rows] : 0.0,
          block.shares ? grad[kShares * rows] : 0.0,
          grad[kOwn * rows]};
}

// The log-probability of a row's target, and the entropy of its distribution.
struct RowDistribution {
  double others, own, mean;  // numbers

  CUDALOSS_INLINE double log_sum() const {
    return own >= others ? own + log1p(exp(others - own)) : others + log1p(exp(own - others));
  }
  CUDALOSS_INLINE double log_prob() const {
    return own >= others ? -log1p(exp(others - own)) : (own - others) - log1p(exp(own - others));
  }
};
template <class T>
struct TokenValues {
  const double* numbers;
  int64_t rows;
  T *log_prob, *entropy;  // entropy: null if it is not asked for

  CUDALOSS_INLINE void operator()(int64_t row) const {
    const RowDistribution of = {numbers[kLogSum * rows + row], numbers[kOwn * rows + row], numbers[kMean * rows + row]};
    log_prob[row] = static_cast<T>(of.log_prob());
    if (!entropy) return;
    const double log_sum = of.log_sum(), p_own = exp(of.own - log_sum), p_others = exp(of.others - log_sum);
    const double of_own = p_own == 0.0 ? 0.0 : p_own * (log_sum - of.own);
    entropy[row] = static_cast<T>((p_others == 0.0 ? 0.0 : p_others * (log_sum - of.mean)) + of_own);
  }
};
// The gradients of the numbers.
template <class T>
struct TokenGradients {
  const double* numbers;
  int64_t rows;
  const T *of_log_prob, *of_entropy;  // null: 0
  double* grads;

  CUDALOSS_INLINE void operator()(int64_t row) const {
    const RowDistribution of = {numbers[kLogSum * rows + row], numbers[kOwn * rows + row], numbers[kMean * rows + row]};
    const double log_sum = of.log_sum(), p_own = exp(of.own - log_sum), p_others = exp(of.others - log_sum);
    const double g = of_log_prob ? of_log_prob[row] : 0.0, h = of_entropy ? of_entropy[row] : 0.0;
    const double both = p_own * p_others;
    const double moved = both == 0.0 ? both : both * (of.own - of.mean);  // from the target to the others
    grads[kLogSum * rows + row] = h * (p_others + moved) - g * p_others;
    grads[kOwn * rows + row] = g * p_others - h * moved;
    grads[kMean * rows + row] = -h * p_others;
    grads[kShares * rows + row] = 0.0;
  }
};

// A gradient times a factor on the device, rounded once. It takes kElements at an index.
template <class From, class To>
struct ScaledGradient {
  static constexpr int kElements = 8;
  const From* from;
  const double* factor;
  To* to;
  int64_t count;
  bool in_vectors;  // both begin at 16 bytes

  CUDALOSS_INLINE void operator()(int64_t index) const {
    using T = std::conditional_t<std::is_same_v<From, double>, double, float>;
    const T by = static_cast<T>(*factor);
    const int64_t first = index * kElements;
    if (in_vectors && first + kElements <= count) {
      struct alignas(16) Some {
        From element[kElements];
      } some = *reinterpret_cast<const Some*>(from + first);
      struct alignas(16) Scaled {
        To element[kElements];
      } scaled;
      for (int i = 0; i < kElements; ++i) scaled.element[i] = narrow<To>(widen<T>(some.element[i]) * by);
      *reinterpret_cast<Scaled*>(to + first) = scaled;
      return;
    }
    for (int64_t i = first; i < count && i < first + kElements; ++i) to[i] = narrow<To>(widen<T>(from[i]) * by);
  }
  CUDALOSS_INLINE static int64_t indices(int64_t count) { return (count + kElements - 1) / kElements; }
};

// Both engines have `each(function, count)` for these.
#define CUDALOSS_EACH_FUNCTION(define)     \
  define(JoinSums<float>);                 \
  define(JoinSums<double>);                \
  define(TokenValues<float>);              \
  define(TokenValues<double>);             \
  define(TokenGradients<float>);           \
  define(TokenGradients<double>);          \
  define(ScaledGradient<float, float>);    \
  define(ScaledGradient<float, Half>);     \
  define(ScaledGradient<float, BFloat16>); \
  define(ScaledGradient<double, double>);  \
  define(ScaledGradient<Half, Half>);      \
  define(ScaledGradient<BFloat16, BFloat16>)

}  // namespace cudaloss
