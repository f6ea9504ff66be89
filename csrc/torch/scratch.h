// Where the blocks of a reduction leave their sums, without an allocation in each call.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "core/plan.h"
#include "cuda/engine.h"
#include "torch/operands.h"

namespace cudaloss::tensors {

// The workspace of one stream. Its launches use it one after the other.
inline cuda::Workspace workspace_of(int32_t device, cuda::Stream stream) {
  struct Known {
    int32_t device;
    unsigned long long stream;
    cuda::Workspace workspace;
  };
  static std::mutex mutex;
  static std::vector<Known> all;
  const unsigned long long id = cuda::stream_id(stream);
  const std::lock_guard<std::mutex> lock(mutex);
  int64_t on_device = 0;
  for (const Known& known : all) {
    if (known.device != device) continue;
    if (known.stream == id) return known.workspace;
    ++on_device;
  }
  all.push_back({device, id, cuda::stream_workspace(on_device)});
  return all.back().workspace;
}

inline unsigned* ticket_for_capture(int32_t device) {
  constexpr int32_t kDevices = 64;
  static std::atomic<int64_t> used[kDevices];
  return device < kDevices ? cuda::capture_ticket(used[device]++) : nullptr;
}

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
      workspace.ticket = ticket_for_capture(device);
    } else {
      workspace = workspace_of(device, stream_);
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

}  // namespace cudaloss::tensors
