// The CPU engine of losses that read all classes of a row: each block goes through the loops of row_kernels.h in tiles.
// Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cpu/row_groups.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

// Up to so many classes, rows that each lie in one piece are turned, to be lanes: in registers where they are of the
// loops' own type.
constexpr int64_t kShortRow = 24, kShortOwnRow = 96;

// Long rows of neighbours are tiles of their own; of all others, many are one.
template <class F>
TileShape shape_of(const Pass& pass) {
  const Dims& rows = pass.inner.rank > 0 ? pass.inner : pass.segments;
  const int64_t between = rows.rank > 0 ? rows.stride[0][kInput] : 0, step = pass.rows.class_stride[kInput];
  const bool lies_across = between != 0 && between < step;
  const int64_t is_short = holds<F>(pass.input.dtype) ? kShortOwnRow : kShortRow;
  return {pass.rows.classes <= is_short || lies_across, pass.rows.classes};
}

template <class F, class Loss>
void classes_pass_as(const Pass& r, ParallelFor parallel_for) {
  run_rows<F>(r, RowGroups<F, Loss>(r, shape_of<F>(r)), r.rows.classes, parallel_for);
}

template <class Loss>
void classes_pass(const Pass& r, ParallelFor parallel_for) {
  // A cap's rounding in fp32 would be one of the logits' own, of which exp makes many last places; and the shares of
  // probabilities would be rounded more than once.
  const bool has_factors = is_floating(r.target.dtype) && (r.third.data || r.numbers.second != 0.0);
  if (wants_float64_rows(r) || r.rows.softcap != 0.0 || has_factors) {
    return classes_pass_as<double, Loss>(r, parallel_for);
  }
  classes_pass_as<float, Loss>(r, parallel_for);
}

}  // namespace cudaloss::cpu
