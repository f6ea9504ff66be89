// cudaloss._C: facts about this build, as plain data. Importing it also registers the ops (torch/ops.cpp), under the
// name of the package that it is imported in.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <vector>

#include "core/compatibility.h"
#include "core/plan.h"
#include "csrc_tree.h"

namespace py = pybind11;

namespace cudaloss {

void register_ops(const std::string& package);  // torch/ops.cpp

}  // namespace cudaloss

namespace {

py::dict build_info() {
  py::dict info;
  info["losses"] = std::vector<std::string>{
#define CUDALOSS_LOSS(name, id, all) #name,
#include "losses.inc"
#undef CUDALOSS_LOSS
#define CUDALOSS_ROW_LOSS(name, id, reads) #name,
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS
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
  info["csrc_tree"] = CUDALOSS_CSRC_TREE;
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
  plan["sum_tile"] = cudaloss::plan::kSum.tile(vector);
  plan["sum_blocks"] = cudaloss::plan::sum_blocks(count, vector);
  plan["map_tiles"] = cudaloss::plan::ceil_div(count, cudaloss::plan::kMap.tile(vector));
  plan["train_tile"] = cudaloss::plan::kTrain.tile(vector);
  plan["train_blocks"] = cudaloss::plan::train_blocks(count, vector);
  plan["fold_blocks"] = cudaloss::plan::fold_blocks(cudaloss::plan::train_blocks(count, vector));
  plan["counted_blocks"] = cudaloss::plan::kCountedBlocks;
  plan["cpu_chunks"] = cudaloss::plan::chunks(count);
  return plan;
}

// The build that a launch error would describe: this one, or another that the arguments give.
cudaloss::compatibility::Build build_of(const std::optional<std::string>& cuda,
                                        const std::optional<std::string>& architectures) {
  const cudaloss::compatibility::Build build = cudaloss::compatibility::this_build();
  return {cuda.value_or(build.cuda), architectures.value_or(build.architectures)};
}

std::string explain_uncovered(int major, int minor, const std::optional<std::string>& cuda,
                              const std::optional<std::string>& architectures) {
  return cudaloss::compatibility::uncovered(major, minor, build_of(cuda, architectures));
}

std::string explain_old_driver(int driver, const std::optional<std::string>& cuda) {
  return cudaloss::compatibility::old_driver(driver, build_of(cuda, {}));
}

std::string explain_old_driver_for_ptx(int major, int minor, int driver, const std::optional<std::string>& cuda) {
  return cudaloss::compatibility::old_driver_for_ptx(major, minor, driver, build_of(cuda, {}));
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  const std::string name = module.attr("__name__").cast<std::string>();
  cudaloss::register_ops(name.substr(0, name.find('.')));
  module.doc() = "cudaloss's compiled kernels: facts about the build. The ops are torch.ops.cudaloss.*";
  module.def("build_info", &build_info, "What this binary was built with and for.");
  module.def("launch_plan", &launch_plan, py::arg("count"), py::arg("input_size"), py::arg("target_size"),
             "How many blocks and chunks `count` elements of these sizes in bytes are shared out over.");
  module.def("explain_uncovered", &explain_uncovered, py::arg("major"), py::arg("minor"), py::arg("cuda") = py::none(),
             py::arg("architectures") = py::none(), "What a launch says on a GPU of a capability that is not covered.");
  module.def("is_old_driver", &cudaloss::compatibility::is_old_driver, py::arg("driver"), py::arg("cuda"),
             "Whether the driver, 12040 for CUDA 12.4, is too old for a build with that CUDA.");
  module.def("explain_old_driver", &explain_old_driver, py::arg("driver"), py::arg("cuda") = py::none(),
             "What a launch says where the driver, 12040 for CUDA 12.4, is too old for the build.");
  module.def("explain_old_driver_for_ptx", &explain_old_driver_for_ptx, py::arg("major"), py::arg("minor"),
             py::arg("driver"), py::arg("cuda") = py::none(),
             "What a launch says where the driver is too old to compile the build's PTX for a GPU that needs it.");
}
