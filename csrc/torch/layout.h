// How tensors lie in memory; from tensors that broadcast together to the dimensions of a pass, sorted by memory order
// and merged if strides allow; and new memory of their shape.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/pass.h"
#include "cpu/pages.h"
#include "torch/backends.h"

namespace cudaloss::tensors {

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

// The dimension of a row's classes: the second, or the first of a 1-D tensor, as in PyTorch.
inline int class_dim_of(const Tensor& input) { return input.dim() > 1; }

// The sizes of two tensors broadcast together, and everyone's strides in that shape; for rows without their classes.
class Layout {
 public:
  // For rows: the target has an index for each row, or a probability for each class.
  struct OfRows {};
  Layout(OfRows, const Tensor& input, const Tensor& target) {
    rank_ = static_cast<int>(input.dim()) - 1;
    if (rank_ < 0 || rank_ > kMaxDims) {
      fault_ = "1 to 7 dimensions";
      rank_ = 0;
      return;
    }
    class_dim_ = class_dim_of(input);
    classes_ = input.sizes()[class_dim_];
    if (classes_ == 0) fault_ = "input must have one class at least";
    for (int dim = 0; dim < rank_; ++dim) sizes_[dim] = input.sizes()[dim + (dim >= class_dim_)];
    add(kInput, input);
    add(kTarget, target);
    const int missing = rank_ + (is_floating(any_dtype_of(target.scalar_type())) ? 1 : 0);
    if (!fault_ && (target.dim() != missing || !is_full(target))) {
      fault_ = "target must have an index for each row, or be of input's shape";
    }
  }
  Layout(const Tensor& input, const Tensor& target) {
    rank_ = static_cast<int>(std::max(input.dim(), target.dim()));
    if (rank_ > kMaxDims) {
      fault_ = "at most 6 dimensions";
      rank_ = 0;
      return;
    }
    std::fill(sizes_, sizes_ + rank_, int64_t{1});
    widen_by(input);
    widen_by(target);
    add(kInput, input);
    add(kTarget, target);
  }
  // For operands of any rank that are dense and in the same order: one dimension.
  explicit Layout(const Tensor& all) : rank_(1), flat_(&all) {
    sizes_[0] = all.numel();
    strides_[0][kInput] = strides_[0][kTarget] = 1;
  }

  // What is wrong with the tensors' shapes; null if nothing. The other members are valid only if nothing is.
  const char* fault() const { return fault_; }
  int rank() const { return rank_; }
  torch::headeronly::IntHeaderOnlyArrayRef sizes() const { return {sizes_, static_cast<size_t>(rank_)}; }
  // The result's sizes, of all its dimensions.
  torch::headeronly::IntHeaderOnlyArrayRef shape() const { return flat_ ? flat_->sizes() : sizes(); }
  torch::headeronly::IntHeaderOnlyArrayRef leading_sizes(int64_t dims) const {
    return {sizes_, static_cast<size_t>(dims)};
  }

  // Gives `place` the strides of a tensor that broadcasts to the shape, aligned at the last dimension. With `leading`,
  // aligned at the first: for a tensor with one element for each index of the leading dimensions.
  void add(Place place, const Tensor& tensor, bool leading = false) {
    if (fault_) return;
    if (of_classes(tensor)) return add_with_classes(place, tensor);
    if (flat_) {
      strides_[0][place] = same_sizes(*flat_, tensor) && !is_broadcast_scalar(tensor);
      return;
    }
    const int missing = leading ? 0 : rank_ - static_cast<int>(tensor.dim());
    const auto misfits = [&](int64_t dim) {
      return tensor.sizes()[dim] != 1 && tensor.sizes()[dim] != sizes_[missing + dim];
    };
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      if (tensor.dim() > rank_ || misfits(dim)) {
        fault_ = "a shape that does not broadcast to the result's";
        return;
      }
      const int64_t size = tensor.sizes()[dim];
      strides_[missing + dim][place] = size == 1 ? 0 : tensor.strides()[dim];
    }
  }

  bool is_full(const Tensor& tensor) const {
    if (flat_) return same_sizes(*flat_, tensor);
    if (of_classes(tensor)) {
      for (int dim = 0; dim <= rank_; ++dim) {
        if (tensor.sizes()[dim] != (dim == class_dim_ ? classes_ : sizes_[dim - (dim > class_dim_)])) return false;
      }
      return true;
    }
    return tensor.dim() == rank_ && std::equal(sizes_, sizes_ + rank_, tensor.sizes().begin());
  }

  bool is_of_rows() const { return class_dim_ >= 0; }
  int64_t classes() const { return classes_; }
  const int64_t* class_strides() const { return class_stride_; }

  // The dimensions that `chosen` selects, in their order: the last one is the fastest.
  template <class Chosen>
  Dims in_order(const Chosen& chosen) const {
    Dims dims = {};
    for (int dim = rank_ - 1; dim >= 0; --dim) {
      if (chosen(dim)) push(dims, dim);
    }
    return merged(dims);
  }

