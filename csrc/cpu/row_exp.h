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
// tile = exp(tile - reference) / small, by exp(x, lane).
template <class F, class Exp>
CUDALOSS_INLINE void exp_lines(F* tile, int64_t lines, Ahead ahead, LaneSums& total, const Exp& exp) {
  for (int64_t i = 0; i < lines; ++i) {
    F e[kLanes];
    ahead.fetch(i);
    for (int lane = 0; lane < kLanes; ++lane) e[lane] = exp(tile[i * kLanes + lane], lane);
    memcpy(tile + i * kLanes, e, sizeof e);
    total.add<kIsCompensated<F>>(e);
  }
}

// The same for a tile's rows, and their sums; kRows: kLanes of them, or the one that has all lanes, `row`.
template <int kRows, class F>
CUDALOSS_MULTIVERSION void rows_exp(F* tile, int64_t lines, Ahead ahead, int row, RowLanes<F>& rows) {
  LaneSums total = {};
  F of_rows[kRows], largest[kRows], row_magic[kRows], row_floor[kRows], max[kLanes], magic[kLanes], floor[kLanes];
  double top[kRows], behind[kRows];
  int32_t far = 0;
  memcpy(of_rows, rows.max + row, sizeof of_rows);
  for (int i = 0; i < kRows; ++i) far |= !is_near(of_rows[i]);
  const bool are_near = far == 0;
  for (int i = 0; i < kRows; ++i) {
    const Reference<F> of = reference_of(of_rows[i]);
    row_magic[i] = of.magic;
    row_floor[i] = are_near ? of.floor : floor_below(of_rows[i]);
    top[i] = are_near ? of.max : bounded(static_cast<double>(of_rows[i]));
    behind[i] = are_near ? of.behind : 0.0;
    largest[i] = are_near ? exp_near(of_rows[i], of.magic, of.floor) : F(kLifted<F>);
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    const int i = kRows == 1 ? 0 : lane;
    max[lane] = of_rows[i];
    magic[lane] = row_magic[i];
    floor[lane] = row_floor[i];
  }
  const auto near = [&](F x, int lane) CUDALOSS_INLINE_LAMBDA { return exp_near(x, magic[lane], floor[lane]); };
  const auto below = [&](F x, int lane) CUDALOSS_INLINE_LAMBDA { return exp_below_max(x, max[lane], floor[lane]); };
  are_near ? exp_lines(tile, lines, ahead, total, near) : exp_lines(tile, lines, ahead, total, below);
  memcpy(rows.reference + row, top, sizeof top);
  memcpy(rows.behind + row, behind, sizeof behind);
  memcpy(rows.largest + row, largest, sizeof largest);
  if constexpr (kRows == 1) {
    const Sum sum = total.total();
    rows.sums[row] = sum.value;
    rows.rests[row] = sum.rest;
  } else {
    total.store(rows.sums, rows.rests);
  }
}

}  // namespace cudaloss::cpu
