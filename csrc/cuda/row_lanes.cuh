// The threads of a row, and their common results. In kernels for rows of any strides they are some lanes of a warp, or
// a block.
#pragma once

#include "cuda/accessor.cuh"
#include "cuda/row_parameters.cuh"

namespace cudaloss::cuda {

constexpr int kGeneralThreads = 512;

__device__ __forceinline__ float max_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a ? a : b > a || b != b ? b : a;
#endif
}

__device__ __forceinline__ double max_or_nan(double a, double b) { return a != a || a > b ? a : b; }

__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ double plus(double a, double b) { return a + b; }
template <class F>
__device__ __forceinline__ WithRest<F> plus(WithRest<F> a, WithRest<F> b) {
  const F sum = a.value + b.value, added = sum - a.value;
  return {sum, (a.rest + b.rest) + ((a.value - (sum - added)) + (b.value - added))};
}

__device__ __forceinline__ void add_to(float& sum, float term) { sum += term; }
__device__ __forceinline__ void add_to(double& sum, double term) { sum += term; }
__device__ __forceinline__ void add_to(Sum& sum, double term) { sum.add(term); }

// Shuffles a value of any number of words.
template <class V>
__device__ __forceinline__ V neighbour(const V& x, int distance) {
  V out;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(V) / 4); ++i) {
    reinterpret_cast<int*>(&out)[i] = __shfl_xor_sync(~0u, reinterpret_cast<const int*>(&x)[i], distance);
  }
  return out;
}

// Joins the values of `lanes` neighbouring threads of a warp and gives all of them the result.
template <class V, class Join>
__device__ __forceinline__ V joined_in_warp(V x, int lanes, const Join& join) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    if (distance < lanes) x = join(x, neighbour(x, distance));
  }
  return x;
}

// Joins the values of a row's threads (some lanes of a warp, or all kThreads) and gives all of them the result.
template <int kThreads = kGeneralThreads, class V, class Join>
__device__ __forceinline__ V together(V x, int lanes, const Join& join) {
  if (lanes >= 32) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x = join(x, neighbour(x, distance));
  } else {
    for (int distance = lanes / 2; distance > 0; distance /= 2) x = join(x, neighbour(x, distance));
  }
  if (lanes <= 32) return x;
  constexpr int kWarps = kThreads / 32;
  __shared__ alignas(V) char shared[kWarps * sizeof(V)];
  V* const of_warp = reinterpret_cast<V*>(shared);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
  __syncthreads();
  x = of_warp[0];
  for (int warp = 1; warp < kWarps; ++warp) x = join(x, of_warp[warp]);
  return x;
}

__device__ __forceinline__ double value_in(double x) { return x; }
__device__ __forceinline__ double value_in(const Sum& x) { return x.over(1.0); }  // also Inf, whose rest is NaN
__device__ __forceinline__ WithRest<double> parts_of(double x) { return {x, 0.0}; }
__device__ __forceinline__ WithRest<double> parts_of(const Sum& x) { return {x.value, x.rest}; }

// ---- host code ---------------------------------------------------------------------------------------------

// How many threads a row has. If the next row is closer than the next class, each row has one: neighbours then read
// side by side.
inline int general_lanes_shift(const Pass& r) {
  const bool is_across =
      r.inner.rank > 0 && std::abs(r.inner.stride[0][kInput]) < std::abs(r.rows.class_stride[kInput]);
  const int64_t rows = r.inner.count() * r.segments.count();
  if (r.rows.classes <= 8 || (is_across && rows * 64 >= r.rows.classes && rows >= 4096)) return 0;
  return r.rows.classes <= 1024 ? 5 : 9;
}

// Whether a row's elements, the first at `data`, are aligned 16-byte vectors of n elements.
inline bool lies_in_vectors(const Pass& r, const void* data, Place place, int64_t n) {
  if (r.rows.class_stride[place] != 1) return false;
  for (const Dims* dims : {&r.inner, &r.segments}) {
    for (int d = 0; d < dims->rank; ++d) {
      if (dims->stride[d][place] % n != 0) return false;
    }
  }
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
}

// Whether a row's elements are contiguous, if there is data, and at the same place in vectors of n as the input's.
inline bool lies_like_input(const Pass& r, const void* data, Place place, int64_t n) {
  const auto within = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes; };
  if (!data) return true;
  if (r.rows.class_stride[place] != 1 || within(data) != within(r.input.data)) return false;
  for (const Dims* dims : {&r.inner, &r.segments}) {
    for (int d = 0; d < dims->rank; ++d) {
      if ((dims->stride[d][place] - dims->stride[d][kInput]) % n != 0) return false;
    }
  }
  return true;
}

}  // namespace cudaloss::cuda
