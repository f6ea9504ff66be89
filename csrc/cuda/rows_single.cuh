// Rows of few classes: a thread for each row, its exponentials in registers. Dense rows go through shared memory; rows
// side by side, with classes far apart, are read and written directly.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

constexpr int kSingleThreads = 128;

// A row in x, in one thread; its gradients replace it there. Classes are visited two at a time: each branch of two
// leaves the loop. Slot j has class (j + rotation) % classes.
template <class E, int kClasses>
struct SingleRow {
  float x[kClasses];

  template <class Visit>
  __device__ __forceinline__ void each(int32_t classes, const Visit& visit) {
#pragma unroll
    for (int j = 0; j < kClasses; j += 2) {
      if (j >= classes) break;
      visit(j, x[j]);
      visit(j + 1, x[j + 1]);
    }
  }
  // From the row's place in global memory, or four classes at a time from shared memory.
  __device__ __forceinline__ void load(const E* row, int64_t step, int32_t classes) {
    each(classes, [&](int j, float& v) {
      v = -INFINITY;
      if (j % 2 == 0 || j < classes) v = widen<float>(row[j * step]);
    });
  }
  __device__ __forceinline__ void store(E* row, int64_t step, int32_t classes) {
    each(classes, [&](int j, float& v) {
      if (j % 2 == 0 || j < classes) row[j * step] = narrow<E>(v);
    });
  }
  __device__ __forceinline__ static int32_t rotated(int32_t j, int32_t rotation, int32_t classes) {
    return j + rotation < classes ? j + rotation : j + rotation - classes;
  }
  __device__ __forceinline__ void load_rotated(const E* row, int32_t rotation, int32_t classes) {
#pragma unroll
    for (int j = 0; j < kClasses; j += 4) {
      if (j >= classes) break;
      const auto four = *reinterpret_cast<const Vector<E, 4>*>(row + rotated(j, rotation, classes));
#pragma unroll
      for (int k = 0; k < 4; ++k) x[j + k] = widen<float>(four.element[k]);
    }
  }
  __device__ __forceinline__ void store_rotated(E* row, int32_t rotation, int32_t classes) const {
#pragma unroll
    for (int j = 0; j < kClasses; j += 4) {
      if (j >= classes) break;
      Vector<E, 4> four;
#pragma unroll
      for (int k = 0; k < 4; ++k) four.element[k] = narrow<E>(x[j + k]);
      *reinterpret_cast<Vector<E, 4>*>(row + rotated(j, rotation, classes)) = four;
    }
  }

  // Returns the row's loss. Its logits become gradients, except the target's, which goes to `at_target`. slot: of the
  // target, or -1 if the row is not read. kFinds: looks up the target's logit; otherwise it is `target`, and -inf in x.
  template <bool kFinds, class Loss>
  __device__ __forceinline__ double take(const RowParameters<double>& p, const typename Loss::InFloat& loss,
                                         RowFactor<float>& factor, Task<float>& task, int32_t slot, float target,
                                         float& at_target) {
    const float unread = without_target(task.counts);
    double of_row = unread;
    Gain gain = {unread, 0.0f, 0.0f, unread, 1.0f};
    if (slot >= 0) {
      RowSums<E> sums = {-INFINITY, {}, 0.0f};
      if constexpr (kFinds) {
        each(p.classes, [&](int j, float& v) {
          target = select(j == slot, v, target);
          v = select(j == slot, -INFINITY, v);
        });
      }
      each(p.classes, [&](int, float& v) { sums.max = max_or_nan(sums.max, v); });
      if (loss.smooths) {
        const float base = select(target == -INFINITY, 0.0f, target);
        each(p.classes, [&](int j, float& v) { sums.below += select(j < p.classes && j != slot, base - v, 0.0f); });
        if (target == -INFINITY) sums.below = INFINITY;
      }
      const Reference reference = reference_of(sums.max);
      if (reference.shift != 0.0f) each(p.classes, [&](int, float& v) { v -= reference.shift; });
      const Elements<E> elements(reference.power);
      typename Elements<E>::Sum of_exp;
      each(p.classes, [&](int, float& v) { v = of_exp.add(elements, v); });
      sums.others = of_exp.total();
      read_factors(p, factor, task);
      const RowSoftmax<E> softmax(sums, target);
      gain = gain_of_row(loss, sums, softmax, task.class_weight, task.factor);
      of_row = loss_of_row(loss, sums, softmax, task.class_weight);
    }
    at_target = gain.at_target;
    if (!p.grad_input.data) return of_row;
    if (gain.before != 1.0f) each(p.classes, [&](int, float& e) { e *= gain.before; });
    if (slot < 0) {
      each(p.classes, [&](int, float& e) { e = unread; });
    } else {
      each(p.classes, [&](int, float& e) { e = gain.template times<E>(e); });
    }
    return of_row;
  }
};

