#include "cuda/fold.cuh"

#include "cuda/launch.h"

namespace cudaloss::cuda {
namespace {

// Zero from the moment the module is loaded, and again after every use. A captured launch keeps its ticket for ever,
// since its graph may be replayed beside anything else.
constexpr int kCaptureTickets = 1 << 14;
__device__ unsigned capture_tickets[kCaptureTickets];

template <class P>
__global__ void __launch_bounds__(plan::kFoldThreads) fold_kernel(const P* partials, int64_t count, Fold<P> fold) {
  const int64_t begin = blockIdx.x * plan::kFoldTile;
  const int64_t length = min(count - begin, plan::kFoldTile);
  finish<plan::kFoldThreads>(sum_partials<plan::kFoldThreads>(partials + begin, length), fold);
}

int64_t partial_bytes(const Forward& request) {
  const bool wide = request.input.dtype == DType::Float64 || request.target.dtype == DType::Float64 ||
                    request.output.dtype == DType::Float64;
  return wide ? sizeof(Sum) : sizeof(double);
}

int vector_elements(const Forward& request) {
  return plan::vector_elements(size_of(request.input.dtype), size_of(request.target.dtype));
}

}  // namespace

Need reduce_need(const Forward& request) {
  return {plan::reduce_blocks(request.count, vector_elements(request)), partial_bytes(request)};
}

Need train_need(const Training& request) {
  const Forward& forward = request.forward;
  return {plan::pass_blocks(forward.count, vector_elements(forward)), partial_bytes(forward)};
}

bool is_capturing(Stream stream) {
  if (stream == nullptr) return false;  // the legacy default stream cannot be captured
  cudaStreamCaptureStatus status;
  check(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status), "capture status");
  return status != cudaStreamCaptureStatusNone;
}

unsigned long long stream_id(Stream stream) {
  unsigned long long id = reinterpret_cast<uintptr_t>(stream);
#if CUDART_VERSION >= 12000
  // Unlike the handle, never given to another stream again.
  if (stream != nullptr) check(cudaStreamGetId(static_cast<cudaStream_t>(stream), &id), "stream id");
#endif
  return id;
}

void zero(void* memory, int64_t bytes, Stream stream) {
  check(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)), "memset");
}

unsigned* capture_ticket(int64_t index) {
  void* tickets = nullptr;
  if (index >= kCaptureTickets) return nullptr;
  if (cudaGetSymbolAddress(&tickets, capture_tickets) != cudaSuccess) {
    (void)cudaGetLastError();  // cleared: without a ticket a second launch folds
    return nullptr;
  }
  return static_cast<unsigned*>(tickets) + index;
}

template <class P>
void fold(int64_t count, double divisor, const Result& output, const Workspace& workspace, Stream stream) {
  const int64_t blocks = plan::fold_blocks(count);
  const P* const partials = static_cast<const P*>(workspace.partials);
  P* const folded = static_cast<P*>(workspace.folded);
  const Fold<P> last = {folded, workspace.ticket, divisor, output};
  launch(fold_kernel<P>, blocks, plan::kFoldThreads, stream, partials, count, last);
  if (blocks > 1 && !workspace.ticket) {
    launch(fold_kernel<P>, 1, plan::kFoldThreads, stream, static_cast<const P*>(folded), blocks, last);
  }
}

template void fold<double>(int64_t, double, const Result&, const Workspace&, Stream);
template void fold<Sum>(int64_t, double, const Result&, const Workspace&, Stream);

}  // namespace cudaloss::cuda
