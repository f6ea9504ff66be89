// Overlap on a CPU.
#pragma once

#include "core/overlap.h"
#include "cpu/engine.h"

namespace cudaloss::cpu {

// The sums, or the gradients; and a loss of the sums.
void overlap(const Overlap& pass, ParallelFor parallel_for);
void overlap_loss(const OverlapLoss& loss);

}  // namespace cudaloss::cpu
