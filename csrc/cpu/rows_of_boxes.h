// The CPU engine for losses of pairs of boxes. Included by the source of each such loss, which setup.py writes.
#pragma once

#include "core/boxes.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

template <class F, class Loss>
class BoxGroups {
 public:
  explicit BoxGroups(const Pass& pass) : pass_(pass), loss_(pass.numbers) {}

  int64_t batch() const { return kBlock; }

  void run(int64_t first, int64_t rows, RowScratch<F>& scratch) const {
    for (int64_t row = first; row < first + rows; ++row) {
      double own[kCorners] = {}, other[kCorners] = {};
      BoxRow found = {};
      if (scratch.keep[row]) {
        read(pass_.input, scratch.of_input[row], kInput, own);
        read(pass_.target, scratch.of_target[row], kTarget, other);
        found = row_of_boxes(loss_, own, other, pass_.wants_gradients());
      }
      scratch.terms[row] = found.loss;
      const WithRest<double> factor = {scratch.factors[row], scratch.rests[row]};
      write(pass_.grad_input, scratch.of_first[row], kResult, found.own, factor);
      write(pass_.grad_target, scratch.of_second[row], kSecondResult, found.other, factor);
    }
  }

 private:
  void read(const Operand& operand, int64_t offset, Place place, double (&box)[kCorners]) const {
    with_elements(operand, [&](const auto* data) {
      for (int k = 0; k < kCorners; ++k) move(data[offset + k * pass_.rows.class_stride[place]], box[k]);
    });
  }
  void write(const Result& result, int64_t offset, Place place, const double (&slope)[kCorners],
             WithRest<double> factor) const {
    if (!result.data) return;
    with_elements(result, [&](auto* out) {
      for (int k = 0; k < kCorners; ++k) {
        const double gradient = slope[k] == 0.0 ? 0.0 : fused(slope[k], factor.value, slope[k] * factor.rest);
        move(out[offset + k * pass_.rows.class_stride[place]], gradient);
      }
    });
  }

  const Pass& pass_;
  const Loss loss_;
};

template <class Loss>
void boxes_pass(const Pass& r, ParallelFor parallel_for) {
  constexpr int64_t kElements = 64;  // the work of a row beside that of reading an element
  if (wants_float64(r)) return run_rows<double>(r, BoxGroups<double, Loss>(r), kElements, parallel_for);
  run_rows<float>(r, BoxGroups<float, Loss>(r), kElements, parallel_for);
}

}  // namespace cudaloss::cpu
