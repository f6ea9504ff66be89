// The engines as the ops call them: what they take from tensors, and a loss's pass, found by the id of its row in
// src/cudaloss/_rows.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "core/plan.h"
#include "cpu/overlap.h"
#include "cuda/overlap.h"
#include "torch/compiled.h"

#define CUDALOSS_LOSS(name, id, all) \
  namespace cudaloss::losses {       \
  template <class T>                 \
  struct name;                       \
  }
#include "losses.inc"
#undef CUDALOSS_LOSS
#define CUDALOSS_ROW_LOSS(name, id, reads) \
  namespace cudaloss::losses {             \
  struct name;                             \
  }
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS

namespace cudaloss::tensors {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// The Python layer has already checked the arguments and chosen the path. Only a direct call of a private op, or a
// compiler that changed an operand's layout, reaches these checks.
inline void require(bool condition, const char* message) {
  if (!condition) throw std::runtime_error(std::string("cudaloss: ") + message);
}

inline DType any_dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::Float:
      return DType::Float32;
    case ScalarType::Double:
      return DType::Float64;
    case ScalarType::Half:
      return DType::Float16;
    case ScalarType::BFloat16:
      return DType::BFloat16;
    case ScalarType::Bool:
      return DType::Bool;
    case ScalarType::Byte:
      return DType::UInt8;
    case ScalarType::Char:
      return DType::Int8;
    case ScalarType::Short:
      return DType::Int16;
    case ScalarType::Int:
      return DType::Int32;
    case ScalarType::Long:
      return DType::Int64;
    default:
      throw std::runtime_error("cudaloss: expected a dtype that the kernels read");
  }
}
inline DType dtype_of(ScalarType type) {
  const DType dtype = any_dtype_of(type);
  require(is_floating(dtype), "expected float32, float64, float16 or bfloat16");
  return dtype;
}

inline Operand operand(const Tensor& tensor) { return {tensor.const_data_ptr(), dtype_of(tensor.scalar_type())}; }
inline Operand any_operand(const Tensor& tensor) {
  return {tensor.const_data_ptr(), any_dtype_of(tensor.scalar_type())};
}
constexpr Operand kNoOperand = {nullptr, DType::Float32};
inline Result result(const Tensor& tensor) { return {tensor.mutable_data_ptr(), dtype_of(tensor.scalar_type())}; }

inline Tensor empty(torch::headeronly::IntHeaderOnlyArrayRef sizes, torch::headeronly::IntHeaderOnlyArrayRef strides,
                    ScalarType dtype, const Tensor& device_of) {
  int32_t device_type;
  require(aoti_torch_get_device_type(device_of.get(), &device_type) == TORCH_SUCCESS, "no device");
  AtenTensorHandle handle;
  const int32_t shim_dtype = torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
  require(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(), shim_dtype,
                                   device_type, device_of.get_device_index(), &handle) == TORCH_SUCCESS,
          device_of.is_cuda() ? "CUDA out of memory: the result could not be allocated"
                              : "out of memory: the result could not be allocated");
  return Tensor(handle);
}

// Takes a request and a tensor on its device.
using Run = void (*)(const Pass&, const Tensor&);

template <template <template <class> class, bool> class Of, template <class> class OfRows>
Run run_of(int64_t loss) {
  switch (loss) {
#define CUDALOSS_LOSS(name, id, all) \
  case id:                           \
    return Of<losses::name, all>::pass;
#include "losses.inc"
#undef CUDALOSS_LOSS
#define CUDALOSS_ROW_LOSS(name, id, reads) \
  case id:                                 \
    return OfRows<losses::name>::pass;
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS
    default:
      throw std::runtime_error("cudaloss: no loss has this id");
  }
}

// ---- CPU ----
inline void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                         void* context) {
  require(torch_parallel_for(begin, end, grain, body, context) == TORCH_SUCCESS, "a worker thread failed");
}

template <template <class> class Loss, bool>
struct CpuKernels {
  static void pass(const Pass& request, const Tensor&) { cpu::pass<Loss>(request, parallel_for); }
};

template <class Loss>
struct CpuRowKernels {
  static void pass(const Pass& request, const Tensor&) { cpu::row_pass<Loss>(request, parallel_for); }
};

