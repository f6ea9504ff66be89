// The CUDA engine for losses that read only the target's class of a row: a thread for each row, any strides and dtypes.
// The gradients of the other classes are set to 0 before, or by the row's thread if rows are side by side. Included by
// the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/engine.h"
#include "cuda/row_parameters.cuh"

namespace cudaloss::cuda {

constexpr int kIndexThreads = 128;

template <class F, class Loss>
__device__ __forceinline__ void index_row(const RowParameters<Partial<F>>& p, const Loss& loss, const Task<F>& task,
                                          bool fills, Partial<F>& sum) {
  using P = Partial<F>;
  const double weight = static_cast<double>(task.class_weight);
  double of_row = 0.0;
  if (task.target >= 0) {
    const int64_t at = offset(p, task.at, kInput) + task.target * p.class_stride[kInput];
    of_row = loss.loss(floating_at<double>(p.input, at), weight);
  } else if (task.counts) {
    of_row = NAN;
  }
  add_loss(p, task.at, P{of_row * static_cast<double>(task.weight)}, sum);
  if (!p.grad_input.data) return;
  const double slope = loss.grad_input(weight), unread = task.counts && task.target < 0 ? NAN : 0.0;
  const double own = fused(slope, static_cast<double>(task.factor.hi), slope * static_cast<double>(task.factor.lo));
  const int64_t first = offset(p, task.at, kResult), step = p.class_stride[kResult];
  dispatch(p.grad_input.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    Element* const row = static_cast<Element*>(p.grad_input.data) + first;
    if (fills || unread != 0.0) {
      for (int32_t j = 0; j < p.classes; ++j) row[j * step] = narrow<Element>(j == task.target ? own : unread);
    } else if (task.target >= 0) {
      row[task.target * step] = narrow<Element>(own);
    }
  });
}

template <class F, class Loss>
__global__ void __launch_bounds__(kIndexThreads)
    rows_of_index(const __grid_constant__ RowParameters<Partial<F>> p, const __grid_constant__ Loss loss, bool fills) {
  release_next();
  wait_for_prior();
  if (all_held<F>(p)) return;
  Partial<F> sum = {};
  RowFactor<F> factor;
  const Divisor& counted = count_rows<kIndexThreads>(p, factor);
#pragma unroll 1
  for (uint32_t row = blockIdx.x * kIndexThreads + threadIdx.x; row < p.rows; row += gridDim.x * kIndexThreads) {
    const Task<F> task = task_of<F, true>(p, factor, row);
    if (!task.held) index_row(p, loss, task, fills, sum);
  }
  reduce_losses<kIndexThreads, SumsOf::Block>(p, sum, &counted);
}

// Whether the rows' threads write the gradients of all classes: for many rows side by side, where the targets'
// gradients alone would be parts of sectors. (16, 19, 1024, 1024) fp32, forward and backward, H200: 0.75 ms, with
// memory cleared before 1.09.
inline bool fills_rows(const Pass& r) {
  const int64_t rows = r.segments.count() * r.inner.count();
  return !r.hold_gradients && r.inner.rank > 0 && r.inner.stride[0][kResult] == 1 && rows >= 4096 &&
         rows >= r.rows.classes;
}

// Sets the gradients of all other classes to 0, in the fastest way. A gradient that holds nothing yet is new memory,
// which is dense.
inline void clear_gradient(const Pass& r, Stream stream) {
  const int64_t count = r.segments.count() * r.inner.count() * r.rows.classes;
  check(cudaMemsetAsync(r.grad_input.data, 0, count * size_of(r.grad_input.dtype), static_cast<cudaStream_t>(stream)),
        "cudaMemsetAsync");
}

template <class F, class Loss>
void index_pass_as(const Pass& r, const Memory& memory, Stream stream) {
  const bool fills = r.grad_input.data && fills_rows(r), clears = r.grad_input.data && !r.hold_gradients && !fills;
  if (clears) clear_gradient(r, stream);
  auto p = row_parameters<Partial<F>>(r);
  start_rows(r, p, kIndexThreads, memory, stream, [&](Start start, int64_t blocks) {
    start = clears ? Start::Alone : start;  // the previous launch is then not one of our kernels
    launch(rows_of_index<F, Loss>, start, blocks, kIndexThreads, stream, p, Loss(r), fills);
  });
}

template <class Loss>
void index_pass(const Pass& r, const Memory& memory, Stream stream) {
  if (wants_float64_rows(r)) return index_pass_as<double, Loss>(r, memory, stream);
  index_pass_as<float, Loss>(r, memory, stream);
}

}  // namespace cudaloss::cuda
