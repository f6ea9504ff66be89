// The CPU engine for losses that read all classes of a row: the loops of row_kernels.h compute each block in tiles.
// Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cpu/row_groups.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

template <class F, class Loss>
void classes_pass_as(const Pass& r, ParallelFor parallel_for) {
  run_rows<F>(r, RowGroups<F, Loss>(r, shape_of<F>(r)), r.rows.classes, parallel_for);
}

template <class Loss>
void classes_pass(const Pass& r, ParallelFor parallel_for) {
  // In fp32 the rounding of a cap would be an error of the logits, which exp turns into many last places; and the
  // shares of probabilities would be rounded more than once.
  const bool has_factors = is_floating(r.target.dtype) && (r.third.data || r.numbers.second != 0.0);
  if (wants_float64_rows(r) || r.rows.softcap != 0.0 || has_factors) {
    return classes_pass_as<double, Loss>(r, parallel_for);
  }
  classes_pass_as<float, Loss>(r, parallel_for);
}

}  // namespace cudaloss::cpu
