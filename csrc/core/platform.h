// What differs between compilers and systems, in one place.
#pragma once

#include <cstdint>  // if this is glibc, any header of the C library defines __GLIBC__

#if defined(__CUDACC__)
#define CUDALOSS_INLINE __host__ __device__ __forceinline__
// Before a template that calls its argument: both run on the host or both in a kernel.
#define CUDALOSS_ON_EITHER_SIDE _Pragma("nv_exec_check_disable")
#define CUDALOSS_INLINE_LAMBDA
#else
#define CUDALOSS_INLINE inline __attribute__((always_inline))
#define CUDALOSS_ON_EITHER_SIDE
#define CUDALOSS_INLINE_LAMBDA __attribute__((always_inline))  // a large one would be a call in every loop
#endif

// Host loops are compiled once per x86-64 level, and the library picks one when it loads. So one wheel uses AVX-512 on
// machines that have it and still starts on a machine without AVX. GCC names the levels since version 12; the choice at
// load time needs glibc.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && \
    !defined(__CUDACC__)
#define CUDALOSS_MULTIVERSION __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CUDALOSS_MULTIVERSION
#endif
