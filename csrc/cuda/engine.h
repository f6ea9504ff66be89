// The CUDA engine's entry points, one set for each loss. No tensors here: pointers, sizes and a stream.
#pragma once

#include <cstdint>

#include "core/class_block.h"
#include "core/pass.h"

namespace cudaloss::cuda {

using Stream = void*;  // cudaStream_t; sources without CUDA headers include this header

// The memory of a reduction over several blocks, in addition to its operands.
struct Workspace {
  void* partials;    // one for each block, or one for each part of a segment
  void* folded;      // one for each block of the second launch, if there is one
  unsigned* ticket;  // 0 before and after; null: one more launch instead
};

// Where a planned launch gets its Workspace.
struct Memory {
  Workspace (*take)(void* context, int64_t partials, int64_t partial_bytes);
  void* context;

  // For partial sums of type P; a single one needs none.
  template <class P>
  Workspace of(int64_t partials) const {
    return partials == 1 ? Workspace{} : take(context, partials, sizeof(P));
  }
};

template <template <class> class Loss, bool kAll>
void pass(const Pass& request, const Memory& memory, Stream stream);

// The same for a loss of rows.
template <class Loss>
void row_pass(const Pass& request, const Memory& memory, Stream stream);

// For a part of the classes (Pass::part).
void vocabulary_pass(const Pass& request, const Memory& memory, Stream stream);

// The sums of some classes of each row, or the gradients; and function(index) for each index below `count`.
void class_block(const ClassBlock& block, Stream stream);
template <class Function>
void each(const Function& function, int64_t count, Stream stream);

void count(const Count& request, const Memory& memory, Stream stream);

bool is_capturing(Stream stream);
unsigned long long stream_id(Stream stream);  // unique among the streams of a device
// On the current device: the workspace of the index-th stream, with plan::kCountedBlocks partial sums; and the index-th
// ticket for a captured launch. Null if there are no more.
Workspace stream_workspace(int64_t index);
unsigned* capture_ticket(int64_t index);

// On the current device: the slots of the index-th stream, the slot of the index-th captured forward, and all of these.
// Null if there are no more.
constexpr int64_t kSlotsOfStream = 1024;
Prediction slots_of_stream(int64_t index);
Prediction slot_of_capture(int64_t index);
Prediction slots_of_captures();

}  // namespace cudaloss::cuda
