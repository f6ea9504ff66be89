#include "cpu/blocks.h"

#include <algorithm>

#include "core/arith.h"

namespace cudaloss::cpu {
namespace {

template <class F>
CUDALOSS_MULTIVERSION void keep_masked(const uint8_t* mask, int64_t count, Keep<F>* keep) {
  for (int64_t i = 0; i < count; ++i) keep[i] = -static_cast<Keep<F>>(mask[i] != 0);
}
template <class F>
CUDALOSS_MULTIVERSION void keep_numbers(const F* target, int64_t count, Keep<F>* keep) {
  for (int64_t i = 0; i < count; ++i) keep[i] = -static_cast<Keep<F>>(target[i] == target[i]);
}
template <class F>
CUDALOSS_MULTIVERSION void keep_numbers_too(const F* target, int64_t count, Keep<F>* keep) {
  for (int64_t i = 0; i < count; ++i) keep[i] &= -static_cast<Keep<F>>(target[i] == target[i]);
}

template <class T>
CUDALOSS_MULTIVERSION Sum sum_of_terms(const T* terms, int64_t count) {
  return sum_of<T>([terms](int64_t i) CUDALOSS_INLINE_LAMBDA { return terms[i]; }, count);
}

// Adds line[i * step] to sum i, for each i.
template <bool kCompensated, class T>
CUDALOSS_INLINE void add_line(const T* line, int64_t step, int64_t count, double* value, double* rest) {
  for (int64_t i = 0; i < count; ++i) {
    const double term = static_cast<double>(line[i * step]);
    if constexpr (kCompensated) {
      Sum sum = {value[i], rest[i]};
      sum.add(term);
      value[i] = sum.value;
      rest[i] = sum.rest;
    } else {
      value[i] += term;
    }
  }
}

// The same with many lines, each `between` after the last.
template <bool kCompensated, class T>
CUDALOSS_MULTIVERSION void add_lines(const T* terms, int64_t lines, int64_t between, int64_t step, int64_t count,
                                     double* value, double* rest) {
  for (int64_t line = 0; line < lines; ++line) {
    const T* at = terms + line * between;
    step == 1 ? add_line<kCompensated>(at, 1, count, value, rest)
              : add_line<kCompensated>(at, step, count, value, rest);
  }
}

template <class T>
CUDALOSS_INLINE double sum_of_row(const T* row, int64_t length) {
  constexpr int kSums = 4;  // at a time, so that none waits for its last addition
  Doubles part[kSums] = {}, terms;
  int64_t i = 0;
  for (; i + kSums * kDoubles <= length; i += kSums * kDoubles) {
    for (int k = 0; k < kSums; ++k) {
      load(row + i + k * kDoubles, terms);
      part[k] += terms;
    }
  }
  for (; i + kDoubles <= length; i += kDoubles) {
    load(row + i, terms);
    part[0] += terms;
  }
  double left = 0.0;
  for (; i < length; ++i) left += static_cast<double>(row[i]);
  const Doubles sum = (part[0] + part[1]) + (part[2] + part[3]);
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + left;
}

template <class T>
CUDALOSS_MULTIVERSION void add_rows(const T* terms, int64_t segments, int64_t length, double* value) {
  for (int64_t s = 0; s < segments; ++s) value[s] += sum_of_row(terms + s * length, length);
}

// `inverse` is the divisor's. If fp64 does not show the difference, a product is as good as a quotient.
template <bool kEach, bool kFloat64>
CUDALOSS_INLINE double quotient(const Sum& sum, double scale, double divisor, double inverse) {
  if constexpr (kFloat64) return sum.times(scale).over(divisor);
  const double total = sum.value + sum.rest;  // if the value is infinite, the rest is NaN
  const double known = select(total == total, total, sum.value) * scale;
  return kEach ? known / divisor : known * inverse;
}

template <bool kEach, bool kFloat64>
CUDALOSS_MULTIVERSION void divide(const double* value, const double* rest, int64_t segments, double scale,
                                  const Divisor* divisors, bool zero_if_nothing, double* out) {
  const double inverse = 1.0 / divisors[0].value;
  for (int64_t s = 0; s < segments; ++s) {
    const Divisor divisor = divisors[kEach ? s : 0];
    const double result = quotient<kEach, kFloat64>({value[s], rest[s]}, scale, divisor.value, inverse);
    out[s] = select(zero_if_nothing & (divisor.reciprocal == 0.0), value[s] * 0.0 + 0.0, result);
  }
}

}  // namespace

template <class F>
void make_keep(const uint8_t* mask, const F* target, int64_t count, Keep<F>* keep) {
  if (mask) keep_masked<F>(mask, count, keep);
  if (target) mask ? keep_numbers_too(target, count, keep) : keep_numbers(target, count, keep);
}

template <class F>
CUDALOSS_MULTIVERSION int64_t count_kept(const Keep<F>* keep, int64_t count) {
  Keep<F> total = 0;
  for (int64_t i = 0; i < count; ++i) total -= keep[i];
  return total;
}

CUDALOSS_MULTIVERSION int64_t count_nonzero(const uint8_t* bytes, int64_t count) {
  constexpr int kColumns = 64;
  static_assert(kBlock / kColumns < 256, "a column's count is one byte");
  uint8_t columns[kColumns] = {};
  int64_t i = 0;
  for (; i + kColumns <= count; i += kColumns) {
    for (int k = 0; k < kColumns; ++k) columns[k] = static_cast<uint8_t>(columns[k] + (bytes[i + k] != 0));
  }
  int total = 0;
  for (int k = 0; k < kColumns; ++k) total += columns[k];
  for (; i < count; ++i) total += bytes[i] != 0;
  return total;
}

template <class F, class T>
CUDALOSS_MULTIVERSION void select_out(const Keep<F>* keep, int64_t count, T* values) {
  for (int64_t i = 0; i < count; ++i) values[i] = kept(values[i], keep[i]);
}

template <class F, class T>
CUDALOSS_MULTIVERSION void convert(const F* values, int64_t count, T* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(values[i]);
}

template <class F, class T>
CUDALOSS_MULTIVERSION void multiply(const F* factors, int64_t count, T* product) {
  for (int64_t i = 0; i < count; ++i) product[i] *= static_cast<T>(factors[i]);
}

template <class T>
CUDALOSS_MULTIVERSION void multiply_segments(const double* factors, const Grid& grid, T* product) {
  if (grid.step == 1) {
    for (int64_t s = 0; s < grid.segments; ++s) {
      const T factor = static_cast<T>(factors[s]);
      T* line = product + s * grid.segment_step;
      for (int64_t e = 0; e < grid.length; ++e) line[e] *= factor;
    }
  } else {
    for (int64_t e = 0; e < grid.length; ++e) {
      T* line = product + e * grid.step;
      for (int64_t s = 0; s < grid.segments; ++s) line[s] *= static_cast<T>(factors[s]);
    }
  }
}

template <class T, class F>
CUDALOSS_MULTIVERSION void scaled(const T* values, T scale, int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<F>(values[i] * scale);
}

template <class T>
void add_segment(T* terms, int64_t count, Sums& sums, int64_t first) {
  const int64_t end = (count + kTile - 1) / kTile * kTile;
  std::fill(terms + count, terms + end, T(0));  // whole tiles are the fastest
  sums.add(first, sum_of_terms(terms, end));
}

template <class T>
void add_segments(const T* terms, int64_t segments, int64_t length, bool compensated, Sums& sums, int64_t first) {
  constexpr int64_t kShortRow = 16;  // ends before its sum can be vectorised: the loop over rows is
  double *value = sums.value + first, *rest = sums.rest + first;
  if (compensated) return add_lines<true>(terms, length, 1, length, segments, value, rest);
  if (length < kShortRow) return add_lines<false>(terms, length, 1, length, segments, value, rest);
  add_rows(terms, segments, length, value);
}

template <class T>
void add_lanes(const T* terms, int64_t count, int64_t lanes, bool compensated, Sums& sums) {
  const int64_t lines = count / lanes, left = count % lanes;
  const auto add = compensated ? add_lines<true, T> : add_lines<false, T>;
  add(terms, lines, lanes, 1, lanes, sums.value, sums.rest);
  if (left > 0) add(terms + lines * lanes, 1, 0, 1, left, sums.value, sums.rest);
}

void finish(const Sums& sums, int64_t segments, const Quotient& q, double* out) {
  const auto run = q.each ? (q.float64 ? divide<true, true> : divide<true, false>)
                          : (q.float64 ? divide<false, true> : divide<false, false>);
  run(sums.value, sums.rest, segments, q.scale, q.divisors, q.zero_if_nothing, out);
}

#define CUDALOSS_INSTANTIATE_TYPE(F)                                               \
  template void make_keep<F>(const uint8_t*, const F*, int64_t, Keep<F>*);         \
  template int64_t count_kept<F>(const Keep<F>*, int64_t);                         \
  template void multiply_segments<F>(const double*, const Grid&, F*);              \
  template void add_segment<F>(F*, int64_t, Sums&, int64_t);                       \
  template void add_segments<F>(const F*, int64_t, int64_t, bool, Sums&, int64_t); \
  template void add_lanes<F>(const F*, int64_t, int64_t, bool, Sums&);
#define CUDALOSS_INSTANTIATE_PAIR(F, T)                        \
  template void select_out<F, T>(const Keep<F>*, int64_t, T*); \
  template void convert<F, T>(const F*, int64_t, T*);          \
  template void multiply<F, T>(const F*, int64_t, T*);         \
  template void scaled<T, F>(const T*, T, int64_t, F*);
CUDALOSS_INSTANTIATE_TYPE(float)
CUDALOSS_INSTANTIATE_TYPE(double)
CUDALOSS_INSTANTIATE_PAIR(float, float)
CUDALOSS_INSTANTIATE_PAIR(float, double)
CUDALOSS_INSTANTIATE_PAIR(double, double)
#undef CUDALOSS_INSTANTIATE_TYPE
#undef CUDALOSS_INSTANTIATE_PAIR

}  // namespace cudaloss::cpu
