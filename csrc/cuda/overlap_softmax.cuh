// Overlap of a softmax over up to 32 classes with a target of indices: a voxel's probabilities in a thread's registers.
// H200, (4, 14, 128, 128, 128), forward and step: fp32 0.142 and 0.43 ms (the bytes that must move at the speed of
// torch.add: 0.123 and 0.354), bf16 0.118 and 0.307 (0.069 and 0.193). Memory limits fp32's sums, instructions bf16
// (two of three slots are used). Two bf16 voxels a thread, whose logits are one word, need a third more registers:
// 0.117 and 0.335 ms.
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
  static constexpr int kClasses = kNearSizes[kPlace].classes;
  static constexpr int kLeast = kPlace == 0 ? 1 : kNearSizes[kPlace - 1].classes + 1;  // fewer have a smaller kernel
  const OverlapTask& task;
  float e[kClasses];
  Reference reference;
  float max, sum, others;  // sums of exp, in the reference of the maximum: of all classes, and without one

  // Exponentials of the logits; `scale` makes probabilities of them.
  __device__ __forceinline__ Probabilities(const OverlapTask& task, const E (&read)[kClasses]) : task(task) {
#pragma unroll
    for (int j = 0; j < kClasses; ++j) e[j] = widen<float>(read[j]);
    max = e[0];
#pragma unroll
    for (int j = 1; j < kClasses; ++j) max = max_or_nan(max, e[j]);
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
    for (int j = 0; j < kClasses; ++j) all = j < kLeast ? all + value(j) : fused(value(j), task.counts[j], all);
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

// What a voxel adds to the sums of its own class goes to a column of the thread in shared memory. A thread adds some
// voxels in float, and their rounding errors differ from thread to thread.
constexpr int kVoxelsOfSums = 32;
template <class E, int kPlace, bool kHasEntropy>
__global__ void __launch_bounds__(kThreads, kNearSizes[kPlace].blocks_of_sums)
    softmax_sums(const __grid_constant__ OverlapTask task) {
  constexpr int kClasses = kNearSizes[kPlace].classes;
  constexpr int kChunk = kClasses < 16 ? kClasses : 16, kChunks = kClasses / kChunk, kTables = kHasEntropy ? 3 : 2;
  const Overlap& p = task.of;
  extern __shared__ __align__(16) char memory[];
  release_next();
  const int64_t sample = blockIdx.x / task.blocks;
  const auto classes = static_cast<int32_t>(p.classes);
  const NearVoxels voxels(task, sample);
  float* const column = reinterpret_cast<float*>(memory) + threadIdx.x;
  const auto of_class = [&](int k, int j) -> float& { return column[(k * kClasses + j) * kThreads]; };
#pragma unroll
  for (int i = 0; i < kTables * kClasses; ++i) column[i * kThreads] = 0.0f;
  double of_input[kChunks] = {}, of_tables[kTables][kChunks] = {};
  float sums[kClasses] = {};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t begin = blockIdx.x % task.blocks * kThreads + warp * 32, step = task.blocks * kThreads;
  char* const behind = memory + kTables * kClasses * kThreads * sizeof(float);
  WarpLogits<E, kClasses> logits(task, voxels, behind, begin, step);
  const auto target_at = [&](uint32_t v) { return v < task.voxels ? voxels.target_at(v) : NearTarget{0, 0}; };
  NearTarget next = target_at(begin + lane);
  int added = 0;
#pragma unroll 1
  for (uint32_t first = begin; first < task.voxels; first += step) {
    const NearTarget target = next;
    next = target_at(first + step + lane);
    logits.next(first);
    if (first + lane < task.voxels) {
      E read[kClasses];
      logits.read(first, read);
      Probabilities<E, kPlace, kHasEntropy> row(task, read);
      if (target.counts(p)) {
        const int32_t index = target.of_classes(p);
        const bool has_own = index >= 0;
        const float x = has_own ? logits.logit(first, index) : 0.0f, own = has_own ? row.exp_of(x) : 0.0f;
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
        if (has_own) {
          of_class(0, index) += own * scale;
          of_class(1, index) += 1.0f;
          if constexpr (kHasEntropy) {
            const float found = row.entropy(x, own);
            of_class(2, index) += select(scale == scale, found, scale);
          }
        }
      }
    }
    if (++added % kVoxelsOfSums != 0 && first + step < task.voxels) continue;
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      float value[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        value[i] = sums[chunk * kChunk + i];
        sums[chunk * kChunk + i] = 0.0f;
      }
      of_input[chunk] += sum_of_each<kChunk>(value);
#pragma unroll
      for (int k = 0; k < kTables; ++k) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          float& own = of_class(k, chunk * kChunk + i);
          value[i] = own;
          own = 0.0f;
        }
        of_tables[k][chunk] += sum_of_each<kChunk>(value);
      }
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
    own[kBoth] = of_tables[0][chunk], own[kOfInput] = of_input[chunk], own[kOfTarget] = of_tables[1][chunk];
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
  // Classes side by side, and voxels behind each other: a warp stores its rows together, through shared memory.
  const bool lies_in_rows = p.gradient_stride[kClass] == 1 && p.gradient_stride[kInner] == classes && p.outer == 1;
  const NearVoxels voxels(task, sample);
  const int lane = threadIdx.x % 32;
  const uint32_t begin = blockIdx.x % task.blocks * kThreads + threadIdx.x - lane, step = task.blocks * kThreads;
  WarpLogits<E, kClasses> logits(task, voxels, memory, begin, step);
  E* const row_of_warp = logits.memory;
  const double by = p.factor();
  for (int i = threadIdx.x; i < kOverlapSums * kClasses; i += kThreads) {
    const bool has = i < kOverlapSums * classes;
    slopes[i % kOverlapSums][i / kOverlapSums] =
        has ? static_cast<float>(p.grads[sample * classes * kOverlapSums + i] * by) : 0.0f;
  }
  __syncthreads();
  const auto target_at = [&](uint32_t v) { return v < task.voxels ? voxels.target_at(v) : NearTarget{0, 0}; };
  NearTarget next = target_at(begin + lane);
#pragma unroll 1
  for (uint32_t first = begin; first < task.voxels; first += step) {
    const NearTarget target = next;
    next = target_at(first + step + lane);
    logits.next(first);
    const uint32_t v = first + lane;
    if (v >= task.voxels) break;
    E read[kClasses];
    logits.read(first, read);
    Probabilities<E, kPlace, true> row(task, read);
    row.add_up();
    const int32_t index = target.of_classes(p);
    const bool has_own = index >= 0, counts = target.counts(p);
    const float scale = has_own ? row.scale() : NAN;
    const float own = has_own ? row.exp_of(logits.logit(first, index)) * scale : 0.0f;
    const float more = has_own ? slopes[kBoth][index] : 0.0f;
    const float of_entropy = has_own ? slopes[kEntropy][index] : 0.0f;
    const bool stores_own = has_own && counts;
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
    if (!counts) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) row.e[j] = 0.0f;
    }
    const E at_own = narrow<E>(fused(own, of_own, of_entropy * (own - 1.0f)));
    if (logits.has(first)) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        if (j < row.kLeast || j < classes) logits.write(j, narrow<E>(row.e[j]));
      }
      if (stores_own) logits.write(index, at_own);
      logits.store(first);
      continue;
    }
    if (!lies_in_rows || first + 32 > task.voxels) {
      char* const to = voxels.gradient_at(v);
      const auto store = [&](int64_t of_class, E value) { *reinterpret_cast<E*>(to + of_class) = value; };
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        if (j < row.kLeast || j < classes) store(task.of_gradient[j], narrow<E>(row.e[j]));
      }
      if (stores_own) store(wide_product(index, task.gradient.of_class), at_own);
      continue;
    }
    E* const row_of_thread = row_of_warp + lane * classes;
#pragma unroll
    for (int j = 0; j < kClasses; ++j) {
      if (j < row.kLeast || j < classes) row_of_thread[j] = narrow<E>(row.e[j]);
    }
    if (stores_own) row_of_thread[index] = at_own;
    __syncwarp();
    E* const to = reinterpret_cast<E*>(voxels.gradient_at(first));
    for (int i = lane; i < 32 * classes; i += 32) to[i] = row_of_warp[i];
    __syncwarp();
  }
}

}  // namespace overlaps

}  // namespace cudaloss::cuda
