// The CPU engine's entry points, one set for each loss. No tensors here: `parallel_for` comes from the caller.
#pragma once

#include <cstdint>

#include "core/class_block.h"
#include "core/pass.h"

namespace cudaloss::cpu {

// at::parallel_for's contract: it calls body on sub-ranges of [begin, end), in any order, on any thread.
using ParallelFor = void (*)(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                             void* context);

template <template <class> class Loss>
void pass(const Pass& request, ParallelFor parallel_for);

// The same for a loss of rows.
template <class Loss>
void row_pass(const Pass& request, ParallelFor parallel_for);

// For a part of the classes (Pass::part).
void vocabulary_pass(const Pass& request, ParallelFor parallel_for);

// The sums of some classes of each row, or the gradients; and function(index) for each index below `count`.
void class_block(const ClassBlock& block, ParallelFor parallel_for);
template <class Function>
void each(const Function& function, int64_t count, ParallelFor parallel_for);

void count(const Count& request, ParallelFor parallel_for);

}  // namespace cudaloss::cpu
