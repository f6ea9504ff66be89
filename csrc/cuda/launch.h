// One way to start a kernel: on the caller's stream, not if there is nothing to do, and with an error check.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "core/compatibility.h"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// What an error means for the user of this build; empty if the build is not the reason.
inline std::string meaning_of(cudaError_t error) {
  int device = 0, major = 0, minor = 0, driver = 0;
  (void)cudaDriverGetVersion(&driver);
  if (cudaGetDevice(&device) == cudaSuccess) {
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  (void)cudaGetLastError();  // clears errors of these queries, which an old driver cannot answer
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:  // the same in some drivers
      return compatibility::uncovered(major, minor, compatibility::this_build());
    case cudaErrorUnsupportedPtxVersion:
      return compatibility::old_driver_for_ptx(major, minor, driver, compatibility::this_build());
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
      return compatibility::old_driver(driver, compatibility::this_build());
    case cudaErrorInvalidKernelImage:  // from a driver that cannot undo the kernels' compression
      if (!compatibility::is_old_driver(driver, compatibility::this_build().cuda)) return {};
      return compatibility::old_driver(driver, compatibility::this_build());
    default:
      return {};
  }
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail(cudaError_t error, const char* what) {
  const std::string called = std::string(what) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  const std::string meaning = meaning_of(error);
  throw std::runtime_error(
      "cudaloss: " + (meaning.empty() ? called : meaning + " `python -m cudaloss` says what fits. (" + called + ")"));
}

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(error, what);
}

// Whether a kernel can start while the previous one ends: from compute capability 9.0 on.
inline bool overlaps_launches() {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];  // 0: not yet known; otherwise 1 + the answer
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kDevices) return false;
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    int major = 0, driver = 0;
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDriverGetVersion(&driver);
    constexpr int kCaptures = 12030;  // the first driver that captures such launches into a graph
    known[device].store(answer = 1 + (major >= 9 && driver >= kCaptures), std::memory_order_relaxed);
  }
  return answer == 2;
}

// The most static shared memory of a kernel that is launched with dynamic shared memory, with what CUDA keeps of each
// block's: together they count against the limits. Kernels have up to 4 KB.
constexpr int kOwnShared = 5 * 1024;

// The dynamic shared memory that each of `blocks` blocks on a processor can use.
inline int shared_memory_of(int blocks) {
  int device = 0, of_block = 0, of_processor = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&of_processor, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device),
        "cudaDeviceGetAttribute");
  return std::max(0, std::min(of_block, of_processor / blocks) - kOwnShared);
}

// Starts a kernel. Behind: a kernel that calls wait_for_prior() (fold.cuh) before it reads what the kernel before it,
// one of ours, has written, and before it writes anything. With graph replay, this makes a masked training step of 2^12
// to 2^20 elements 1.0 to 1.7 us faster (H200).
enum class Start { Alone, Behind };
template <class... Parameters, class... Arguments>
void launch_with_shared(void (*kernel)(Parameters...), Start start, int64_t blocks, int threads, int shared_bytes,
                        Stream stream, Arguments&&... arguments) {
  if (blocks == 0) return;
  constexpr int kWithoutAsking = 48 * 1024 - kOwnShared;
  if (shared_bytes > kWithoutAsking) {
    // Always the most: with the call's own size, two threads that launch a kernel with different sizes would undo each
    // other's.
    const int most = std::max(shared_bytes, shared_memory_of(1));
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most), "shared memory");
  }
  cudaLaunchAttribute overlaps = {};
  overlaps.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlaps.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlaps;
  config.numAttrs = start == Start::Behind && overlaps_launches() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "kernel launch");
}
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), Start start, int64_t blocks, int threads, Stream stream,
            Arguments&&... arguments) {
  launch_with_shared(kernel, start, blocks, threads, 0, stream, static_cast<Arguments&&>(arguments)...);
}

}  // namespace cudaloss::cuda
