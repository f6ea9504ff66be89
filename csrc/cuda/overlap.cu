// Sums of overlap and their gradients: which kernels a pass takes, the fold of the blocks' sums, a loss of the sums.
#include "cuda/overlap.h"
#include "cuda/overlap_any.cuh"
#include "cuda/overlap_elements.cuh"
#include "cuda/overlap_softmax.cuh"

namespace cudaloss::cuda {

namespace overlaps {

namespace {

constexpr int64_t kAllBlocks = 1024;  // for all samples, if they have so many tiles
constexpr int kFoldThreads = 512;

// sums[sample][value]: of all its blocks, in an order that depends on their number alone.
__global__ void __launch_bounds__(kFoldThreads)
    fold_overlap(const double* partials, int blocks, int values, double* sums) {
  __shared__ double of_slices[kFoldThreads];
  const double* const own = partials + int64_t{blockIdx.x} * blocks * values;
  const int width = min(values, kFoldThreads), slices = kFoldThreads / width;
  const int slice = threadIdx.x / width, place = threadIdx.x % width;
  for (int first = 0; first < values; first += width) {
    const int value = first + place;
    const bool has = slice < slices && value < values;
    double sum = 0.0;
#pragma unroll 8
    for (int block = slice; has && block < blocks; block += slices) sum += own[int64_t{block} * values + value];
    of_slices[threadIdx.x] = sum;
    __syncthreads();
    if (has && slice == 0) {
      for (int i = 1; i < slices; ++i) sum += of_slices[i * width + place];
      sums[int64_t{blockIdx.x} * values + value] = sum;
    }
    __syncthreads();
  }
}

// Whether 16 bytes at a time hold voxels of one class, in order, and the first ones begin there.
bool lies_dense(const void* data, const int64_t (&stride)[kOverlapDims], int64_t n, bool is_outer) {
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 && stride[kInner] == 1 && !is_outer &&
         stride[kSample] % n == 0 && stride[kClass] % n == 0;
}
bool is_dense(const Overlap& p) {
  const int64_t n = kVectorBytes / size_of(p.input.dtype);
  return !p.mask && !p.has_indices && p.target.dtype == p.input.dtype && p.voxels() % n == 0 &&
         lies_dense(p.input.data, p.input_stride, n, p.outer > 1) &&
         lies_dense(p.target.data, p.target_stride, n, p.outer > 1) &&
         (!p.gradient.data || lies_dense(p.gradient.data, p.gradient_stride, n, p.outer > 1));
}

// Whether 32 bits hold the bytes between neighbours.
bool fits(const int64_t (&stride)[kOverlapDims]) {
  return std::all_of(stride + kClass, stride + kOverlapDims,
                     [](int64_t x) { return std::abs(x) < (int64_t{1} << 28); });
}
// Whether a voxel's logits are read several times.
bool reads_again(const Overlap& p) {
  if (p.activation != Activation::Softmax) return false;
  const bool is_near = fits(p.input_stride) && fits(p.target_stride) && fits(p.mask_stride) && fits(p.gradient_stride);
  return p.classes > 32 || p.input.dtype == DType::Float64 || !p.has_indices || !is_near;
}

template <class E>
struct Kernels {
  using Kernel = void (*)(OverlapTask);
  Kernel sums, gradient;
  int64_t shared;  // of the sums