// What an engine can do. kSumsBeside: sum one operand's gradients in the pass that makes the other's.
struct Cpu {
  static constexpr bool kCountsFewRows = false, kExpects = false, kSumsBeside = false;
  static Prediction prediction_of(int64_t, const Tensor&) { return {}; }
  static Prediction slots_of(int64_t, const Tensor&) { return {}; }
  static bool is_capturing(const Tensor&) { return false; }
  static void pass(const Pass& request, const Tensor& input) {
    run_of<CpuKernels, CpuRowKernels>(request.loss)(request, input);
  }
  static void vocabulary_pass(const Pass& request, const Tensor&) { cpu::vocabulary_pass(request, parallel_for); }
  static void class_block(const ClassBlock& block, const Tensor&) { cpu::class_block(block, parallel_for); }
  static void overlap(const Overlap& pass, const Tensor&) { cpu::overlap(pass, parallel_for); }
  static void overlap_loss(const OverlapLoss& loss, const Tensor&) { cpu::overlap_loss(loss); }
  template <class Function>
  static void each(const Function& function, int64_t count, const Tensor&) {
    cpu::each(function, count, parallel_for);
  }
  static void count(const Count& request, const Tensor&) { cpu::count(request, parallel_for); }
};

}  // namespace cudaloss::tensors

#if defined(CUDALOSS_WITH_CUDA)
// ---- CUDA: on the caller's stream, on the operands' device ----
// In libtorch_cuda, which a CPU-only torch does not have. It is weak, so that the library still loads there.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace cudaloss::tensors {

// What one stream has: a workspace, which its launches use one after the other; and slots for the grad_outputs that its
// next forwards expect. Each loss and input dtype has kOrders of them: for the first call since the last backward, the
// second, and so on.
struct OfStream {
  static constexpr int kOrders = 4, kKinds = cuda::kSlotsOfStream / kOrders;

  int32_t device;
  unsigned long long stream;
  cuda::Workspace workspace;
  Prediction slots;
  std::array<std::atomic<uint8_t>, kKinds> calls;  // since the last backward

  OfStream(int32_t device, unsigned long long stream, int64_t index)
      : device(device),
        stream(stream),
        workspace(cuda::stream_workspace(index)),
        slots(cuda::slots_of_stream(index)),
        calls() {}

  static int64_t kind_of(int64_t loss, DType dtype) {
    static_assert(kKinds == 64 * 4, "losses of elements have ids below 32, those of rows from 64 to 95; four dtypes");
    return (loss % 32 + (loss < 64 ? 0 : 32)) * 4 + static_cast<int64_t>(dtype);
  }
  // The slot of a forward; counts the call.
  Prediction slot_of_forward(int64_t kind) {
    const int order = std::min<int>(calls[kind].load(std::memory_order_relaxed), kOrders - 1);
    calls[kind].store(static_cast<uint8_t>(order + 1), std::memory_order_relaxed);
    return {slots.slots, slots.first + kind * kOrders + order, 1, nullptr};
  }
  // The slots that a backward may change; starts the count again.
  Prediction slots_of_backward(int64_t kind) {
    calls[kind].store(0, std::memory_order_relaxed);
    return slots;
  }
};
inline OfStream& of_stream(int32_t device, cuda::Stream stream) {
  static std::mutex mutex;
  static std::deque<OfStream> all;  // which never moves them
  const unsigned long long id = cuda::stream_id(stream);
  const std::lock_guard<std::mutex> lock(mutex);
  int64_t on_device = 0;
  for (OfStream& known : all) {
    if (known.device != device) continue;
    if (known.stream == id) return known;
    ++on_device;
  }
  return all.emplace_back(device, id, on_device);
}

// Counts what captured launches have taken. They keep it for ever, because their graphs may be replayed beside anything
// else.
struct ForCaptures {
  static constexpr int32_t kDevices = 64;
  std::atomic<int64_t> used[kDevices];

  int64_t next(int32_t device) { return device < kDevices ? used[device]++ : INT64_MAX; }
};
inline ForCaptures tickets_of_captures, slots_of_captures;

// The workspace of one reduction, valid for launches on `stream` while this object lives. A captured launch runs again
// with its graph, beside other graphs and other work, so it gets memory of its graph and its own ticket.
class Scratch {
 public:
  Scratch(const Tensor& device_of, cuda::Stream stream) : device_of_(device_of), stream_(stream) {}

  // The engine takes what its launch needs from it, once.
  cuda::Memory memory() {
    return {[](void* scratch, int64_t partials, int64_t partial_bytes) {
              return static_cast<Scratch*>(scratch)->take(partials, partial_bytes);
            },
            this};
  }

