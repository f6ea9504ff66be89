// The CUDA engine's entry points, one set a loss. No tensors here: pointers, sizes and a stream.
#pragma once

#include <cstdint>

#include "core/pass.h"

namespace cudaloss::cuda {

using Stream = void*;  // cudaStream_t; this header is read by sources that no CUDA header reaches

// Memory that a reduction of several blocks needs beside its operands.
struct Workspace {
  void* partials;    // one a block, or one a part of a segment
  void* folded;      // one a block of the second launch, where there is one
  unsigned* ticket;  // 0 before and after; null: one more launch instead
};

// Where a launch gets it, once it is planned.
struct Memory {
  Workspace (*take)(void* context, int64_t partials, int64_t partial_bytes);
  void* context;

  // For partials of type P; one needs none.
  template <class P>
  Workspace of(int64_t partials) const {
    return partials == 1 ? Workspace{} : take(context, partials, sizeof(P));
  }
};

template <template <class> class Loss, bool kAll>
void pass(const Pass& request, const Memory& memory, Stream stream);

// The same of a loss of rows.
template <class Loss>
void row_pass(const Pass& request, const Memory& memory, Stream stream);

// Of a part of the classes (Pass::part).
void vocabulary_pass(const Pass& request, const Memory& memory, Stream stream);

void count(const Count& request, const Memory& memory, Stream stream);

bool is_capturing(Stream stream);
unsigned long long stream_id(Stream stream);  // unique among the streams of a device
// Of the current device: the index-th stream's own workspace, of plan::kCountedBlocks partials, and the index-th ticket
// for a captured launch. Null where there are no more.
Workspace stream_workspace(int64_t index);
unsigned* capture_ticket(int64_t index);

}  // namespace cudaloss::cuda