  // The dimensions that `chosen` selects, in the input's memory order; if it is broadcast, in that of the others.
  template <class Chosen>
  Dims by_memory(const Chosen& chosen) const {
    int order[kMaxDims], count = 0;
    for (int dim = rank_ - 1; dim >= 0; --dim) {
      if (!chosen(dim) || sizes_[dim] == 1) continue;
      // An insertion sort that passes over dimensions that do not compare: std::sort needs an order of all.
      int at = count++;
      order[at] = dim;
      for (int before = at - 1; before >= 0; --before) {
        const int compared = compare(order[before], order[at]);
        if (compared < 0) break;
        if (compared > 0) {
          std::swap(order[before], order[at]);
          at = before;
        }
      }
    }
    Dims dims = {};
    for (int i = 0; i < count; ++i) push(dims, order[i]);
    return merged(dims);
  }

 private:
  // For rows: whether the tensor also has the classes.
  bool of_classes(const Tensor& tensor) const { return is_of_rows() && tensor.dim() == rank_ + 1; }

  void add_with_classes(Place place, const Tensor& tensor) {
    if (!is_full(tensor)) {
      fault_ = "a shape that is not the input's";
      return;
    }
    class_stride_[place] = tensor.strides()[class_dim_];
    for (int dim = 0; dim < rank_; ++dim) {
      strides_[dim][place] = sizes_[dim] == 1 ? 0 : tensor.strides()[dim + (dim >= class_dim_)];
    }
  }

  void widen_by(const Tensor& tensor) {
    const int missing = rank_ - static_cast<int>(tensor.dim());
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      int64_t& size = sizes_[missing + dim];
      const int64_t other = tensor.sizes()[dim];
      if (size != 1 && other != 1 && size != other) fault_ = "input and target must broadcast together";
      if (other != 1) size = other;
    }
  }

  // Which of two dimensions is faster: negative: a, positive: b, 0: no strides decide.
  int compare(int a, int b) const {
    for (const Place place : {kInput, kTarget, kWeight, kMask, kThird}) {
      const int64_t of_a = strides_[a][place], of_b = strides_[b][place];
      if (of_a != 0 && of_b != 0 && of_a != of_b) return of_a < of_b ? -1 : 1;
    }
    return 0;
  }

  void push(Dims& dims, int dim) const {
    if (sizes_[dim] == 1) return;
    dims.size[dims.rank] = sizes_[dim];
    std::copy(strides_[dim], strides_[dim] + kPlaces, dims.stride[dims.rank]);
    ++dims.rank;
  }

  // Merges neighbours if all strides continue from one into the other.
  static Dims merged(const Dims& dims) {
    Dims found = {};
    for (int dim = 0; dim < dims.rank; ++dim) {
      const int last = found.rank - 1;
      bool goes_on = last >= 0;
      for (int place = 0; goes_on && place < kPlaces; ++place) {
        goes_on = dims.stride[dim][place] == found.stride[last][place] * found.size[last];
      }
      if (goes_on) {
        found.size[last] *= dims.size[dim];
      } else {
        found.size[found.rank] = dims.size[dim];
        std::copy(dims.stride[dim], dims.stride[dim] + kPlaces, found.stride[found.rank]);
        ++found.rank;
      }
    }
    return found;
  }

  const char* fault_ = nullptr;
  int rank_;
  int64_t sizes_[kMaxDims];
  int64_t strides_[kMaxDims][kPlaces] = {};
  const Tensor* flat_ = nullptr;
  int class_dim_ = -1;  // for rows
  int64_t classes_ = 0, class_stride_[kPlaces] = {};
};

// In the memory format of `like`, which is dense.
inline Tensor empty_dense(const Tensor& like, ScalarType dtype) {
  Tensor tensor = empty(like.sizes(), like.strides(), dtype, like);
  if (!tensor.is_cuda()) {
    cpu::advise_huge_pages(tensor.mutable_data_ptr(), tensor.numel() * static_cast<int64_t>(tensor.element_size()));
  }
  return tensor;
}

// New memory in the shape of `like`: in its layout if that is dense; contiguous if it is expanded; otherwise in its
// order of dimensions. src/cudaloss/_ops/private.py predicts the same.
inline Tensor empty_as(const Tensor& like, ScalarType dtype) {
  if (is_dense(like)) return empty_dense(like, dtype);
  const auto sizes = like.sizes(), strides = like.strides();
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  bool expanded = false;
  for (size_t dim = 0; dim < sizes.size(); ++dim) expanded |= sizes[dim] > 1 && strides[dim] == 0;
  if (!expanded) {
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  }
  std::vector<int64_t> dense(sizes.size());
  int64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    dense[order[i]] = stride;
    stride *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return empty(sizes, {dense.data(), dense.size()}, dtype, like);
}

inline Tensor empty_contiguous(torch::headeronly::IntHeaderOnlyArrayRef sizes, ScalarType dtype, const Tensor& like) {
  int64_t strides[kMaxDims];
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  return empty(sizes, {strides, sizes.size()}, dtype, like);
}

}  // namespace cudaloss::tensors