 private:
  cuda::Workspace take(int64_t partials, int64_t partial_bytes) {
    const int32_t device = device_of_.get_device_index();
    cuda::Workspace workspace = {};
    if (cuda::is_capturing(stream_)) {
      workspace.ticket = cuda::capture_ticket(tickets_of_captures.next(device));
    } else {
      workspace = of_stream(device, stream_).workspace;
      if (workspace.partials && partials <= plan::kCountedBlocks) return workspace;
    }
    const int64_t bytes = partials * partial_bytes;
    const int64_t all_bytes = bytes + plan::fold_blocks(partials) * partial_bytes;
    const int64_t stride = 1;
    memory_ = empty({&all_bytes, 1}, {&stride, 1}, ScalarType::Byte, device_of_);
    workspace.partials = memory_->mutable_data_ptr();
    workspace.folded = static_cast<char*>(workspace.partials) + bytes;
    return workspace;
  }

  const Tensor& device_of_;
  const cuda::Stream stream_;
  std::optional<Tensor> memory_;
};

// The caller's stream on the tensor's device. That device is current while this object lives. It makes a guard only if
// another device is current: a guard costs an allocation and four calls.
struct CudaContext {
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  cuda::Stream stream = nullptr;

  explicit CudaContext(const Tensor& tensor) {
    require(aoti_torch_get_current_cuda_stream != nullptr, "this torch has no CUDA");
    const int32_t device = tensor.get_device_index();
    if (torch::stable::accelerator::getCurrentDeviceIndex() != device) guard.emplace(device);
    require(aoti_torch_get_current_cuda_stream(device, &stream) == TORCH_SUCCESS, "no current CUDA stream");
  }
};

// A launch of a reduction, which may need memory in addition to its operands.
template <class Request, class Launch>
void with_scratch(const Request& request, const Tensor& input, const Launch& launch) {
  const CudaContext context(input);
  Scratch scratch(input, context.stream);
  launch(request, scratch.memory(), context.stream);
}

template <template <class> class Loss, bool kAll>
struct CudaKernels {
  static void pass(const Pass& request, const Tensor& input) { with_scratch(request, input, cuda::pass<Loss, kAll>); }
};

template <class Loss>
struct CudaRowKernels {
  static void pass(const Pass& request, const Tensor& input) { with_scratch(request, input, cuda::row_pass<Loss>); }
};

struct Cuda {
  static constexpr bool kCountsFewRows = true, kExpects = true, kSumsBeside = true;
  static void pass(const Pass& request, const Tensor& input) {
    run_of<CudaKernels, CudaRowKernels>(request.loss)(request, input);
  }
  static void vocabulary_pass(const Pass& request, const Tensor& input) {
    with_scratch(request, input, cuda::vocabulary_pass);
  }
  static void overlap(const Overlap& pass, const Tensor& input) {
    const CudaContext context(input);
    if (pass.grads) return cuda::overlap(pass, nullptr, context.stream);
    const int64_t count = cuda::overlap_partials(pass), one = 1;
    const Tensor partials = empty({&count, 1}, {&one, 1}, ScalarType::Double, input);
    cuda::overlap(pass, static_cast<double*>(partials.mutable_data_ptr()), context.stream);
  }
  static void overlap_loss(const OverlapLoss& loss, const Tensor& input) {
    const CudaContext context(input);
    const int64_t count = loss.batch ? loss.classes * kOverlapSums : 0, one = 1;
    const Tensor totals = empty({&count, 1}, {&one, 1}, ScalarType::Double, input);
    cuda::overlap_loss(loss, static_cast<double*>(totals.mutable_data_ptr()), context.stream);
  }
  static void class_block(const ClassBlock& block, const Tensor& input) {
    cuda::class_block(block, CudaContext(input).stream);
  }
  template <class Function>
  static void each(const Function& function, int64_t count, const Tensor& input) {
    cuda::each(function, count, CudaContext(input).stream);
  }
  static void count(const Count& request, const Tensor& input) { with_scratch(request, input, cuda::count); }

  // For a forward with gradients, and for a backward.
  static Prediction prediction_of(int64_t loss, const Tensor& input) {
    const CudaContext context(input);
    const int32_t device = input.get_device_index();
    if (cuda::is_capturing(context.stream)) return cuda::slot_of_capture(slots_of_captures.next(device));
    return of_stream(device, context.stream).slot_of_forward(OfStream::kind_of(loss, dtype_of(input.scalar_type())));
  }
  static Prediction slots_of(int64_t loss, const Tensor& input) {
    const CudaContext context(input);
    if (cuda::is_capturing(context.stream)) return cuda::slots_of_captures();
    OfStream& own = of_stream(input.get_device_index(), context.stream);
    return own.slots_of_backward(OfStream::kind_of(loss, dtype_of(input.scalar_type())));
  }

  static bool is_capturing(const Tensor& input) { return cuda::is_capturing(CudaContext(input).stream); }
};

}  // namespace cudaloss::tensors
#endif
