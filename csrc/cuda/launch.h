// One way to start a kernel: on the caller's stream, with an empty exit and an error check.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "core/misfit.h"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// What an error means to whoever installed this build; empty where it does not come from that.
inline std::string misfit_of(cudaError_t error) {
  int device = 0, major = 0, minor = 0, driver = 0;
  (void)cudaDriverGetVersion(&driver);
  if (cudaGetDevice(&device) == cudaSuccess) {
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  }
  (void)cudaGetLastError();  // of the questions, which a driver that is too old does not answer
  switch (error) {
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:  // the same, as some drivers have it
      return misfit::uncovered(major, minor, misfit::this_build());
    case cudaErrorUnsupportedPtxVersion:
      return misfit::old_driver_for_ptx(major, minor, driver, misfit::this_build());
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
      return misfit::old_driver(driver, misfit::this_build());
    case cudaErrorInvalidKernelImage:  // what a driver says that cannot undo the kernels' compression
      if (!misfit::is_old_driver(driver, misfit::this_build().cuda)) return {};
      return misfit::old_driver(driver, misfit::this_build());
    default:
      return {};
  }
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail(cudaError_t error, const char* what) {
  const std::string called = std::string(what) + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  const std::string meaning = misfit_of(error);
  throw std::runtime_error(
      "cudaloss: " + (meaning.empty() ? called : meaning + " `python -m cudaloss` says what fits. (" + called + ")"));
}

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(error, what);
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, Stream stream, Arguments&&... arguments) {
  if (blocks == 0) return;
  kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), "kernel launch");
}

}  // namespace cudaloss::cuda
