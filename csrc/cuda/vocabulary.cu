#include "core/vocabulary_part.h"
#include "cuda/rows_of_classes.cuh"

namespace cudaloss::cuda {

void vocabulary_pass(const Pass& request, const Memory& memory, Stream stream) {
  classes_pass<vocabulary_part>(request, memory, stream);
}

}  // namespace cudaloss::cuda
