// A warp's logits: of each lane one voxel, or two of halves, which are one word. If 16 bytes hold voxels of one class,
// or a voxel's classes and then the next one's, the logits of the warp's next voxels come into shared memory meanwhile:
// they need no registers, and no address for each class. H200, steps of (4, 14, 128, 128, 128): bf16 0.252 ms, without
// this 0.308; fp32 0.41 and 0.43; channels last bf16 0.259 and 0.300. With three stages bf16 took 1.02 times as long.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/overlap_voxels.cuh"
#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

namespace overlaps {

// Two results, rounded.
template <class E>
__device__ __forceinline__ uint32_t word_of(float low, float high) {
#if __CUDA_ARCH__ >= 800
  uint32_t word;
  if constexpr (std::is_same_v<E, Half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
#else
  return narrow<E>(low).bits | static_cast<uint32_t>(narrow<E>(high).bits) << 16;
#endif
}

template <class E, int kPlace>
struct WarpLogits {
  static constexpr int kClasses = kNearSizes[kPlace].classes;
  static constexpr int kLeast = kPlace == 0 ? 1 : kNearSizes[kPlace - 1].classes + 1;  // fewer have a smaller kernel
  // With two of 32 classes a thread would have too many registers.
  static constexpr int kOfLane = kClasses <= 16 ? sizeof(uint32_t) / sizeof(E) : 1, kVoxels = 32 * kOfLane;
  static constexpr int kStages = 2, kBytes = kStages * kClasses * kVoxels * sizeof(E);
  using Words = uint32_t[kClasses];
  using Word = std::conditional_t<kOfLane * sizeof(E) == sizeof(uint32_t), uint32_t, BitsOf<E>>;
  const OverlapTask& task;
  const NearVoxels& voxels;
  E* const memory;         // of the warp: kStages of kClasses x kVoxels
  const char* const from;  // of the lane's first 16 bytes, for voxel 0
  int stage = kStages - 1;

  // From the warp's voxels to its next ones.
  __device__ __forceinline__ static uint32_t step(const OverlapTask& task) { return task.blocks * kThreads * kOfLane; }
  __device__ __forceinline__ static uint32_t first_of(const OverlapTask& task) {
    return blockIdx.x % task.blocks * kThreads * kOfLane + threadIdx.x / 32 * kVoxels;
  }
  __device__ __forceinline__ WarpLogits(const OverlapTask& task, const NearVoxels& voxels, char* of_block)
      : task(task),
        voxels(voxels),
        memory(reinterpret_cast<E*>(of_block + threadIdx.x / 32 * kBytes)),
        from(NearVoxels::hidden(piece_at(voxels.input, task.input))) {
    read_targets(first_of(task));
    if (!task.comes) return;
    const int own = static_cast<int>(task.of.classes) * kVoxels, beyond = kClasses * kVoxels - own;
    for (int i = 0; !task.order.in_rows && i < kStages; ++i) {  // classes beyond the last one, which add nothing
      for (int j = lane(); j < beyond; j += 32) place(i)[own + j] = kMinusInfinity<E>;
    }
    load(0, first_of(task));
  }
  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ E* place(int stage) const { return memory + stage * kClasses * kVoxels; }
  // Whether voxels from `first` on come this way: all of the warp's.
  __device__ __forceinline__ bool has(uint32_t first) const { return task.comes && first + kVoxels <= task.voxels; }
  // Their targets. One that does not count has the index that is ignored.
  using Targets = int64_t[kOfLane];
  // Goes on to voxels `first`: once for each of these, from first_of on. Returns the largest logits as a word; what
  // comes next is read meanwhile.
  __device__ __forceinline__ uint32_t take(uint32_t first, Targets& targets, Words& words) {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) targets[i] = ahead[i];
    read_targets(first + step(task));
    go_on(first);
    read(first, words);
    return max_of_words(words);
  }
  __device__ __forceinline__ uint32_t voxel(uint32_t first, int i) const { return first + place_of(i); }
  // Of the lane's voxel i.
  __device__ __forceinline__ static float logit_in(uint32_t word, int i) {
    return widen<float>(bit_cast<E>(static_cast<BitsOf<E>>(word >> (16 * i))));
  }
  __device__ __forceinline__ float logit(uint32_t first, int i, int32_t j) const {
    if (has(first)) return widen<float>(at(i, j));
    return widen<float>(read_at(voxels.logits_at(voxel(first, i)) + wide_product(j, task.input.of_class)));
  }
  // Where voxel i's class j is.
  __device__ __forceinline__ E& at(int i, int32_t j) const { return row_of(i)[j * task.order.of_class]; }
  // Gradients take the logits' place: of all classes, then of the voxel's own one; and go to memory.
  __device__ __forceinline__ void write(const float (&found)[kOfLane][kClasses]) const {
    const auto is_class = [&](int j) { return j < kLeast || j < task.of.classes; };
    if (task.order.in_rows) {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        E* const to = row_of(i);
#pragma unroll
        for (int j = 0; j < kClasses; ++j) {
          if (is_class(j)) to[j] = narrow<E>(found[i][j]);
        }
      }
      return;
    }
    Word* const to = reinterpret_cast<Word*>(place(stage)) + lane();
#pragma unroll
    for (int j = 0; j < kClasses; ++j) {
      if (!is_class(j)) continue;
      if constexpr (kOfLane == 2) {
        to[j * 32] = word_of<E>(found[0][j], found[1][j]);
      } else {
        to[j * 32] = bit_cast<BitsOf<E>>(narrow<E>(found[0][j]));
      }
    }
  }
  __device__ __forceinline__ void write_own(int i, int32_t j, E gradient) const {
    asm volatile("" ::: "memory");  // of another type than the words: the compiler need not keep their order
    at(i, j) = gradient;
  }
  __device__ __forceinline__ void store(uint32_t first) const {
    __syncwarp();
    each_piece(place(stage), piece_at(voxels.gradient(), task.gradient), task.gradient, first,
               [](uint4* own, char* to) { *reinterpret_cast<uint4*>(to) = *own; });
  }

