// What differs between nvcc and a host compiler, in one place.
#pragma once

#if defined(__CUDACC__)
#define CUDALOSS_INLINE __host__ __device__ __forceinline__
#else
#define CUDALOSS_INLINE inline __attribute__((always_inline))
#endif

// Host loops are compiled once per x86-64 level and picked when the library loads, so that one wheel
// uses AVX-512 where it is and still starts on a machine without AVX.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#define CUDALOSS_MULTIVERSION __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CUDALOSS_MULTIVERSION
#endif
