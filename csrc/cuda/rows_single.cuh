// Rows of few classes: a thread for each row, its exponentials in registers. Dense rows go through shared memory; rows
// side by side, with classes far apart, are read and written directly. If classes have shares of their own, a row stays
// in shared memory (row_staged.cuh).
#pragma once

#include "cuda/row_staged.cuh"

namespace cudaloss::cuda {

// The class that a thread begins with if rows are whole vectors of four. If all threads of a warp began at the same
// place in their rows, they would read from only a few banks.
template <class E>
__device__ __forceinline__ int32_t rotation_of(int32_t classes) {
  const int32_t vectors = classes / 4, apart = vectors & -vectors;  // the largest power of two in it
  return static_cast<int32_t>(threadIdx.x * static_cast<uint32_t>(apart) * sizeof(E) / 32) % vectors * 4;
}

// The same if classes are read one after another.
template <class E>
__device__ __forceinline__ int32_t first_of_single(int32_t classes) {
  const int32_t words = classes * sizeof(E) / 4, apart = words & -words;
  return static_cast<int32_t>(threadIdx.x % 32 * apart / 32 * 4 / sizeof(E));
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
template <int kClasses, RowKind kKind>
constexpr int kSingleBlocks = kKind == RowKind::WithShares ? 6
                              : kClasses <= 16             ? 8
                                                           : 5;  // of a processor

// A warp's tile has some rows for each lane. The next one is on its way into shared memory; the gradients go back
// through it. The warps of a block wait for each other only at its end. Instructions limit it (IPC 3.2 of 4): a row of
// two fp32 classes needs 288 of them with kUsual (has_usual_rows), 660 with the checks of options and guarded sums; a
// row of ten 650 and 1,050 (H200). Step of 2^27 fp32 elements, share of the floor: 2 classes 0.46 (0.21 before), 10
// 0.74 (0.43), 21 0.77 (0.58). With shares, 10 classes, fp32 and bf16: 0.39 and 0.31 ms; in rows_with_shares and in the
// kernel for any row 1.26 and 10.6 (2^22 rows; eager 0.67 and 0.53).
template <class E, int kClasses, RowKind kKind, class Loss>
__global__ void __launch_bounds__(kSingleThreads, kSingleBlocks<kClasses, kKind>)
    rows_through_shared(const __grid_constant__ RowParameters<double> p,
                        const __grid_constant__ typename Loss::InFloat loss, int rows_a_lane) {
  constexpr bool kUsual = kKind == RowKind::Usual, kWithShares = kKind == RowKind::WithShares;
  extern __shared__ __align__(16) char memory[];
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  const int32_t lane = threadIdx.x % 32, classes = p.classes, rows = 32 * rows_a_lane, size = rows * classes;
  const uint32_t tiles = (p.rows + rows - 1) / rows, step = gridDim.x * (kSingleThreads / 32);
  const uint32_t first = blockIdx.x * (kSingleThreads / 32) + threadIdx.x / 32;
  // What comes beside a row's logits: its target's index, or its probabilities.
  const int32_t probability_bytes = kWithShares && loss.is_soft ? classes * size_of(p.target.dtype) : 0;
  const int32_t stage_bytes = size * sizeof(E) + rows * (kUsual ? sizeof(int64_t) : probability_bytes);
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
      if (kWithShares && loss.is_soft) {
        const char* const from = static_cast<const char*>(p.target.data) + int64_t{tile} * rows * probability_bytes;
        warp_copy(lane, reinterpret_cast<uint16_t*>(stage + size * sizeof(E)), reinterpret_cast<const uint16_t*>(from),
                  count * probability_bytes / 2,
                  [](uint16_t* to, const uint16_t* from) { __pipeline_memcpy_async(to, from, kVectorBytes); });
      }
    }
    __pipeline_commit();
  };
  fetch(first, stages);
  const int32_t rotation = kWithShares ? first_of_single<E>(classes) : classes % 4 == 0 ? rotation_of<E>(classes) : 0;
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
        if (kWithShares && loss.is_soft) {
          task.counts = is_selected(p, task);
        } else {
          take_target(p, task, index_of(p, task));
        }
        if (task.held) {
          const E* const kept = gradient + (int64_t{tile} * rows + i) * classes;
          for (int32_t j = 0; gradient && j < classes; ++j) row[j] = kept[j];
          continue;
        }
      }
      if constexpr (kWithShares) {
        OperandReader<E> reader(p, loss, task.at);
        const char* const probabilities = stage + size * sizeof(E) + i * probability_bytes;
        if (loss.is_soft) reader.is_at({probabilities, p.target.dtype}, 1);
        const auto operand = [&](int32_t j) {
          if (!loss.is_soft) return reader.operand_at(j);
          if (p.target.dtype == DType::Float32) return reinterpret_cast<const float*>(probabilities)[j];
          return widen<float>(reinterpret_cast<const E*>(probabilities)[j]);
        };
        const auto put = [&](int32_t j, float gradient) { row[j] = narrow<E>(gradient); };
        const StagedRow<E, decltype(operand)> staged = {row, 1, classes, rotation, reader, operand};
        add_row<false>(p, task, staged.take(p, loss, factor, task, put), sum);
        continue;
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
