// The gradients that compiled forwards have made, until a compiled backward takes them. A compiler knows the backward's
// op, `compiled_finish_grads`, as a function of its arguments. If it knew that they are changed in place and returned,
// it would copy them first: 8 of then 20 bytes for each element, as much as the saved pass. So the memory is reused
// only where no compiler can notice:
// - The gradients come from a graph that ran outside of any backward, and this graph runs inside one. So there are two
//   graphs, and this op is the only reader of the tensors between them: their memory holds nothing else.
// - Only once: a second backward (`retain_graph`, also in another thread) computes its gradients again.
// - Not while a CUDA graph is captured: its replays would not run this code.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_set>

namespace cudaloss::tensors {

// Whether this thread runs a backward. The stable ABI cannot tell, so this asks a function of libtorch; if a version
// does not have it, nothing is known and no memory is reused. tests/ops/test_compiled_steps.py checks that it is there.
inline std::optional<bool> runs_backward() {
  using CurrentTask = int (*)();
  static const auto current =
      reinterpret_cast<CurrentTask>(dlsym(RTLD_DEFAULT, "_ZN5torch8autograd25get_current_graph_task_idEv"));
  if (current == nullptr) return std::nullopt;
  return current() != -1;
}

// Where they are. A copy that hooks on saved tensors have made can be where an earlier gradient was: it is then taken
// too. That is right, because its record comes with it, and because no graph makes such copies
// (`keeps_what_it_saves` in Python).
class UntakenGradients {
  static constexpr size_t kMost = 1 << 16;  // of forwards without a backward, which nobody counts
  std::mutex mutex_;
  std::unordered_set<const void*> places_;

 public:
  void add(const void* gradient) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (places_.size() >= kMost) places_.clear();
    places_.insert(gradient);
  }
  // Whether it was there; only once.
  bool take(const void* gradient) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return places_.erase(gradient) > 0;
  }
};
inline UntakenGradients untaken_gradients;

}  // namespace cudaloss::tensors
