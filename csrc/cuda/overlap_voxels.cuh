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

// The kernels whose threads keep a voxel's probabilities in registers, up to `classes` of them. A processor holds some
// blocks of the sums, and of the gradient; all samples together have as many blocks of the sums as fit, because with
// twice as many 16 and 32 classes take 1.1 times as long.
struct NearSize {
  int classes, blocks_of_sums, blocks_of_gradient;
  int64_t all_blocks;
};
constexpr NearSize kNearSizes[] = {{4, 8, 8, 2048}, {16, 5, 5, 660}, {32, 4, 5, 528}};
constexpr int kLastNear = sizeof kNearSizes / sizeof *kNearSizes - 1;
constexpr int kNearClasses = kNearSizes[kLastNear].classes;
// The place of the smallest size that holds the classes.
constexpr int near_place(int64_t classes) {
  int place = 0;
  while (place < kLastNear && classes > kNearSizes[place].classes) ++place;
  return place;
}
// How far apart neighbours of one tensor are, in bytes.
struct NearStrides {
  int64_t sample, of_pieces;  // of_pieces: from a lane's 16 bytes to its next ones (WarpLogits)
  int32_t of_class, inner, outer;
};

// How a warp's voxels lie among its lanes, and their logits in shared memory. Each number is a constant of the launch:
// with choices in the kernel, dense bf16 took 1.02 times as long.
struct LogitsOrder {
  bool in_rows;                   // a voxel's classes lie side by side, and voxels behind each other
  int32_t next_lane, next_voxel;  // voxels, from a lane to the next one, and from a lane's voxel to its next one
  int32_t of_voxel, of_class;     // elements, from a voxel or a class to the next one
};
// The pass in the form for its kernels.
struct OverlapTask {
  Overlap of;
  FastDivmod by_inner;
  uint32_t voxels, blocks;  // of a sample, or of one class of it
  double* partials;
  // For NearVoxels, and so that a class costs no comparison: a place beyond the last class has this one again, and
  // `counts` is 0 there, otherwise 1.
  NearStrides input, target, mask, gradient;
  bool has_outer;
  bool comes;  // the logits come into shared memory (WarpLogits)
  LogitsOrder order;
  int64_t of_input[kNearClasses], of_gradient[kNearClasses];  // bytes
  float counts[kNearClasses];
};

// -1: not a class.
__device__ __forceinline__ int32_t class_of(const Overlap& p, int64_t index) {
  return static_cast<uint64_t>(index) < static_cast<uint64_t>(p.classes) ? static_cast<int32_t>(index) : -1;
}
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
    found.index = class_of(p, index);
  }
  return found;
}
// a b. From C++ nvcc made four instructions, because it extends a factor once for all products.
__device__ __forceinline__ int64_t wide_product(int32_t a, int32_t b) {
  int64_t product;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
}
// The voxels of a sample whose strides fit in 32 bits. Places are hidden from the compiler: it would compute the
// sample's again for each voxel, and add each class's offset to all parts of a voxel's.
struct NearVoxels {
  const OverlapTask& task;
  const char *input, *target;  // where the sample begins
  int64_t sample;

  __device__ __forceinline__ NearVoxels(const OverlapTask& task, int64_t sample)
      : task(task),
        input(hidden(static_cast<const char*>(task.of.input.data) + sample * task.input.sample)),
        target(hidden(static_cast<const char*>(task.of.target.data) + sample * task.target.sample)),
        sample(sample) {}

  // The targets of voxels that are so far apart. One that does not count has the index that is ignored.
  template <int kCount>
  __device__ __forceinline__ void read_targets(uint32_t first, int32_t apart, int64_t (&index)[kCount]) const {
    const Overlap& p = task.of;
    const bool are_voxels = first + (kCount - 1) * apart < task.voxels;
    if (are_voxels && !task.has_outer && p.target.dtype == DType::Int64) {
      const char* const own = place(target, task.target, first);
      __builtin_assume(__isGlobal(own));  // which is not known of a hidden place
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        index[i] = *reinterpret_cast<const int64_t*>(own + i * wide_product(apart, task.target.inner));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const uint32_t v = first + i * apart;
        index[i] = p.ignore_index;
        if (v >= task.voxels) continue;
        Operand own = p.target;
        own.data = place(target, task.target, v);
        index[i] = index_at(own, 0);
      }
    }
    if (!p.mask) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const uint32_t v = first + i * apart;
      if (v >= task.voxels) continue;
      const int64_t at = place(sample * task.mask.sample, task.mask, v);
      if (!p.mask[at]) index[i] = p.ignore_index;
    }
  }
  // A product for each class, in place of a sum, made bf16 1.1 times slower.
  __device__ __forceinline__ const char* logits_at(uint32_t v) const { return hidden(place(input, task.input, v)); }
  __device__ __forceinline__ char* gradient() const {
    return static_cast<char*>(task.of.gradient.data) + sample * task.gradient.sample;
  }
  __device__ __forceinline__ char* gradient_at(uint32_t v) const { return hidden(place(gradient(), task.gradient, v)); }
  template <class Byte>
  __device__ __forceinline__ static Byte* hidden(Byte* at) {
    return reinterpret_cast<Byte*>(anew(reinterpret_cast<uintptr_t>(at)));
  }

 private:
  template <class Begin>
  __device__ __forceinline__ Begin place(Begin begin, const NearStrides& stride, uint32_t v) const {
    if (!task.has_outer) return begin + wide_product(static_cast<int32_t>(v), stride.inner);
    const auto outer = static_cast<int32_t>(task.by_inner.quotient(v));
    const int32_t inner = static_cast<int32_t>(v) - outer * static_cast<int32_t>(task.of.inner);
    return begin + wide_product(inner, stride.inner) + wide_product(outer, stride.outer);
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
