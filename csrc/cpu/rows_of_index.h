// The CPU engine for losses that read only the target's class of a row. Included by the source of each such loss, which
// setup.py writes.
#pragma once

#include <cstring>

#include "core/plan.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

template <class F, class Loss>
class IndexGroups {
 public:
  explicit IndexGroups(const Pass& pass) : pass_(pass), loss_(pass) {}

  int64_t batch() const { return kBlock; }

  void run(int64_t first, int64_t rows, RowScratch<F>& scratch) const {
    with_elements(pass_.input, [&](const auto* data) {
      for (int64_t row = first; row < first + rows; ++row) {
        scratch.terms[row] = 0.0;
        if (!scratch.keep[row]) continue;
        const int64_t index = scratch.index[row];
        const int64_t at = scratch.of_input[row] + index * pass_.rows.class_stride[kInput];
        scratch.terms[row] = loss_.loss(widen<double>(data[at]), weight_of(index));
      }
    });
    if (pass_.grad_input.data) write_gradients(first, rows, scratch);
  }

 private:
  double weight_of(int64_t index) const {
    return pass_.third.data ? number_at<double>(pass_.third, index * pass_.rows.class_stride[kThird]) : 1.0;
  }

  void write_gradients(int64_t first, int64_t rows, const RowScratch<F>& scratch) const {
    with_elements(pass_.grad_input, [&](auto* out) {
      for (int64_t row = first; row < first + rows; ++row) {
        if (!scratch.keep[row]) continue;
        const int64_t index = scratch.index[row];
        const double slope = loss_.grad_input(weight_of(index));
        const double gradient = fma(slope, scratch.factors[row], slope * scratch.rests[row]);
        move(out[scratch.of_first[row] + index * pass_.rows.class_stride[kResult]], gradient);
      }
    });
  }

  const Pass& pass_;
  const Loss loss_;
};

// Sets the gradients of all other classes to 0. A gradient that holds nothing yet is new memory, which is dense.
inline void clear_gradient(const Pass& r, ParallelFor parallel_for) {
  if (!r.grad_input.data || r.hold_gradients) return;
  char* const data = static_cast<char*>(r.grad_input.data);
  const int64_t bytes = r.segments.count() * r.inner.count() * r.rows.classes * size_of(r.grad_input.dtype);
  constexpr int64_t kGrain = plan::kChunk * 4;
  const auto clear = [](int64_t begin, int64_t end, void* from) {
    std::memset(static_cast<char*>(from) + begin, 0, end - begin);
  };
  parallel_for(0, bytes, kGrain, clear, data);
}

template <class Loss>
void index_pass(const Pass& r, ParallelFor parallel_for) {
  clear_gradient(r, parallel_for);
  constexpr int64_t kElements = 16;  // a cache line of input, and one of the gradient
  if (wants_float64(r)) return run_rows<double>(r, IndexGroups<double, Loss>(r), kElements, parallel_for);
  run_rows<float>(r, IndexGroups<float, Loss>(r), kElements, parallel_for);
}

}  // namespace cudaloss::cpu