 private:
  static constexpr int kPieces = kVoxels * sizeof(E) / kVectorBytes;  // 16 bytes each, for each class
  static constexpr int kAtOnce = 32 / kPieces;                        // classes of 32 pieces
  Targets ahead;                                                      // of the next voxels

  __device__ __forceinline__ void go_on(uint32_t first) {
    if (!task.comes) return;
    __pipeline_wait_prior(0);
    __syncwarp();
    load(stage, first + step(task));
    stage ^= 1;
  }
  __device__ __forceinline__ void read(uint32_t first, Words& words) const {
    if (has(first) && task.order.in_rows) {
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        const E* const own = row_of(i);
#pragma unroll
        for (int j = 0; j < kClasses; ++j) {
          const E x = j < kLeast || j < task.of.classes ? own[j] : kMinusInfinity<E>;
          words[j] = i == 0 ? bit_cast<BitsOf<E>>(x) : words[j] | bit_cast<BitsOf<E>>(x) << 16;
        }
      }
      return;
    }
    if (has(first)) {
      const Word* const own = reinterpret_cast<const Word*>(place(stage)) + lane();
#pragma unroll
      for (int j = 0; j < kClasses; ++j) words[j] = own[j * 32];
      return;
    }
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const char* const own = voxels.logits_at(min(voxel(first, i), task.voxels - 1));
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        const uint32_t bits = bit_cast<BitsOf<E>>(read_at(own + task.of_input[j]));
        words[j] = i == 0 ? bits : words[j] | bits << 16;
      }
    }
  }
  __device__ __forceinline__ static uint32_t max_of_words(const Words& words) {
    uint32_t max = words[0];
#pragma unroll
    for (int j = 1; j < kClasses; ++j) {
      if constexpr (sizeof(E) < sizeof(float)) {
        max = max_of_pairs<E>(max, words[j]);
      } else {
        max = bit_cast<uint32_t>(max_or_nan(bit_cast<float>(max), bit_cast<float>(words[j])));
      }
    }
    return max;
  }
  __device__ __forceinline__ void read_targets(uint32_t first) {
    voxels.read_targets(voxel(first, 0), task.order.next_voxel, ahead);
  }
  __device__ __forceinline__ int32_t place_of(int i) const {
    return lane() * task.order.next_lane + i * task.order.next_voxel;
  }
  __device__ __forceinline__ E* row_of(int i) const { return place(stage) + place_of(i) * task.order.of_voxel; }
  // The lane's first piece of a sample.
  template <class Byte>
  __device__ __forceinline__ Byte* piece_at(Byte* sample, const NearStrides& stride) const {
    if (task.order.in_rows) return sample + lane() * kVectorBytes;
    return sample + lane() % kPieces * kVectorBytes + wide_product(lane() / kPieces, stride.of_class);
  }
  // Visits the lane's pieces, here and there: every 32nd.
  template <class Byte, class Visit>
  __device__ __forceinline__ void each_piece(E* here, Byte* there, const NearStrides& stride, uint32_t first,
                                             const Visit& visit) const {
    Byte* const own = there + wide_product(static_cast<int32_t>(first), stride.inner);
    const int32_t more = static_cast<int32_t>(task.of.classes) - lane() / kPieces;
#pragma unroll
    for (int i = 0; i * kAtOnce < kClasses; ++i) {
      if (i * kAtOnce < more) visit(reinterpret_cast<uint4*>(here) + lane() + i * 32, own + i * stride.of_pieces);
    }
  }
  __device__ __forceinline__ void load(int stage, uint32_t first) const {
    if (has(first)) {
      each_piece(place(stage), from, task.input, first,
                 [](uint4* to, const char* from) { __pipeline_memcpy_async(to, from, kVectorBytes); });
    }
    __pipeline_commit();
  }
  __device__ __forceinline__ static E read_at(const char* at) {
    using Bits = std::conditional_t<sizeof(E) == 2, unsigned short, float>;
    return bit_cast<E>(__ldg(reinterpret_cast<const Bits*>(at)));
  }
};

}  // namespace overlaps

}  // namespace cudaloss::cuda
