// Rows of few classes: a thread for each row, its exponentials in registers. Dense rows go through shared memory; rows
// side by side, with classes far apart, are read and written directly.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

constexpr int kSingleThreads = 128;

// A row in x, in one thread; its exponentials replace it there. Classes are visited two at a time: each branch of two
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
  __device__ __forceinline__ static bool has(int j, int32_t classes) { return j % 2 == 0 || j < classes; }

  // From the row's place in global memory, `step` from class to class.
  __device__ __forceinline__ void load(const E* row, int64_t step, int32_t classes) {
    each(classes, [&](int j, float& v) {
      v = -INFINITY;
      if (has(j, classes)) v = widen<float>(row[j * step]);
    });
  }
  template <class Make>
  __device__ __forceinline__ void store(E* row, int64_t step, int32_t classes, const Make& make) {
    each(classes, [&](int j, float& v) {
      if (has(j, classes)) row[j * step] = narrow<E>(make(v));
    });
  }
  // From shared memory; four classes at a time if they are whole vectors of four. Returns the largest logit.
  __device__ __forceinline__ static int32_t rotated(int32_t j, int32_t rotation, int32_t classes) {
    return j + rotation < classes ? j + rotation : j + rotation - classes;
  }
  __device__ __forceinline__ float load_shared(const E* row, int32_t rotation, int32_t classes) {
    float max = -INFINITY;
    if (classes % 4 == 0) {
#pragma unroll
      for (int j = 0; j < kClasses; j += 4) {
        if (j >= classes) break;
        const auto four = *reinterpret_cast<const Vector<E, 4>*>(row + rotated(j, rotation, classes));
#pragma unroll
        for (int k = 0; k < 4; ++k) max = max_or_nan(max, x[j + k] = widen<float>(four.element[k]));
      }
      return max;
    }
    each(classes, [&](int j, float& v) {
      v = -INFINITY;
      if (has(j, classes)) v = widen<float>(row[j]);
      max = max_or_nan(max, v);
    });
    return max;
  }
  template <class Make>
  __device__ __forceinline__ void store_shared(E* row, int32_t rotation, int32_t classes, const Make& make) {
    if (classes % 4 != 0) return store(row, 1, classes, make);
#pragma unroll
    for (int j = 0; j < kClasses; j += 4) {
      if (j >= classes) break;
      Vector<E, 4> four;
#pragma unroll
      for (int k = 0; k < 4; ++k) four.element[k] = narrow<E>(make(x[j + k]));
      *reinterpret_cast<Vector<E, 4>*>(row + rotated(j, rotation, classes)) = four;
    }
  }
  // Takes the target's logit out of the others. Returns the largest of these.
  __device__ __forceinline__ float hide(int32_t slot, int32_t classes, float& target) {
    float max = -INFINITY;
    each(classes, [&](int j, float& v) {
      target = select(j == slot, v, target);
      v = select(j == slot, -INFINITY, v);
      max = max_or_nan(max, v);
    });
    return max;
  }

  // The row's loss, and the factors of its gradients; its logits become exponentials. They are without the target's,
  // and `max` is the largest. slot: of the target, or -1 if the row is not read.
  template <class Loss>
  __device__ __forceinline__ double take(const RowParameters<double>& p, const Loss& loss, RowFactor<float>& factor,
                                         Task<float>& task, int32_t slot, float target, float max, Gain& gain) {
    if (slot < 0) return take_none(p.classes, task.counts, gain);
    RowSums<E> sums = {max, {}, 0.0f};
    if (loss.smooths) {
      const float base = select(target == -INFINITY, 0.0f, target);
      each(p.classes, [&](int j, float& v) { sums.below += select(j < p.classes && j != slot, base - v, 0.0f); });
      if (target == -INFINITY) sums.below = INFINITY;
    }
    const Reference reference = reference_of(max);
    if (reference.shift != 0.0f) each(p.classes, [&](int, float& v) { v -= reference.shift; });
    sums.others = to_exp(p.classes, Elements<E>(reference.power));
    read_factors(p, factor, task);
    const bool has_gradient = p.grad_input.data;
    const double of_row = finish_row<E>(loss, sums, target, task.class_weight, task.factor, true, has_gradient, gain);
    if (has_gradient && gain.before != 1.0f) each(p.classes, [&](int, float& e) { e *= gain.before; });
    return of_row;
  }
  // The same for a row without options; false if it must be taken as any other, from its logits.
  __device__ __forceinline__ bool take_near(int32_t classes, float target, float max, Constant<float> factor,
                                            bool has_gradient, double& of_row, Gain& gain) {
    using Near = NearRow<E>;
    if (!Near::is(max, target)) return false;
    const Elements<E> elements = Near::elements(max);
    const Near near(elements, to_exp(classes, elements), target);
    if (has_gradient && !near.take_gain(number_of<typename Near::N>(factor), gain)) return false;
    of_row = finite_in_double(near.loss());
    return true;
  }
  // A row that is not read.
  __device__ __forceinline__ double take_none(int32_t classes, bool counts, Gain& gain) {
    const float unread = without_target(counts);
    each(classes, [&](int, float& v) { v = 0.0f; });
    gain = {0.0f, 0.0f, -unread, unread, 1.0f};
    return unread;
  }
  __device__ __forceinline__ RowNumber<E> to_exp(int32_t classes, const Elements<E>& elements) {
    typename Elements<E>::Sum of_exp;
    each(classes, [&](int, float& v) { v = of_exp.add_own(elements, v); });
    return of_exp.total();
  }
};

