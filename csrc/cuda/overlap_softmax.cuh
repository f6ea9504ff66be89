// Overlap of a softmax over up to 32 classes with a target of indices: a voxel's probabilities in a thread's registers.
// H200, (4, 14, 128, 128, 128), forward and step: fp32 0.134 and 0.41 ms (the bytes that must move at the speed of
// torch.add: 0.123 and 0.354), bf16 0.097 and 0.252 (0.069 and 0.193); channels last 0.132 and 0.38, 0.103 and 0.259.
// Memory limits fp32's sums. bf16's have 230 instructions a voxel, and wait for results more than for memory; sums in
// four chains, and all exponents before the first exp, took 1.01 times as long.
#pragma once

#include "core/log.h"
#include "cuda/overlap_stage.cuh"
#include "cuda/row_exp.cuh"

namespace cudaloss::cuda {

namespace overlaps {

// Loops over all kClasses, without a branch: in a place beyond the last class is this one again, and counts 0 times.
// With an exit after each two classes, (4, 14, 128^3) fp32 took twice the instructions for the sums: each exit moved
// all of their registers.
template <class E, int kPlace, bool kIsPrecise>
struct Probabilities {
  using Logits = WarpLogits<E, kPlace>;
  static constexpr int kClasses = Logits::kClasses;
  const OverlapTask& task;
  float e[kClasses];
  Reference reference;
  float max, sum, others;  // sums of exp, in the reference of the maximum: of all classes, and without one

  // Exponentials of the logits of the lane's voxel i; `scale` makes probabilities of them.
  __device__ __forceinline__ Probabilities(const OverlapTask& task, const typename Logits::Words& words,
                                           uint32_t max_of_words, int i)
      : task(task), max(Logits::logit_in(max_of_words, i)) {
#pragma unroll
    for (int j = 0; j < kClasses; ++j) e[j] = Logits::logit_in(words[j], i);
    // From 64 on x - max is exact for every class that counts, and what x log2(e) loses would be too much for exp_by.
    constexpr float kMost = kIsPrecise ? 64.0f : 0x1p64f;
    const float power = max * ExpParts<float>::log2_e;
    reference = fabsf(max) <= kMost ? Reference{0.0f, kIsPrecise ? rintf(power) : power} : Reference{max, 0.0f};
    if (reference.shift != 0.0f) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) e[j] -= reference.shift;
    }
#pragma unroll
    for (int j = 0; j < kClasses; ++j) e[j] = exp_by(e[j]);
  }
  __device__ __forceinline__ void add_up() {
    sum = sum_of([&](int j) { return e[j]; });
  }
  // From the exponential of the class's logit: one loop, where the others and all would be two.
  __device__ __forceinline__ void add_up(int32_t index, float own) {
    others = sum_of([&](int j) { return select(j == index, 0.0f, e[j]); });
    sum = others + own;
  }
  template <class Value>
  __device__ __forceinline__ float sum_of(const Value& value) const {
    float all = 0.0f;
#pragma unroll
    for (int j = 0; j < kClasses; ++j) all = j < Logits::kLeast ? all + value(j) : fused(value(j), task.counts[j], all);
    return all;
  }
  __device__ __forceinline__ float scale() const { return fabsf(max) <= FLT_MAX ? reciprocal_of(sum) : NAN; }
  __device__ __forceinline__ float exp_of(float x) const { return exp_by(x - reference.shift); }
  // exp(x) in the reference, by the hardware's exp2. For halves and for sums its exponent is rounded once: 2^-24 of its
  // distance from the maximum's, where exp is 1; it is then one of a sum's smaller terms. If kIsPrecise, within 3 ulp:
  // what is lost of x log2(e) comes behind.
  __device__ __forceinline__ float exp_by(float x) const {
    constexpr float kLog2e = ExpParts<float>::log2_e, kLog2eRest = 0x1.4ae0c0p-26f;
    if constexpr (sizeof(E) < sizeof(float) || !kIsPrecise) return fast_exp2(fused(x, kLog2e, -reference.power));
    constexpr float kLowest = -0x1p66f;  // beside -inf the rest would be no number
    x = fmaxf(x, kLowest);
    const float y = x * kLog2e, found = fast_exp2(y - reference.power);
    const float rest = fused(x, kLog2eRest, fused(x, kLog2e, -y));
    return fused(found, rest * ExpParts<float>::ln2, found);
  }
  // -log of the class's probability, from its logit x.
  __device__ __forceinline__ float entropy(float x, float own) const {
    const float ratio = others / own;
    if (!(others > own)) return fast_log(1.0f + ratio, ratio);
    return fast_log(sum, sum - 1.0f) + fused(reference.power, ExpParts<float>::ln2, reference.shift - x);
  }
};

