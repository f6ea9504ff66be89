#include "cuda/fold.cuh"
#include "cuda/launch.h"

namespace cudaloss::cuda {
namespace {

// Uses module memory, not the allocator's. Memory allocated at a stream's first launch could come from a private pool
// (of a graph, for example), which could then never be freed. Tickets are 0 when the module is loaded, and again after
// every use.
constexpr int64_t kStreams = 32;
struct StreamScratch {
  unsigned ticket;
  Sum partials[plan::kCountedBlocks];
};
__device__ __align__(16) char stream_scratch[kStreams * sizeof(StreamScratch)];  // 512 KiB

constexpr int64_t kCaptureTickets = 1 << 14;
__device__ unsigned capture_tickets[kCaptureTickets];

// The grad_outputs that forwards expect: those of the streams, then those of captures. 384 KiB.
constexpr int64_t kCaptureSlots = 1 << 14, kStreamSlots = kStreams * kSlotsOfStream;
struct Slots {
  double grad_output[kStreamSlots + kCaptureSlots];
  constexpr Slots() : grad_output() {
    for (double& one : grad_output) one = 1.0;
  }
};
__device__ Slots slots;

// The address of a symbol on the current device; null if it is not available: then a reduction takes two launches, and
// a forward expects 1.
template <class Symbol>
char* address(const Symbol& symbol) {
  void* found = nullptr;
  if (cudaGetSymbolAddress(&found, symbol) == cudaSuccess) return static_cast<char*>(found);
  (void)cudaGetLastError();
  return nullptr;
}

template <class P, class Store>
__global__ void __launch_bounds__(plan::kFoldThreads)
    fold_kernel(const P* partials, int64_t count, Fold<P, Store> fold) {
  release_next();
  wait_for_prior();
  const int64_t begin = blockIdx.x * plan::kFoldTile;
  const int64_t length = min(count - begin, plan::kFoldTile);
  grid_reduce_and_store<plan::kFoldThreads>(sum_partials<plan::kFoldThreads, plan::kFoldTile>(partials + begin, length),
                                            fold);
}

template <class P, class Store>
__global__ void __launch_bounds__(plan::kSegmentFoldThreads)
    fold_segments_kernel(const P* partials, int64_t segments, int64_t parts, Store store) {
  release_next();
  wait_for_prior();
  P sum = {};
  for (int64_t part = threadIdx.x; part < parts; part += plan::kSegmentFoldThreads) {
    sum = sum + partials[part * segments + blockIdx.x];
  }
  const P total = block_sum<plan::kSegmentFoldThreads, P>(sum);
  if (threadIdx.x == 0) store(total, blockIdx.x);
}

}  // namespace

bool is_capturing(Stream stream) {
  if (stream == nullptr) return false;  // the legacy default stream cannot be captured
  cudaStreamCaptureStatus status;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "capture status");
  return status != cudaStreamCaptureStatusNone;
}

unsigned long long stream_id(Stream stream) {
  unsigned long long id = reinterpret_cast<uintptr_t>(stream);
#if CUDART_VERSION >= 12000
  // Unlike the handle, the id is never given to another stream.
  if (stream != nullptr) check(cudaStreamGetId(static_cast<cudaStream_t>(stream), &id), "stream id");
#endif
  return id;
}

Workspace stream_workspace(int64_t index) {
  char* const all = index < kStreams ? address(stream_scratch) : nullptr;
  if (all == nullptr) return {};
  StreamScratch* const scratch = reinterpret_cast<StreamScratch*>(all) + index;
  return {scratch->partials, scratch->partials, &scratch->ticket};
}

unsigned* capture_ticket(int64_t index) {
  char* const all = index < kCaptureTickets ? address(capture_tickets) : nullptr;
  return all ? reinterpret_cast<unsigned*>(all) + index : nullptr;
}

Prediction slots_of_stream(int64_t index) {
  char* const all = index < kStreams ? address(slots) : nullptr;
  return all ? Prediction{reinterpret_cast<double*>(all), index * kSlotsOfStream, kSlotsOfStream, nullptr}
             : Prediction{};
}
Prediction slots_of_captures() {
  char* const all = address(slots);
  return all ? Prediction{reinterpret_cast<double*>(all), kStreamSlots, kCaptureSlots, nullptr} : Prediction{};
}
Prediction slot_of_capture(int64_t index) {
  Prediction own = index < kCaptureSlots ? slots_of_captures() : Prediction{};
  own.first += index;
  return own;
}

template <class P, class Store>
void fold(int64_t count, const Store& store, const Workspace& workspace, Stream stream) {
  const int64_t blocks = plan::fold_blocks(count);
  const P* const partials = static_cast<const P*>(workspace.partials);
  P* const folded = static_cast<P*>(workspace.folded);
  const Fold<P, Store> last = {folded, workspace.ticket, store};
  launch(fold_kernel<P, Store>, Start::Behind, blocks, plan::kFoldThreads, stream, partials, count, last);
  if (blocks > 1 && !workspace.ticket) {
    launch(fold_kernel<P, Store>, Start::Behind, 1, plan::kFoldThreads, stream, static_cast<const P*>(folded), blocks,
           last);
  }
}

template <class P, class Store>
void fold_segments(int64_t segments, int64_t parts, const Store& store, const Workspace& workspace, Stream stream) {
  launch(fold_segments_kernel<P, Store>, Start::Behind, segments, plan::kSegmentFoldThreads, stream,
         static_cast<const P*>(workspace.partials), segments, parts, store);
}

template void fold<double>(int64_t, const Quotient&, const Workspace&, Stream);
template void fold<Sum>(int64_t, const Quotient&, const Workspace&, Stream);
template void fold<double>(int64_t, const SegmentLoss&, const Workspace&, Stream);
template void fold<Sum>(int64_t, const SegmentLoss&, const Workspace&, Stream);
template void fold<double>(int64_t, const SegmentDivisor&, const Workspace&, Stream);
template void fold<Sum>(int64_t, const SegmentDivisor&, const Workspace&, Stream);
template void fold_segments<double>(int64_t, int64_t, const SegmentLoss&, const Workspace&, Stream);
template void fold_segments<Sum>(int64_t, int64_t, const SegmentLoss&, const Workspace&, Stream);
template void fold_segments<double>(int64_t, int64_t, const SegmentDivisor&, const Workspace&, Stream);
template void fold_segments<Sum>(int64_t, int64_t, const SegmentDivisor&, const Workspace&, Stream);

}  // namespace cudaloss::cuda