  template <int kClasses>
  static Kernels of_classes(const Overlap& p) {
    constexpr int64_t kColumns = kClasses * sizeof(float) * kThreads;
    if (p.entropy) return {softmax_sums<E, kClasses, true>, softmax_gradient<E, kClasses>, 3 * kColumns};
    return {softmax_sums<E, kClasses, false>, softmax_gradient<E, kClasses>, 2 * kColumns};
  }
  static Kernels of(const Overlap& p) {
    if (p.activation != Activation::Softmax) {
      if (!is_dense(p)) return {element_sums<E, Reading::Any, true>, element_gradient<E, Reading::Any>, 0};
      const Kernel gradient = element_gradient<E, Reading::Dense>;
      if (p.entropy) return {element_sums<E, Reading::Dense, true>, gradient, 0};
      return {element_sums<E, Reading::Dense, false>, gradient, 0};
    }
    if constexpr (!std::is_same_v<E, double>) {
      if (!reads_again(p)) {
        if (p.classes <= 4) return of_classes<4>(p);
        return p.classes <= 16 ? of_classes<16>(p) : of_classes<32>(p);
      }
    }
    const int64_t of_block = kWarps * p.classes * kOverlapSums * sizeof(double);
    return {any_softmax_sums<Beside<E>, E>, any_softmax_gradient<Beside<E>, E>, of_block};
  }
};

constexpr int kFinishThreads = 256;
__global__ void __launch_bounds__(kFinishThreads) finish_overlap(const __grid_constant__ OverlapLoss of) {
  __shared__ double all_divisors;
  const int64_t count = of.samples * of.classes;
  double ratios = 0.0, entropies = 0.0, divisor = 0.0;
  for (int64_t place = threadIdx.x; place < count; place += kFinishThreads) {
    const OverlapPart part = overlap_part(of, place);
    ratios += part.ratio, entropies += part.entropy, divisor += part.divisor;
  }
  ratios = block_sum<kFinishThreads, double>(ratios);
  entropies = block_sum<kFinishThreads, double>(entropies);
  divisor = block_sum<kFinishThreads, double>(divisor);
  if (threadIdx.x == 0) {
    all_divisors = divisor;
    store_scalar(of.loss, 0, overlap_value(of, ratios, entropies, divisor));
  }
  __syncthreads();
  for (int64_t place = threadIdx.x; place < count; place += kFinishThreads) {
    store_overlap_slopes(of, place, overlap_part(of, place), all_divisors);
  }
}

int64_t blocks_of(const Overlap& p) {
  const int64_t groups = p.samples * (p.activation == Activation::Softmax ? 1 : p.classes);
  const int64_t tiles = plan::ceil_div(p.voxels(), reads_again(p) ? kThreads : kTile);
  return std::max<int64_t>(1, std::min(tiles, plan::ceil_div(kAllBlocks, std::max<int64_t>(groups, 1))));
}

}  // namespace

}  // namespace overlaps

int64_t overlap_partials(const Overlap& p) { return overlaps::blocks_of(p) * p.samples * p.classes * kOverlapSums; }

void overlap(const Overlap& p, double* partials, Stream stream) {
  using namespace overlaps;
  const bool of_classes = p.activation != Activation::Softmax;
  const int64_t groups = p.samples * (of_classes ? p.classes : 1);
  OverlapTask task = {p, FastDivmod::by(std::max<int64_t>(p.inner, 1)), static_cast<uint32_t>(p.voxels()),
                      static_cast<uint32_t>(blocks_of(p)), partials};
  dispatch(p.input.dtype, [&](auto type) {
    const auto kernels = Kernels<typename decltype(type)::type>::of(p);
    if (p.grads) {  // more blocks than for sums, which have partials
      task.blocks = static_cast<uint32_t>(plan::ceil_div(p.voxels(), kTile));
      return launch(kernels.gradient, Start::Alone, groups * task.blocks, kThreads, stream, task);
    }
    launch_with_shared(kernels.sums, Start::Alone, groups * task.blocks, kThreads, static_cast<int>(kernels.shared),
                       stream, task);
    const auto values = static_cast<int>(kOverlapSums * (of_classes ? 1 : p.classes));
    launch(fold_overlap, Start::Alone, groups, kFoldThreads, stream, partials, static_cast<int>(task.blocks), values,
           p.sums);
  });
}

void overlap_loss(const OverlapLoss& loss, Stream stream) {
  launch(overlaps::finish_overlap, Start::Alone, 1, overlaps::kFinishThreads, stream, loss);
}

}  // namespace cudaloss::cuda
