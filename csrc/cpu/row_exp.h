// The exponentials of rows and their sums.
#pragma once

#include "cpu/row_kernels.h"

namespace cudaloss::cpu {

// The reference of a row's exponentials: its maximum; or, if the maximum is not far from 0, the nearest multiple k ln2
// to it, given as the sum of `max` and `behind`. exp(x) 2^-k then needs no difference that would be rounded.
template <class F>
struct Reference {
  F magic, floor;
  double max, behind;
};
template <class F>
constexpr F kNear = sizeof(F) == sizeof(double) ? F(0x1p30) : F(0x1p14);
template <class F>
CUDALOSS_INLINE bool is_near(F max) {
  return (absolute(max) < kNear<F>) | (max == -F(INFINITY));
}
template <class F>
CUDALOSS_INLINE Reference<F> reference_of(F max) {
  using Parts = ExpParts<F>;
  using Wide = ExpParts<double>;
  constexpr F round = sizeof(F) == sizeof(double) ? F(0x1.8p52) : F(0x1.8p23);
  const bool is_none = max == -F(INFINITY);
  const F k = select(is_none, F(0), fused(max, F(Parts::log2_e), round) - round);
  const double wide = static_cast<double>(k), top = wide * Wide::ln2;
  const double behind = fused(wide, Wide::ln2_rest, fused(wide, Wide::ln2, -top));
  return {F(Parts::magic) - k, fused(k, F(Parts::ln2), -F(Parts::limit)), select(is_none, -DBL_MAX, top), behind};
}
// exp(x - reference) / small.
template <class F>
CUDALOSS_INLINE F exp_near(F x, F magic, F floor) {
  const ExpApart<F> apart = exp_apart(magic, select(x < floor, floor, x));
  const F near = F(1) + apart.r, lost = apart.r - (near - F(1));
  return fused(apart.power, fused(apart.r * apart.r, exp_tail(apart.r), lost), apart.power * near);
}
// Lines to prefetch while others are computed: those read next, and those where the gradients go. Nothing is read or
// written there yet.
struct Ahead {
  const char *read, *written;
  int64_t read_step, written_step;  // bytes between lines

  CUDALOSS_INLINE void fetch(int64_t line) const {
    __builtin_prefetch(read + line * read_step);
    __builtin_prefetch(written + line * written_step, 1);
  }
};

// tile = exp(tile - reference) / small, with maxima or references.
template <class F>
CUDALOSS_INLINE void exp_far_lines(F* tile, int64_t lines, const F* max, Ahead ahead, LaneSums& total) {
  F floor[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) floor[lane] = floor_below(max[lane]);
  for (int64_t i = 0; i < lines; ++i) {
    F e[kLanes];
    ahead.fetch(i);
    for (int lane = 0; lane < kLanes; ++lane) {
      e[lane] = exp_below_max(tile[i * kLanes + lane], max[lane], floor[lane]);
    }
    memcpy(tile + i * kLanes, e, sizeof e);
    total.add<kIsCompensated<F>>(e);
  }
}
template <class F>
CUDALOSS_INLINE void exp_near_lines(F* tile, int64_t lines, const F* magic, const F* floor, Ahead ahead,
                                    LaneSums& total) {
  for (int64_t i = 0; i < lines; ++i) {
    F e[kLanes];
    ahead.fetch(i);
    for (int lane = 0; lane < kLanes; ++lane) e[lane] = exp_near(tile[i * kLanes + lane], magic[lane], floor[lane]);
    memcpy(tile + i * kLanes, e, sizeof e);
    total.add<kIsCompensated<F>>(e);
  }
}

// A tile of kLanes rows, and their sums.
template <class F>
CUDALOSS_MULTIVERSION void lanes_exp(F* tile, int64_t lines, Ahead ahead, RowLanes<F>& rows) {
  LaneSums total = {};
  F max[kLanes], magic[kLanes], floor[kLanes];
  F largest[kLanes];
  double top[kLanes], behind[kLanes];
  int32_t far = 0;
  copy_lanes(rows.max, max);
  for (int lane = 0; lane < kLanes; ++lane) far |= !is_near(max[lane]);
  const bool are_near = far == 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    const Reference<F> of = reference_of(max[lane]);
    magic[lane] = of.magic;
    floor[lane] = of.floor;
    top[lane] = are_near ? of.max : bounded(static_cast<double>(max[lane]));
    behind[lane] = are_near ? of.behind : 0.0;
    largest[lane] = are_near ? exp_near(max[lane], of.magic, of.floor) : F(kLifted<F>);
  }
  are_near ? exp_near_lines(tile, lines, magic, floor, ahead, total) : exp_far_lines(tile, lines, max, ahead, total);
  copy_lanes(top, rows.reference);
  copy_lanes(behind, rows.behind);
  copy_lanes(largest, rows.largest);
  total.store(rows.sums, rows.rests);
}
// A tile of one row, in the same way.
template <class F>
CUDALOSS_MULTIVERSION void row_exp(F* tile, int64_t lines, Ahead ahead, int row, RowLanes<F>& rows) {
  LaneSums total = {};
  F max[kLanes], magic[kLanes], floor[kLanes];
  const F own = rows.max[row];
  const Reference<F> of = reference_of(own);
  for (int lane = 0; lane < kLanes; ++lane) {
    max[lane] = own;
    magic[lane] = of.magic;
    floor[lane] = of.floor;
  }
  const bool near = is_near(own);
  near ? exp_near_lines(tile, lines, magic, floor, ahead, total) : exp_far_lines(tile, lines, max, ahead, total);
  const Sum sum = total.total();
  rows.reference[row] = near ? of.max : bounded(static_cast<double>(own));
  rows.behind[row] = near ? of.behind : 0.0;
  rows.largest[row] = near ? exp_near(own, of.magic, of.floor) : F(kLifted<F>);
  rows.sums[row] = sum.value;
  rows.rests[row] = sum.rest;
}

}  // namespace cudaloss::cpu
