// Overlap on a GPU.
#pragma once

#include "core/overlap.h"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// The sums, by way of so many partial ones, or the gradients; and a loss of the sums.
int64_t overlap_partials(const Overlap& pass);
void overlap(const Overlap& pass, double* partials, Stream stream);
// `totals`: memory for those of a batch.
void overlap_loss(const OverlapLoss& loss, double* totals, Stream stream);

}  // namespace cudaloss::cuda
