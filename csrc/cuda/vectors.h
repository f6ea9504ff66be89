// A pass over rows of vectors, for any loss that reads them.
#pragma once

#include "core/vectors.h"
#include "cuda/engine.h"

namespace cudaloss::cuda {

void any_vectors_pass(const Pass& request, VectorsOf vectors, bool needs_w, const Memory& memory, Stream stream);

}  // namespace cudaloss::cuda