// The class that a thread begins with if rows are whole vectors of four. If all threads of a warp began at the same
// place in their rows, they would read from only a few banks.
template <class E>
__device__ __forceinline__ int32_t rotation_of(int32_t classes) {
  const int32_t vectors = classes / 4, apart = vectors & -vectors;  // the largest power of two in it
  return static_cast<int32_t>(threadIdx.x * static_cast<uint32_t>(apart) * sizeof(E) / 32) % vectors * 4;
}

// A warp's copies between global and shared memory: copy(to, from) of each whole vector, then of each element behind.
template <class E, class CopyVector>
__device__ __forceinline__ void warp_copy(int32_t lane, E* to, const E* from, int32_t count, const CopyVector& copy) {
  constexpr int n = kVectorBytes / sizeof(E);
  E* t = to + lane * n;
  const E* f = from + lane * n;
  for (int32_t left = count - lane * n; left >= n; left -= 32 * n, t += 32 * n, f += 32 * n) copy(t, f);
  const int32_t rest = count / n * n + lane;
  if (rest < count) to[rest] = from[rest];
}

constexpr int kStages = 2;

// A warp's tile has some rows for each lane. The next one is on its way into shared memory; the gradients go back
// through it. The warps of a block wait for each other only at its end. Instructions limit it (IPC 3.2 of 4): a row of
// two fp32 classes needs 288 of them with kUsual (has_usual_rows), 660 with the checks of options and guarded sums; a
// row of ten 650 and 1,050 (H200). Step of 2^27 fp32 elements, share of the floor: 2 classes 0.46 (0.21 before), 10
// 0.74 (0.43), 21 0.77 (0.58).
template <class E, int kClasses, bool kUsual, class Loss>
__global__ void __launch_bounds__(kSingleThreads, kClasses <= 16 ? 8 : 5)
    rows_through_shared(const __grid_constant__ RowParameters<double> p,
                        const __grid_constant__ typename Loss::InFloat loss, int rows_a_lane) {
  extern __shared__ __align__(16) char memory[];
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  const int32_t lane = threadIdx.x % 32, classes = p.classes, rows = 32 * rows_a_lane, size = rows * classes;
  const uint32_t tiles = (p.rows + rows - 1) / rows, step = gridDim.x * (kSingleThreads / 32);
  const uint32_t first = blockIdx.x * (kSingleThreads / 32) + threadIdx.x / 32;
  const int32_t stage_bytes = size * sizeof(E) + rows * (kUsual ? sizeof(int64_t) : 0);
  char* const stages = memory + threadIdx.x / 32 * kStages * stage_bytes;
  E* const gradient = static_cast<E*>(p.grad_input.data);
  const auto rows_of = [&](uint32_t tile) { return static_cast<int32_t>(min(uint32_t(rows), p.rows - tile * rows)); };
  const auto fetch = [&](uint32_t tile, char* stage) {
    if (tile < tiles) {
      const int32_t count = rows_of(tile);
      warp_copy(lane, reinterpret_cast<E*>(stage), static_cast<const E*>(p.input.data) + int64_t{tile} * size,
                count * classes, [](E* to, const E* from) { __pipeline_memcpy_async(to, from, kVectorBytes); });
      if constexpr (kUsual) {
        int64_t* const to = reinterpret_cast<int64_t*>(stage + size * sizeof(E));
        const int64_t* const from = static_cast<const int64_t*>(p.target.data) + int64_t{tile} * rows;
        for (int32_t i = lane; i < count; i += 32) __pipeline_memcpy_async(to + i, from + i, sizeof(int64_t));
      }
    }
    __pipeline_commit();
  };
  fetch(first, stages);
  const int32_t rotation = classes % 4 == 0 ? rotation_of<E>(classes) : 0;
  double sum = 0.0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kSingleThreads>(p, factor);
  wait_for_prior();  // a count, which has no part in what was read
  if (kUsual && p.wants_gradients) factor.at(p, RowPlace{});
  int turn = 0;
#pragma unroll 1
  for (uint32_t tile = first; tile < tiles; tile += step, turn ^= 1) {
    char* const stage = stages + turn * stage_bytes;
    __syncwarp();  // the stage that is filled now was read
    fetch(tile + step, stages + (turn ^ 1) * stage_bytes);
    __pipeline_wait_prior(1);
    __syncwarp();
    const int32_t count = rows_of(tile);
#pragma unroll 1
    for (int32_t i = lane; i < count; i += 32) {
      E* const row = reinterpret_cast<E*>(stage) + i * classes;
      Task<float> task;
      if constexpr (kUsual) {
        task = {};
        task.target = -1;
        task.class_weight = 1.0f;
        task.factor = factor.factor;
        take_target(p, task, {true, reinterpret_cast<const int64_t*>(stage + size * sizeof(E))[i]});
      } else {
        task = task_at<float>(p, tile * rows + i);
        take_target(p, task, index_of(p, task));
        if (task.held) {
          const E* const kept = gradient + (int64_t{tile} * rows + i) * classes;
          for (int32_t j = 0; gradient && j < classes; ++j) row[j] = kept[j];
          continue;
        }
      }
      const bool reads = task.target >= 0;
      float target = 0.0f;
      if (reads) {
        target = widen<float>(row[task.target]);
        row[task.target] = kMinusInfinity<E>;
      }
      SingleRow<E, kClasses> single;
      const float max = single.load_shared(row, rotation, classes);
      Gain gain;
      double of_row;
      if (!kUsual || !reads || !single.take_near(classes, target, max, task.factor, gradient, of_row, gain)) {
        if (kUsual && reads) single.load_shared(row, rotation, classes);
        const int32_t slot = reads ? task.target - rotation + (task.target < rotation ? classes : 0) : -1;
        of_row = single.take(p, loss, factor, task, slot, target, max, gain);
      }
      add_row<kUsual>(p, task, of_row, sum);
      if (!gradient) continue;
      single.store_shared(row, rotation, classes, [&](float e) { return gain.template times<E>(e); });
      if (reads) row[task.target] = narrow<E>(gain.at_target);
    }
    if (!gradient) continue;
    __syncwarp();
    warp_copy(lane, gradient + int64_t{tile} * size, reinterpret_cast<const E*>(stage), count * classes,
              [](E* to, const E* from) { *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from); });
  }
  reduce_losses<kSingleThreads, SumsOf::Block>(p, sum, &counted);
}

