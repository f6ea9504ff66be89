// The voxels of overlap: where they are, what their targets are, and the sums of a warp and of a block.
#pragma once

#include "cuda/overlap.h"
#include "cuda/row_parameters.cuh"

namespace cudaloss::cuda {

namespace overlaps {

// A block has some tiles of one sample's voxels, or of one class's. A thread adds a few voxels in float, so that no
// rounding of a long float sum remains; then the sums are double.
constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kVoxels = 8;  // of a thread in a tile
constexpr int kTile = kThreads * kVoxels;

template <class F>
struct ScalarBeside {
  using type = float;
};
template <>
struct ScalarBeside<double> {
  using type = double;
};
template <class E>
using Beside = typename ScalarBeside<E>::type;

// The pass in the form for its kernels.
struct OverlapTask {
  Overlap of;
  FastDivmod by_inner;
  uint32_t voxels, blocks;  // of a sample, or of one class of it
  double* partials;
};

// A voxel of a sample, with its place in each tensor.
struct Voxel {
  int64_t input, target, gradient;
  int32_t index;  // of its class; -1: not one of them
  bool counts;
};
__device__ __forceinline__ Voxel voxel_at(const OverlapTask& task, int64_t sample, uint32_t v) {
  const Overlap& p = task.of;
  const uint32_t outer = p.outer > 1 ? task.by_inner.quotient(v) : 0;
  const uint32_t inner = v - outer * static_cast<uint32_t>(p.inner);
  Voxel found = {overlap_offset(p.input_stride, sample, outer, inner),
                 overlap_offset(p.target_stride, sample, outer, inner),
                 overlap_offset(p.gradient_stride, sample, outer, inner), -1, true};
  if (p.mask) found.counts = p.mask[overlap_offset(p.mask_stride, sample, outer, inner)] != 0;
  if (p.has_indices) {
    const int64_t index = index_at(p.target, found.target);
    found.counts = found.counts && index != p.ignore_index;
    if (static_cast<uint64_t>(index) < static_cast<uint64_t>(p.classes)) found.index = static_cast<int32_t>(index);
  }
  return found;
}
// A voxel of a sample whose strides fit in 32 bits, with pointers of its own. They are hidden from the compiler, which
// would add each class's offset to the voxel's before it multiplies by the element's size: seven instructions a load
// in the place of three.
template <class E>
struct NearVoxel {
  const char* logits;
  char* gradient;
  int32_t index;
  bool counts;

  __device__ __forceinline__ float logit(int32_t j, int32_t step) const { return widen<float>(read(j, step)); }
  __device__ __forceinline__ E read(int32_t j, int32_t step) const {
    return *reinterpret_cast<const E*>(logits + int64_t{j} * (step * static_cast<int32_t>(sizeof(E))));
  }
  __device__ __forceinline__ void write(int32_t j, int32_t step, E value) const {
    *reinterpret_cast<E*>(gradient + int64_t{j} * (step * static_cast<int32_t>(sizeof(E)))) = value;
  }
};
template <class E, bool kHasGradient>
struct NearVoxels {
  const OverlapTask& task;
  int64_t input, target, mask, gradient;  // where the sample begins

  __device__ __forceinline__ NearVoxels(const OverlapTask& task, int64_t sample)
      : task(task),
        input(sample * task.of.input_stride[kSample]),
        target(sample * task.of.target_stride[kSample]),
        mask(sample * task.of.mask_stride[kSample]),
        gradient(sample * task.of.gradient_stride[kSample]) {}

  __device__ __forceinline__ NearVoxel<E> at(uint32_t v) const {
    const Overlap& p = task.of;
    const int32_t outer = p.outer > 1 ? static_cast<int32_t>(task.by_inner.quotient(v)) : 0;
    const int32_t inner = static_cast<int32_t>(v) - outer * static_cast<int32_t>(p.inner);
    const auto place = [&](int64_t begin, const int64_t (&stride)[kOverlapDims]) {
      const int64_t found = begin + int64_t{inner} * static_cast<int32_t>(stride[kInner]);
      return p.outer > 1 ? found + int64_t{outer} * static_cast<int32_t>(stride[kOuter]) : found;
    };
    NearVoxel<E> voxel = {};
    const E* const logits = static_cast<const E*>(p.input.data) + place(input, p.input_stride);
    voxel.logits = reinterpret_cast<const char*>(anew(reinterpret_cast<uintptr_t>(logits)));
    if constexpr (kHasGradient) {
      E* const to = static_cast<E*>(p.gradient.data) + place(gradient, p.gradient_stride);
      voxel.gradient = reinterpret_cast<char*>(anew(reinterpret_cast<uintptr_t>(to)));
    }
    const int64_t index = index_at(p.target, place(target, p.target_stride));
    voxel.counts = index != p.ignore_index && (!p.mask || p.mask[place(mask, p.mask_stride)] != 0);
    const bool is_class = static_cast<uint64_t>(index) < static_cast<uint64_t>(p.classes);
    voxel.index = is_class ? static_cast<int32_t>(index) : -1;
    return voxel;
  }
};

template <class F>
__device__ __forceinline__ F target_of(const Overlap& p, const Voxel& voxel, int32_t j) {
  if (p.has_indices) return F(voxel.index == j);
  return number_at<F>(p.target, voxel.target + j * p.target_stride[kClass]);
}
template <class E>
__device__ __forceinline__ const E* logits_at(const Overlap& p, const Voxel& voxel) {
  return static_cast<const E*>(p.input.data) + voxel.input;
}
// A target that is not a class makes all sums NaN, as a row's in cross_entropy.
__device__ __forceinline__ bool is_wrong(const Overlap& p, const Voxel& voxel) {
  return p.has_indices && voxel.index < 0;
}

// ---- sums over a warp and a block ----

// Sums each of n values over a warp, n a power of two up to 16: a lane has the sum of value lane % n. Lanes first share
// out the values, each half of them for half of the lanes; each step is a function of its own, with arrays in
// registers.
template <int kAll, int n, class F>
__device__ __forceinline__ F sum_of_each(const F (&value)[n]) {
  if constexpr (n == 1) {
    F sum = value[0];
#pragma unroll
    for (int distance = kAll; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    return sum;
  } else {
    constexpr int kHalf = n / 2;
    const bool is_upper = threadIdx.x & kHalf;
    F half[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const F sent = select(is_upper, value[i], value[i + kHalf]);
      half[i] = select(is_upper, value[i + kHalf], value[i]) + __shfl_xor_sync(~0u, sent, kHalf);
    }
    return sum_of_each<kAll>(half);
  }
}

// The sums of a block's samples: kOverlapSums for each of `values` classes, in the order of its warps.
__device__ __forceinline__ void store_partials(const OverlapTask& task, const double* of_warps, int64_t values) {
  __syncthreads();
  for (int64_t i = threadIdx.x; i < values; i += kThreads) {
    double sum = of_warps[i];
    for (int warp = 1; warp < kWarps; ++warp) sum += of_warps[warp * values + i];
    task.partials[blockIdx.x * values + i] = sum;
  }
}

}  // namespace overlaps

}  // namespace cudaloss::cuda
