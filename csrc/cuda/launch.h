// One way to start a kernel: on the caller's stream, with an empty exit and an error check.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "cuda/engine.h"

namespace cudaloss::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("cudaloss: ") + what + ": " + cudaGetErrorString(error));
  }
}

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int64_t blocks, int threads, Stream stream, Arguments&&... arguments) {
  if (blocks == 0) return;
  kernel<<<static_cast<unsigned>(blocks), threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<Parameters>(arguments)...);
  check(cudaGetLastError(), "kernel launch");
}

}  // namespace cudaloss::cuda