template <class E, int kClasses, bool kUsual, class Loss>
__global__ void __launch_bounds__(kSingleThreads)
    rows_of_strided_classes(const __grid_constant__ RowParameters<double> p,
                            const __grid_constant__ typename Loss::InFloat loss) {
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  double sum = 0.0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kSingleThreads>(p, factor);
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kSingleThreads; first < p.rows; first += gridDim.x * kSingleThreads) {
    Task<float> task = task_at<float, kUsual>(p, first + threadIdx.x);
    if (task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, false);
    const int64_t step = p.class_stride[kInput], to = p.class_stride[kResult];
    SingleRow<E, kClasses> single;
    single.load(span.input, step, p.classes);
    take_target(p, task, index_of<kUsual>(p, task));
    wait_for_prior();  // a count, which has no part in what was read
    float target = 0.0f;
    const float max = single.hide(task.target, p.classes, target);
    Gain gain;
    double of_row;
    if constexpr (kUsual) read_factors<kUsual>(p, factor, task);
    const bool reads = task.target >= 0;
    if (!kUsual || !reads || !single.take_near(p.classes, target, max, task.factor, span.gradient, of_row, gain)) {
      if (kUsual && reads) {
        single.load(span.input, step, p.classes);
        single.hide(task.target, p.classes, target);
      }
      of_row = single.take(p, loss, factor, task, task.target, target, max, gain);
    }
    add_row<kUsual>(p, task, of_row, sum);
    if (!span.gradient) continue;
    single.store(span.gradient, to, p.classes, [&](float e) { return gain.template times<E>(e); });
    if (reads) span.gradient[task.target * to] = narrow<E>(gain.at_target);
  }
  wait_for_prior();  // no row has, if there are none
  reduce_losses<kSingleThreads, SumsOf::Block>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
