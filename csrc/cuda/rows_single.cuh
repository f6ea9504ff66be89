// Short rows: a thread a row, its exponentials in registers. Rows that lie densely come and go through shared memory;
// classes that are far apart, of rows side by side, directly.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/row_parameters.cuh"
#include "cuda/row_softmax.cuh"

namespace cudaloss::cuda {

constexpr int kSingleThreads = 128;

// A row that a thread has in x, whose gradients it then has there.
template <class E, int kClasses>
struct SingleRow {
  float x[kClasses];

  // Visits the classes that there are: a branch at each, out of all the rest.
  template <class Visit>
  __device__ __forceinline__ void each(int32_t classes, const Visit& visit) {
#pragma unroll
    for (int j = 0; j < kClasses; ++j) {
      if (j >= classes) break;
      visit(j, x[j]);
    }
  }

  template <class Loss>
  __device__ __forceinline__ RowNumber<E> take(const RowParameters<double>& p, const typename Loss::InFloat& loss,
                                               const Task<float>& task, int32_t target_at, float target, Gain& gain) {
    float max = -INFINITY, below = 0.0f;
    if (loss.smooths) {
      const float base = select(target == -INFINITY, 0.0f, target);
      each(p.classes, [&](int, float& v) { below += base - v; });
    }
    each(p.classes, [&](int j, float& v) {
      v = select(j == target_at, -INFINITY, v);
      max = max_or_nan(max, v);
    });
    const Reference reference = reference_of(max);
    const Elements<E> elements(reference);
    typename Elements<E>::Sum of_exp;
    each(p.classes, [&](int, float& v) {
      v = elements.exp(v - reference.shift);
      of_exp.add(v);
    });
    const RowResult<E> result =
        finished<E, Loss>(loss, {max, of_exp.total()}, target, below, task.class_weight, task.factor);
    gain = result.gain;
    return result.loss;
  }
  __device__ __forceinline__ void to_gradients(int32_t classes, const Gain& gain, int32_t target_at) {
    const float back = select(gain.unlifts, Elements<E>::kBack, 1.0f);
    if (gain.unlifts) each(classes, [&](int, float& e) { e *= back; });
    each(classes, [&](int j, float& e) { e = select(j == target_at, gain.at_target, gain.times(e)); });
  }
};

// The class that a thread begins with: where a large power of two divides a row's size, all threads of a warp would
// else read from a few banks.
__device__ __forceinline__ int32_t rotation_of(int32_t row_bytes, int32_t classes) {
  const int32_t banks = row_bytes / 4 & -(row_bytes / 4);  // the largest power of two in it
  if (row_bytes % 4 != 0 || banks < 4) return 0;
  return static_cast<int32_t>(threadIdx.x % 32) * min(banks, 32) / 32 * (4 * classes / row_bytes);
}

template <class E, int kClasses, class Loss>
__global__ void __launch_bounds__(kSingleThreads)
    rows_through_shared(const __grid_constant__ RowParameters<double> p,
                        const __grid_constant__ typename Loss::InFloat loss) {
  constexpr int n = kVectorBytes / sizeof(E);
  extern __shared__ __align__(16) char memory[];
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  E* const stage = reinterpret_cast<E*>(memory);
  const int32_t classes = p.classes, size = kSingleThreads * classes;
  E* const row = stage + threadIdx.x * classes;
  const int32_t turn = rotation_of(classes * static_cast<int32_t>(sizeof(E)), classes);
  const auto turned = [&](int j) { return j + turn < classes ? j + turn : j + turn - classes; };
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t tile = blockIdx.x; tile * kSingleThreads < p.rows; tile += gridDim.x) {
    const int64_t base = int64_t{tile} * size;
    const int32_t count = static_cast<int32_t>(min(int64_t{size}, int64_t{p.rows} * classes - base));
    const E* const input = static_cast<const E*>(p.input.data) + base;
    for (int32_t i = threadIdx.x * n; i < count; i += kSingleThreads * n) {
      if (i + n <= count) {
        __pipeline_memcpy_async(stage + i, input + i, kVectorBytes);
      } else {
        for (int32_t k = i; k < count; ++k) stage[k] = input[k];
      }
    }
    __pipeline_commit();
    const Task<float> task = task_of<float, true>(p, tile * kSingleThreads + threadIdx.x);
    __pipeline_wait_prior(0);
    __syncthreads();
    SingleRow<E, kClasses> single;
    RowResult<E> result = finished_without<E>(task.counts);
    const int32_t target_at = task.target - turn + (task.target < turn ? classes : 0);
    if (task.target >= 0) {
      single.each(classes, [&](int j, float& v) { v = widen<float>(row[turned(j)]); });
      result.loss = single.template take<Loss>(p, loss, task, target_at, widen<float>(row[task.target]), result.gain);
    }
    if (!task.held) {
      hand_in(p, task.at, as_double(result.loss) * double{task.weight}, sum);
      if (task.target < 0) single.each(classes, [&](int, float& e) { e = 0.0f; });
      single.to_gradients(classes, result.gain, task.target >= 0 ? target_at : -1);
    }
    E* const gradient = static_cast<E*>(p.grad_input.data);
    if (!gradient) {
      __syncthreads();
      continue;
    }
    if (task.held && threadIdx.x < p.rows - tile * kSingleThreads) {
      for (int32_t j = 0; j < classes; ++j) row[j] = gradient[base + threadIdx.x * classes + j];
    } else {
      single.each(classes, [&](int j, float& e) { row[turned(j)] = narrow<E>(e); });
    }
    __syncthreads();
    for (int32_t i = threadIdx.x * n; i < count; i += kSingleThreads * n) {
      if (i + n <= count) {
        *reinterpret_cast<uint4*>(gradient + base + i) = *reinterpret_cast<const uint4*>(stage + i);
      } else {
        for (int32_t k = i; k < count; ++k) gradient[base + k] = stage[k];
      }
    }
    __syncthreads();
  }
  hand_in_sum<kSingleThreads, true>(p, sum);
}

template <class E, int kClasses, class Loss>
__global__ void __launch_bounds__(kSingleThreads)
    rows_of_strided_classes(const __grid_constant__ RowParameters<double> p,
                            const __grid_constant__ typename Loss::InFloat loss) {
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kSingleThreads; first < p.rows; first += gridDim.x * kSingleThreads) {
    const Task<float> task = task_of<float, true>(p, first + threadIdx.x);
    if (task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at);
    SingleRow<E, kClasses> single;
    RowResult<E> result = finished_without<E>(task.counts);
    if (task.target >= 0) {
      const int64_t step = p.class_stride[kInput];
      const float target = widen<float>(span.input[task.target * step]);
      single.each(p.classes, [&](int j, float& v) { v = widen<float>(span.input[j * step]); });
      result.loss = single.template take<Loss>(p, loss, task, task.target, target, result.gain);
    } else {
      single.each(p.classes, [&](int, float& e) { e = 0.0f; });
    }
    hand_in(p, task.at, as_double(result.loss) * double{task.weight}, sum);
    if (!span.gradient) continue;
    single.to_gradients(p.classes, result.gain, task.target);
    const int64_t step = p.class_stride[kFirst];
    single.each(p.classes, [&](int j, float& e) { span.gradient[j * step] = narrow<E>(e); });
  }
  hand_in_sum<kSingleThreads, true>(p, sum);
}

}  // namespace cudaloss::cuda