// What a voxel adds to the sums of its own class goes to columns of the thread in shared memory. A thread adds some
// voxels in float, and counts them in a byte; their rounding errors differ from thread to thread.
constexpr int kVoxelsOfSums = 32;
template <class E, int kPlace, bool kHasEntropy>
__global__ void __launch_bounds__(kThreads, kNearSizes[kPlace].blocks_of_sums)
    softmax_sums(const __grid_constant__ OverlapTask task) {
  constexpr int kClasses = kNearSizes[kPlace].classes;
  constexpr int kChunk = kClasses < 16 ? kClasses : 16, kChunks = kClasses / kChunk, kTables = kHasEntropy ? 2 : 1;
  constexpr int kFloats = kTables * kClasses * kThreads * sizeof(float), kCounts = kClasses * kThreads;  // bytes
  const Overlap& p = task.of;
  extern __shared__ __align__(16) char memory[];
  release_next();
  const int64_t sample = blockIdx.x / task.blocks;
  const auto classes = static_cast<int32_t>(p.classes);
  const NearVoxels voxels(task, sample);
  float* const column = reinterpret_cast<float*>(memory) + threadIdx.x;
  uint8_t* const column_of_counts = reinterpret_cast<uint8_t*>(memory) + kFloats + threadIdx.x;
  const auto of_class = [&](int k, int j) -> float& { return column[(k * kClasses + j) * kThreads]; };
  const auto count_of = [&](int j) -> uint8_t& { return column_of_counts[j * kThreads]; };
#pragma unroll
  for (int i = 0; i < kTables * kClasses; ++i) column[i * kThreads] = 0.0f;
#pragma unroll
  for (int j = 0; j < kClasses; ++j) count_of(j) = 0;
  double of_input[kChunks] = {}, of_counts[kChunks] = {}, of_tables[kTables][kChunks] = {};
  float sums[kClasses] = {};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  using Logits = WarpLogits<E, kPlace>;
  Logits logits(task, voxels, memory + kFloats + kCounts);
  int added = 0;
#pragma unroll 1
  for (uint32_t first = Logits::first_of(task); first < task.voxels; first += Logits::step(task)) {
    typename Logits::Targets targets;
    typename Logits::Words words;
    const uint32_t max = logits.take(first, targets, words);
#pragma unroll
    for (int i = 0; i < Logits::kOfLane; ++i) {
      if (targets[i] == p.ignore_index) continue;
      Probabilities<E, kPlace, kHasEntropy> row(task, words, max, i);
      const int32_t index = class_of(p, targets[i]);
      const bool has_own = index >= 0;
      const float x = has_own ? logits.logit(first, i, index) : 0.0f, own = has_own ? row.exp_of(x) : 0.0f;
      if constexpr (kHasEntropy) {
        row.add_up(index, own);
      } else {
        row.add_up();
      }
      const float scale = has_own ? row.scale() : NAN;
      if (p.squares) {
#pragma unroll
        for (int j = 0; j < kClasses; ++j) sums[j] += overlap_of_input(true, row.e[j] * scale);
      } else {
#pragma unroll
        for (int j = 0; j < kClasses; ++j) sums[j] = fused(row.e[j], scale, sums[j]);
      }
      if (!has_own) continue;
      of_class(0, index) += own * scale;
      ++count_of(index);
      if constexpr (kHasEntropy) {
        const float found = row.entropy(x, own);
        of_class(1, index) += select(scale == scale, found, scale);
      }
    }
    if (++added % (kVoxelsOfSums / Logits::kOfLane) != 0 && first + Logits::step(task) < task.voxels) continue;
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const auto take = [&](const auto& at) {  // over the warp; what has been added is 0 again
        float value[kChunk];
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          auto& own = at(chunk * kChunk + i);
          value[i] = static_cast<float>(own);
          own = 0;
        }
        return sum_of_each<kChunk>(value);
      };
      of_input[chunk] += take([&](int j) -> float& { return sums[j]; });
      of_counts[chunk] += take(count_of);
#pragma unroll
      for (int k = 0; k < kTables; ++k) of_tables[k][chunk] += take([&](int j) -> float& { return of_class(k, j); });
    }
  }
  __syncthreads();  // the columns have been read: the sums of the warps take their place
  double* const of_warps = reinterpret_cast<double*>(memory);
  const int values = classes * kOverlapSums;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int j = chunk * kChunk + lane;
    if (lane >= kChunk || j >= classes) continue;
    double* const own = of_warps + warp * values + j * kOverlapSums;
    own[kBoth] = of_tables[0][chunk], own[kOfInput] = of_input[chunk], own[kOfTarget] = of_counts[chunk];
    own[kEntropy] = kHasEntropy ? of_tables[kTables - 1][chunk] : 0.0;
  }
  store_partials(task, of_warps, values);
}

