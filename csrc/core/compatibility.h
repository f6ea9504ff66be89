// The message if this build's CUDA kernels do not run: what is here, what the build has, what to do. One wording for a
// launch that fails (cuda/launch.h) and for `python -m cudaloss` (binding.cpp).
#pragma once

#include <cstdlib>
#include <string>

namespace cudaloss::compatibility {

// What was compiled, as setup.py says it.
struct Build {
  std::string cuda;           // "13.0"
  std::string architectures;  // "7.5;8.0+PTX"
};

inline Build this_build() {
#if defined(CUDALOSS_WITH_CUDA)
  return {CUDALOSS_CUDA_VERSION, CUDALOSS_CUDA_ARCHITECTURES};
#else
  return {"none", "none"};
#endif
}

inline std::string dotted(int major, int minor) { return std::to_string(major) + "." + std::to_string(minor); }

// The CUDA version of a driver, as cudaDriverGetVersion gives it: 12040 is 12.4.
inline std::string of_driver(int version) {
  return version == 0 ? "no NVIDIA driver was found"
                      : "the NVIDIA driver supports CUDA up to " + dotted(version / 1000, version % 1000 / 10);
}

// "12.9" as the number that drivers use: 12090.
inline int number_of(const std::string& cuda) {
  const size_t dot = cuda.find('.');
  return std::atoi(cuda.c_str()) * 1000 + (dot == std::string::npos ? 0 : std::atoi(cuda.c_str() + dot + 1) * 10);
}

// The oldest driver of each CUDA major version, which runs all its minor versions (NVIDIA's minor-version
// compatibility). Exception: from CUDA 12.8 on, kernels are compressed in a way that drivers before 550 (CUDA 12.4)
// cannot undo.
inline int least_driver_cuda(const std::string& cuda) {
  const int number = number_of(cuda);
  return number / 1000 == 12 && number >= 12080 ? 12040 : number / 1000 * 1000;
}

inline bool is_old_driver(int driver, const std::string& cuda) { return driver < least_driver_cuda(cuda); }

inline std::string least_driver(const std::string& cuda) {
  switch (least_driver_cuda(cuda)) {
    case 12000:
      return "525 or newer";
    case 12040:
      return "550 or newer";
    case 13000:
      return "580 or newer";
    default:
      return "one that supports CUDA " + cuda;
  }
}

inline std::string from_source(int major, int minor) {
  return "build from source for it (TORCH_CUDA_ARCH_LIST=" + dotted(major, minor) +
         " pip install --force-reinstall --no-deps --no-cache-dir --no-binary cudaloss cudaloss)";
}

// Neither SASS nor PTX of the build runs on a GPU of this compute capability.
inline std::string uncovered(int major, int minor, const Build& build) {
  const bool before_cuda_13 = major < 7 || (major == 7 && minor < 5);  // CUDA 13 supports nothing before Turing
  const std::string install = before_cuda_13 ? "Install cudaloss for CUDA 12 (from capability 7.0 on)"
                                             : "Install a newer cudaloss (pip install --upgrade cudaloss)";
  return "this GPU has compute capability " + dotted(major, minor) + ", and this build of cudaloss, with CUDA " +
         build.cuda + ", has kernels for " + build.architectures + ", none of which runs on it. " + install + ", or " +
         from_source(major, minor) + ".";
}

// The driver is older than the oldest one that the build supports.
inline std::string old_driver(int driver, const Build& build) {
  return of_driver(driver) + ", and this build of cudaloss, with CUDA " + build.cuda + ", needs driver " +
         least_driver(build.cuda) + ". Update the driver, or install cudaloss for an older CUDA.";
}

// Only PTX covers the GPU, and only a driver at least as new as the build's CUDA compiles it.
inline std::string old_driver_for_ptx(int major, int minor, int driver, const Build& build) {
  return "this GPU, of compute capability " + dotted(major, minor) +
         ", needs this build's PTX, which a driver that supports CUDA " + build.cuda + " compiles, and " +
         of_driver(driver) + ". Update the driver, install cudaloss for an older CUDA, or " +
         from_source(major, minor) + ".";
}

}  // namespace cudaloss::compatibility