// The class that a thread begins with if rows are whole vectors of four. If all threads of a warp began at the same
// place in their rows, they would read from only a few banks.
template <class E>
__device__ __forceinline__ int32_t rotation_of(int32_t classes) {
  const int32_t vectors = classes / 4, apart = vectors & -vectors;  // the largest power of two in it
  return static_cast<int32_t>(threadIdx.x * static_cast<uint32_t>(apart) * sizeof(E) / 32) % vectors * 4;
}

template <class E, int kClasses, class Loss>
__global__ void __launch_bounds__(kSingleThreads)
    rows_through_shared(const __grid_constant__ RowParameters<double> p,
                        const __grid_constant__ typename Loss::InFloat loss) {
  constexpr int n = kVectorBytes / sizeof(E);
  extern __shared__ __align__(16) char memory[];
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  E* const stage = reinterpret_cast<E*>(memory);
  const int32_t classes = p.classes, size = kSingleThreads * classes;
  E* const row = stage + threadIdx.x * classes;
  const bool by_four = classes % 4 == 0;
  const int32_t rotation = by_four ? rotation_of<E>(classes) : 0;
  double sum = 0.0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kSingleThreads>(p, factor);
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
    Task<float> task = task_at<float>(p, tile * kSingleThreads + threadIdx.x);
    take_target(p, task, index_of(p, task));
    wait_for_prior();  // a count, which has no part in what was read
    __pipeline_wait_prior(0);
    __syncthreads();
    E* const gradient = static_cast<E*>(p.grad_input.data);
    if (!task.held) {
      SingleRow<E, kClasses> single;
      const bool reads = task.target >= 0;
      float target = 0.0f, at_target;
      if (reads) {
        target = widen<float>(row[task.target]);
        row[task.target] = kMinusInfinity<E>;
      }
      if (by_four) {
        single.load_rotated(row, rotation, classes);
      } else {
        single.load(row, 1, classes);
      }
      const int32_t slot = reads ? task.target - rotation + (task.target < rotation ? classes : 0) : -1;
      const double of_row = single.template take<false, Loss>(p, loss, factor, task, slot, target, at_target);
      add_loss(p, task.at, weighted(p, task, of_row), sum);
      if (gradient && by_four) {
        single.store_rotated(row, rotation, classes);
      } else if (gradient) {
        single.store(row, 1, classes);
      }
      if (reads) row[task.target] = narrow<E>(at_target);
    } else if (gradient && threadIdx.x < p.rows - tile * kSingleThreads) {
      for (int32_t j = 0; j < classes; ++j) row[j] = gradient[base + threadIdx.x * classes + j];
    }
    __syncthreads();
    if (!gradient) continue;
    for (int32_t i = threadIdx.x * n; i < count; i += kSingleThreads * n) {
      if (i + n <= count) {
        *reinterpret_cast<uint4*>(gradient + base + i) = *reinterpret_cast<const uint4*>(stage + i);
      } else {
        for (int32_t k = i; k < count; ++k) gradient[base + k] = stage[k];
      }
    }
    __syncthreads();
  }
  wait_for_prior();  // no row has, if there are none
  reduce_losses<kSingleThreads, SumsOf::Block>(p, sum, &counted);
}

template <class E, int kClasses, class Loss>
__global__ void __launch_bounds__(kSingleThreads)
    rows_of_strided_classes(const __grid_constant__ RowParameters<double> p,
                            const __grid_constant__ typename Loss::InFloat loss) {
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  double sum = 0.0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kSingleThreads>(p, factor);
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kSingleThreads; first < p.rows; first += gridDim.x * kSingleThreads) {
    Task<float> task = task_at<float>(p, first + threadIdx.x);
    if (task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, false);
    const int64_t step = p.class_stride[kInput];
    SingleRow<E, kClasses> single;
    single.load(span.input, step, p.classes);
    take_target(p, task, index_of(p, task));
    float at_target;
    const double of_row = single.template take<true, Loss>(p, loss, factor, task, task.target, 0.0f, at_target);
    add_loss(p, task.at, weighted(p, task, of_row), sum);
    if (!span.gradient) continue;
    single.store(span.gradient, p.class_stride[kResult], p.classes);
    if (task.target >= 0) span.gradient[task.target * p.class_stride[kResult]] = narrow<E>(at_target);
  }
  reduce_losses<kSingleThreads, SumsOf::Block>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