template <class E, int kPlace>
__global__ void __launch_bounds__(kThreads, kNearSizes[kPlace].blocks_of_gradient)
    softmax_gradient(const __grid_constant__ OverlapTask task) {
  constexpr int kClasses = kNearSizes[kPlace].classes;
  const Overlap& p = task.of;
  __shared__ float slopes[kOverlapSums][kClasses];
  extern __shared__ __align__(16) char memory[];
  const int64_t sample = blockIdx.x / task.blocks;
  const auto classes = static_cast<int32_t>(p.classes);
  const NearVoxels voxels(task, sample);
  using Logits = WarpLogits<E, kPlace>;
  Logits logits(task, voxels, memory);
  const double by = p.factor();
  for (int i = threadIdx.x; i < kOverlapSums * kClasses; i += kThreads) {
    const bool has = i < kOverlapSums * classes;
    slopes[i % kOverlapSums][i / kOverlapSums] =
        has ? static_cast<float>(p.grads[sample * classes * kOverlapSums + i] * by) : 0.0f;
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t first = Logits::first_of(task); first < task.voxels; first += Logits::step(task)) {
    typename Logits::Targets targets;
    typename Logits::Words words;
    const uint32_t max = logits.take(first, targets, words);
    float found[Logits::kOfLane][kClasses];
    E at_own[Logits::kOfLane];
    int32_t own_class[Logits::kOfLane];  // -1: none is stored
#pragma unroll
    for (int i = 0; i < Logits::kOfLane; ++i) {
      Probabilities<E, kPlace, true> row(task, words, max, i);
      row.add_up();
      const bool counts = targets[i] != p.ignore_index;  // nor do lanes beyond the last voxel, which have no logit
      const int32_t index = counts ? class_of(p, targets[i]) : -1;
      const bool has_own = index >= 0;
      const float scale = has_own ? row.scale() : NAN;
      const float own = has_own ? row.exp_of(logits.logit(first, i, index)) * scale : 0.0f;
      const float more = has_own ? slopes[kBoth][index] : 0.0f;
      const float of_entropy = has_own ? slopes[kEntropy][index] : 0.0f;
      float mean = own * more, of_own = has_own ? slopes[kOfInput][index] : 0.0f;
      // e becomes the gradient. The voxel's own class has more: `at_own`.
      if (p.squares) {
        const auto slope = [](float of_p, float found) { return overlap_slope(true, 0.0f, of_p, found, 0.0f); };
#pragma unroll
        for (int j = 0; j < kClasses; ++j) {
          row.e[j] *= scale;
          mean = fused(row.e[j], slope(slopes[kOfInput][j], row.e[j]), mean);
        }
#pragma unroll
        for (int j = 0; j < kClasses; ++j) {
          row.e[j] *= slope(slopes[kOfInput][j], row.e[j]) - (mean - of_entropy);
        }
        of_own = slope(of_own, own);
      } else {
        float of_exp = 0.0f;
#pragma unroll
        for (int j = 0; j < kClasses; ++j) of_exp = fused(row.e[j], slopes[kOfInput][j], of_exp);
        mean = fused(of_exp, scale, mean);
        const float less = scale * (mean - of_entropy);
#pragma unroll
        for (int j = 0; j < kClasses; ++j) row.e[j] *= fused(slopes[kOfInput][j], scale, -less);
      }
      of_own += more - mean;
#pragma unroll
      for (int j = 0; j < kClasses; ++j) found[i][j] = counts ? row.e[j] : 0.0f;
      at_own[i] = narrow<E>(fused(own, of_own, of_entropy * (own - 1.0f)));
      own_class[i] = index;
    }
    if (logits.has(first)) {
      logits.write(found);
#pragma unroll
      for (int i = 0; i < Logits::kOfLane; ++i) {
        if (own_class[i] >= 0) logits.write_own(i, own_class[i], at_own[i]);
      }
      logits.store(first);
      continue;
    }
#pragma unroll
    for (int i = 0; i < Logits::kOfLane; ++i) {
      const uint32_t v = logits.voxel(first, i);
      if (v >= task.voxels) break;
      char* const to = voxels.gradient_at(v);
      const auto store = [&](int64_t at, E value) { *reinterpret_cast<E*>(to + at) = value; };
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        if (j < Logits::kLeast || j < classes) store(task.of_gradient[j], narrow<E>(found[i][j]));
      }
      if (own_class[i] >= 0) store(wide_product(own_class[i], task.gradient.of_class), at_own[i]);
    }
  }
}

}  // namespace overlaps

}  // namespace cudaloss::cuda
