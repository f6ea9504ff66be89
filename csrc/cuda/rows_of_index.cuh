// The CUDA engine for losses that read one class of a row, its target's: a thread a row, any strides and dtypes. Included
// by the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/engine.h"
#include "cuda/row_parameters.cuh"

namespace cudaloss::cuda {

constexpr int kIndexThreads = 128;

template <class F, class Loss>
__device__ __forceinline__ void index_row(const RowParameters<Partial<F>>& p, const Loss& loss, const Task<F>& task,
                                          Partial<F>& sum) {
  using P = Partial<F>;
  const double weight = static_cast<double>(task.class_weight);
  double of_row = 0.0;
  if (task.target >= 0) {
    const int64_t at = offset(p, task.at, kInput) + task.target * p.class_stride[kInput];
    of_row = loss.loss(floating_at<double>(p.input, at), weight);
  } else if (task.counts) {
    of_row = NAN;
  }
  hand_in(p, task.at, P{of_row * static_cast<double>(task.weight)}, sum);
  if (!p.grad_input.data || !task.counts) return;
  const int64_t first = offset(p, task.at, kFirst), step = p.class_stride[kFirst];
  if (task.target >= 0) {
    const double slope = loss.grad_input(weight);
    const double gradient = fused(slope, static_cast<double>(task.factor.hi), slope * static_cast<double>(task.factor.lo));
    return store_scalar(p.grad_input, first + task.target * step, gradient);
  }
  for (int32_t j = 0; j < p.classes; ++j) store_scalar(p.grad_input, first + j * step, NAN);
}

template <class F, class Loss>
__global__ void __launch_bounds__(kIndexThreads)
    rows_of_index(const __grid_constant__ RowParameters<Partial<F>> p, const __grid_constant__ Loss loss) {
  release_next();
  wait_for_prior();
  if (all_held<F>(p)) return;
  Partial<F> sum = {};
  RowFactor<F> factor;
#pragma unroll 1
  for (uint32_t row = blockIdx.x * kIndexThreads + threadIdx.x; row < p.rows; row += gridDim.x * kIndexThreads) {
    const Task<F> task = task_of<F, true>(p, factor, row);
    if (!task.held) index_row(p, loss, task, sum);
  }
  hand_in_sum<kIndexThreads, true>(p, sum);
}

// 0 for all the other classes, by the fastest way there is. A gradient that holds nothing yet is fresh memory, which is
// dense.
inline void clear_gradient(const Pass& r, Stream stream) {
  if (!r.grad_input.data || r.hold_unit_gradients) return;
  const int64_t count = r.segments.count() * r.inner.count() * r.rows.classes;
  check(cudaMemsetAsync(r.grad_input.data, 0, count * size_of(r.grad_input.dtype), static_cast<cudaStream_t>(stream)),
        "cudaMemsetAsync");
}

template <class F, class Loss>
void index_pass_as(const Pass& r, const Memory& memory, Stream stream) {
  auto p = row_parameters<Partial<F>>(r);
  start_rows(r, p, kIndexThreads, memory, stream, [&](Start start, int64_t blocks) {
    start = r.grad_input.data ? Start::Alone : start;  // what comes before is then no kernel of ours
    launch(rows_of_index<F, Loss>, start, blocks, kIndexThreads, stream, p, Loss(r));
  });
}

template <class Loss>
void index_pass(const Pass& r, const Memory& memory, Stream stream) {
  clear_gradient(r, stream);
  if (wants_float64_rows(r)) return index_pass_as<double, Loss>(r, memory, stream);
  index_pass_as<float, Loss>(r, memory, stream);
}

}  // namespace cudaloss::cuda
