// The CUDA engine's entry points, one set a loss. No tensors here: pointers, sizes and a stream.
#pragma once

#include <cstdint>

#include "core/request.h"

namespace cudaloss::cuda {

using Stream = void*;  // cudaStream_t; this header is read by sources that no CUDA header reaches

// Bytes of scratch memory that `reduce` needs; 0 where one block does it all.
int64_t reduce_workspace(const Forward& request);

template <template <class> class Loss>
void reduce(const Forward& request, void* workspace, Stream stream);

template <template <class> class Loss>
void elementwise(const Forward& request, Stream stream);

template <template <class> class Loss>
void backward(const Backward& request, Stream stream);

}  // namespace cudaloss::cuda
