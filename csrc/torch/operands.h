// From stable-ABI tensors to the engines' pointers and sizes.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/pass.h"
#include "cpu/pages.h"

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
// In the memory format of `like`, which is dense.
inline Tensor empty_dense(const Tensor& like, ScalarType dtype) {
  Tensor tensor = empty(like.sizes(), like.strides(), dtype, like);
  if (!tensor.is_cuda()) {
    cpu::advise_huge_pages(tensor.mutable_data_ptr(), tensor.numel() * static_cast<int64_t>(tensor.element_size()));
  }
  return tensor;
}

// Whether the elements fill one block of memory, in any order of dimensions.
inline bool is_dense(const Tensor& tensor) {
  if (tensor.is_contiguous()) return true;
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] < strides[b]; });
  int64_t expected = 1;
  for (const size_t dim : order) {
    if (sizes[dim] == 1) continue;
    if (strides[dim] != expected) return false;
    expected *= sizes[dim];
  }
  return true;
}

inline bool same_sizes(const Tensor& a, const Tensor& b) {
  const auto sizes = a.sizes(), other = b.sizes();
  return sizes.size() == other.size() && std::equal(sizes.begin(), sizes.end(), other.begin());
}

// Whether each position in memory holds the same element of both.
inline bool same_order(const Tensor& a, const Tensor& b) {
  if (!same_sizes(a, b)) return false;
  const auto sizes = a.sizes();
  if (a.is_contiguous() && b.is_contiguous()) return true;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != 1 && a.strides()[dim] != b.strides()[dim]) return false;
  }
  return is_dense(a);
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cuda() == b.is_cuda() && a.get_device_index() == b.get_device_index();
}

// An expanded scalar, such as the backward of sum() sends.
inline bool is_broadcast_scalar(const Tensor& tensor) {
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    if (sizes[dim] != 1 && strides[dim] != 0) return false;
  }
  return true;
}

}  // namespace cudaloss::tensors
