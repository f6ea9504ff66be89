#include "core/vocabulary_part.h"
#include "cpu/rows_of_classes.h"

namespace cudaloss::cpu {

void vocabulary_pass(const Pass& request, ParallelFor parallel_for) {
  classes_pass<vocabulary_part>(request, parallel_for);
}

}  // namespace cudaloss::cpu
