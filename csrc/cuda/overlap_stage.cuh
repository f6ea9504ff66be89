// A warp's logits, a voxel for each lane. If 16 bytes hold voxels of one class, those of the warp's next voxels come
// into shared memory meanwhile: they need no registers, and no address for each class.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/overlap_voxels.cuh"

namespace cudaloss::cuda {

namespace overlaps {

template <class E, int kClasses>
struct WarpLogits {
  static constexpr bool kComes = kClasses <= 16;  // more have no room beside a thread's columns of sums
  static constexpr int kStages = !kComes ? 1 : sizeof(E) < sizeof(float) ? 3 : 2;
  static constexpr int kBytes = kStages * kClasses * 32 * sizeof(E);
  const OverlapTask& task;
  const NearVoxels& voxels;
  E* const memory;         // of the warp: kStages of kClasses x 32
  const char* const from;  // of the lane's first 16 bytes, for voxel 0
  uint32_t step;           // from the warp's voxels to its next ones
  int stage = kStages - 1;

  __device__ __forceinline__ WarpLogits(const OverlapTask& task, const NearVoxels& voxels, char* of_block,
                                        uint32_t first, uint32_t step)
      : task(task),
        voxels(voxels),
        memory(reinterpret_cast<E*>(of_block + threadIdx.x / 32 * kBytes)),
        from(NearVoxels::hidden(piece_at(voxels.input, task.input))),
        step(step) {
    if (!comes()) return;
    const int own = static_cast<int>(task.of.classes) * 32, beyond = kClasses * 32 - own;
    for (int i = 0; i < kStages; ++i) {  // classes beyond the last one, which add nothing
      for (int j = lane(); j < beyond; j += 32) place(i)[own + j] = narrow<E>(-INFINITY);
    }
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) load(i, first + static_cast<uint32_t>(i) * step);
  }
  __device__ __forceinline__ static int lane() { return threadIdx.x % 32; }
  __device__ __forceinline__ E* place(int stage) const { return memory + stage * kClasses * 32; }
  // Whether voxels from `first` on come this way: 32 of them.
  __device__ __forceinline__ bool comes() const { return kComes && task.lies_in_vectors; }
  __device__ __forceinline__ bool has(uint32_t first) const { return comes() && first + 32 <= task.voxels; }
  // Goes on to voxels `first`. All lanes have ended their part of those before.
  __device__ __forceinline__ void next(uint32_t first) {
    if constexpr (kComes) {
      if (!task.lies_in_vectors) return;
      __pipeline_wait_prior(kStages - 2);
      __syncwarp();
      load(stage, first + (kStages - 1) * step);
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
  }
  __device__ __forceinline__ void read(uint32_t first, E (&x)[kClasses]) const {
    if (has(first)) {
      const E* const own = place(stage) + lane();
#pragma unroll
      for (int j = 0; j < kClasses; ++j) x[j] = own[j * 32];
    } else {
      const char* const own = voxels.logits_at(first + lane());
#pragma unroll
      for (int j = 0; j < kClasses; ++j) x[j] = read_at(own + task.of_input[j]);
    }
  }
  __device__ __forceinline__ float logit(uint32_t first, int32_t j) const {
    if (has(first)) return widen<float>(place(stage)[j * 32 + lane()]);
    return widen<float>(read_at(voxels.logits_at(first + lane()) + wide_product(j, task.input.of_class)));
  }
  // Gradients take the logits' place, and go to memory.
  __device__ __forceinline__ void write(int32_t j, E gradient) const { place(stage)[j * 32 + lane()] = gradient; }
  __device__ __forceinline__ void store(uint32_t first) const {
    __syncwarp();
    each_piece(place(stage), piece_at(voxels.gradient(), task.gradient), task.gradient, first,
               [](Piece* own, char* to) { *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(own); });
  }

 private:
  using Piece = Vector<E, kVectorBytes / sizeof(E)>;
  static constexpr int kOfClass = 32 * sizeof(E) / kVectorBytes;  // pieces

  template <class Byte>
  __device__ __forceinline__ static Byte* piece_at(Byte* sample, const NearStrides& stride) {
    return sample + lane() % kOfClass * kVectorBytes + wide_product(lane() / kOfClass, stride.of_class);
  }
  // Visits the lane's pieces of the classes, here and there: a class has kOfClass, one lane after another.
  template <class Byte, class Visit>
  __device__ __forceinline__ void each_piece(E* here, Byte* there, const NearStrides& stride, uint32_t first,
                                             const Visit& visit) const {
    constexpr int kAtOnce = 32 / kOfClass;  // classes
    Byte* const own = there + wide_product(static_cast<int32_t>(first), sizeof(E));
    const int32_t more = static_cast<int32_t>(task.of.classes) - lane() / kOfClass;
#pragma unroll
    for (int j = 0; j < kClasses; j += kAtOnce) {
      if (j < more) visit(reinterpret_cast<Piece*>(here) + lane() + j * kOfClass, own + int64_t{j} * stride.of_class);
    }
  }
  __device__ __forceinline__ void load(int stage, uint32_t first) const {
    if (has(first)) {
      each_piece(place(stage), from, task.input, first,
                 [](Piece* to, const char* from) { __pipeline_memcpy_async(to, from, kVectorBytes); });
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
