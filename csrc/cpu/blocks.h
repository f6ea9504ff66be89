// The loops over one block that do not depend on the loss: selections, factors, sums of terms.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/pass.h"
#include "core/sum.h"
#include "cpu/convert.h"
#include "cpu/kernels.h"

namespace cudaloss::cpu {

// The running sums of several segments, in arrays, so that a loop over segments vectorises.
struct Sums {
  double value[kBlock], rest[kBlock];

  void clear(int64_t segments) {
    std::fill(value, value + segments, 0.0);
    std::fill(rest, rest + segments, 0.0);
  }
  Sum at(int64_t segment) const { return {value[segment], rest[segment]}; }
  void add(int64_t segment, const Sum& other) {
    Sum sum = at(segment);
    sum.add(other);
    value[segment] = sum.value;
    rest[segment] = sum.rest;
  }
};

// Where the elements of a block's segments are: element e of segment s at s * segment_step + e * step.
struct Grid {
  int64_t segments, segment_step;
  int64_t length, step;
};

// Selects by a mask and, if `target` is given, elements that are not NaN there. One of the two may be null.
template <class F>
void make_keep(const uint8_t* mask, const F* target, int64_t count, Keep<F>* keep);

template <class F>
int64_t count_kept(const Keep<F>* keep, int64_t count);

// The same for a mask.
int64_t count_nonzero(const uint8_t* mask, int64_t count);

template <class F, class T>
void select_out(const Keep<F>* keep, int64_t count, T* values);

// out = values
template <class F, class T>
void convert(const F* values, int64_t count, T* out);

// product *= factors
template <class F, class T>
void multiply(const F* factors, int64_t count, T* product);

// The same with one factor for each segment.
template <class T>
void multiply_segments(const double* factors, const Grid& grid, T* product);

// out = scale * values
template <class T, class F>
void scaled(const T* values, T scale, int64_t count, F* out);

// Three ways to add a block's terms to the sums from `first` on; compensated if fp64 data would show it. For fp32 data,
// 2^27 plain additions in fp64 lose less than half an ulp.
//
// For one segment. `terms` is as long as a block: anything behind the terms is overwritten.
template <class T>
void add_segment(T* terms, int64_t count, Sums& sums, int64_t first);
// For segments one after the other, each with `length` terms.
template <class T>
void add_segments(const T* terms, int64_t segments, int64_t length, bool compensated, Sums& sums, int64_t first);
// Term i to sum i % lanes.
template <class T>
void add_lanes(const T* terms, int64_t count, int64_t lanes, bool compensated, Sums& sums);

// From sums to results: scale * sum / divisor.
struct Quotient {
  double scale;
  const Divisor* divisors;
  bool each;             // a divisor for each segment, or one for all
  bool zero_if_nothing;  // if the divisor's reciprocal is 0, the sum is multiplied by it
  bool float64;          // the result is fp64 and rounded once; in any other dtype the difference does not show
};
void finish(const Sums& sums, int64_t segments, const Quotient& quotient, double* out);

}  // namespace cudaloss::cpu
