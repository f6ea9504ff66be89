// cudaloss._C: facts about this build, as plain data. Importing it also registers the ops (torch/ops.cpp).
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "core/plan.h"

namespace py = pybind11;

namespace {

py::dict build_info() {
  py::dict info;
  info["losses"] = std::vector<std::string>{
#define CUDALOSS_LOSS(name) #name,
#include "losses.inc"
#undef CUDALOSS_LOSS
  };
#if defined(CUDALOSS_WITH_CUDA)
  info["cuda"] = CUDALOSS_CUDA_VERSION;
  info["cuda_architectures"] = CUDALOSS_CUDA_ARCHITECTURES;
#else
  info["cuda"] = py::none();
  info["cuda_architectures"] = "";
#endif
  info["torch_target"] = CUDALOSS_TORCH_TARGET;
  info["compiler"] = __VERSION__;
  return info;
}

py::dict launch_plan(int64_t count, int input_size, int target_size) {
  const auto is_size = [](int size) { return size == 2 || size == 4 || size == 8; };
  if (count < 0 || !is_size(input_size) || !is_size(target_size)) {
    throw py::value_error("count must be at least 0, the sizes 2, 4 or 8 bytes");
  }
  const int vector = cudaloss::plan::vector_elements(input_size, target_size);
  py::dict plan;
  plan["vector"] = vector;
  plan["reduce_tile"] = cudaloss::plan::reduce_tile(vector);
  plan["reduce_blocks"] = cudaloss::plan::reduce_blocks(count, vector);
  plan["elementwise_tiles"] = cudaloss::plan::elementwise_tiles(count, vector);
  plan["train_tile"] = cudaloss::plan::train_tile(vector);
  plan["train_blocks"] = cudaloss::plan::train_blocks(count, vector);
  plan["fold_blocks"] = cudaloss::plan::fold_blocks(cudaloss::plan::train_blocks(count, vector));
  plan["counted_blocks"] = cudaloss::plan::kCountedBlocks;
  plan["cpu_chunks"] = cudaloss::plan::chunks(count);
  return plan;
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "cudaloss's compiled kernels: facts about the build. The ops are torch.ops.cudaloss.*";
  module.def("build_info", &build_info, "What this binary was built with and for.");
  module.def("launch_plan", &launch_plan, py::arg("count"), py::arg("input_size"), py::arg("target_size"),
             "How many blocks and chunks `count` elements of these sizes in bytes are shared out over.");
}
