// Where the blocks of a reduction leave their sums: memory of PyTorch's allocator, without an allocation a call.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "core/plan.h"
#include "core/sum.h"
#include "cuda/engine.h"
#include "torch/operands.h"

namespace cudaloss::tensors {

constexpr int64_t kTicketBytes = 16;
constexpr int64_t kKeptBytes = kTicketBytes + plan::kCountedBlocks * static_cast<int64_t>(sizeof(Sum));  // 16 KiB

inline Tensor empty_bytes(int64_t bytes, const Tensor& device_of) {
  const int64_t stride = 1;
  return empty({&bytes, 1}, {&stride, 1}, ScalarType::Byte, device_of);
}

// A ticket and partials for one stream, whose launches take turns with them. Never freed: a destructor at exit would run
// after CUDA's own.
inline char* kept_memory(const Tensor& device_of, cuda::Stream stream) {
  struct Kept {
    int32_t device;
    unsigned long long stream;
    Tensor memory;
  };
  static std::mutex mutex;
  static auto& all = *new std::vector<Kept>;
  const int32_t device = device_of.get_device_index();
  const unsigned long long id = cuda::stream_id(stream);
  const std::lock_guard<std::mutex> lock(mutex);
  for (const Kept& kept : all) {
    if (kept.stream == id && kept.device == device) return static_cast<char*>(kept.memory.mutable_data_ptr());
  }
  all.push_back({device, id, empty_bytes(kKeptBytes, device_of)});
  char* const memory = static_cast<char*>(all.back().memory.mutable_data_ptr());
  cuda::zero(memory, kTicketBytes, stream);
  return memory;
}

inline unsigned* capture_ticket(int32_t device) {
  constexpr int32_t kDevices = 64;
  static std::atomic<int64_t> used[kDevices];
  return device < kDevices ? cuda::capture_ticket(used[device]++) : nullptr;
}

// The workspace of one reduction, valid for launches on `stream` while this lives. A captured launch runs again whenever
// its graph does, beside other graphs and other work: it gets memory of its graph's own and a ticket of its own.
struct Scratch {
  cuda::Workspace workspace = {};

  Scratch(const cuda::Need& need, const Tensor& device_of, cuda::Stream stream) {
    if (need.blocks == 1) return;
    const int64_t bytes = need.blocks * need.partial_bytes;
    if (cuda::is_capturing(stream)) {
      memory = empty_bytes(bytes + plan::fold_blocks(need.blocks) * need.partial_bytes, device_of);
      char* const partials = static_cast<char*>(memory->mutable_data_ptr());
      workspace = {partials, partials + bytes, capture_ticket(device_of.get_device_index())};
      return;
    }
    char* const kept = kept_memory(device_of, stream);
    workspace.ticket = reinterpret_cast<unsigned*>(kept);
    if (need.blocks <= plan::kCountedBlocks) {
      workspace.partials = kept + kTicketBytes;
    } else {
      memory = empty_bytes(bytes, device_of);
      workspace.partials = memory->mutable_data_ptr();
      workspace.folded = kept + kTicketBytes;
    }
  }

 private:
  std::optional<Tensor> memory;
};

}  // namespace cudaloss::tensors
