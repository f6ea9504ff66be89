// Sums of overlap and their gradients: which kernels a pass takes, the fold of the blocks' sums, a loss of the sums.
#include "cuda/overlap.h"
#include "cuda/overlap_any.cuh"
#include "cuda/overlap_elements.cuh"
#include "cuda/overlap_softmax.cuh"

namespace cudaloss::cuda {

namespace overlaps {

namespace {

// For all samples, if they have so many tiles. More than a GPU holds at a time: (8, 1, 256, 256, 128) fp32 takes 0.138
// ms, with 1024 0.146.
constexpr int64_t kAllBlocks = 2048;
constexpr int kFoldThreads = 512, kFoldValues = 8, kFoldWarps = kFoldThreads / 32;

// sums[group][value]: of the partial sums of a group's blocks, in an order that depends on their number alone. A block
// has some values of a group.
__global__ void __launch_bounds__(kFoldThreads)
    fold_overlap(const double* partials, int blocks, int values, double* sums) {
  __shared__ double of_warps[kFoldWarps][kFoldValues];
  release_next();
  wait_for_prior();
  const int parts = (values + kFoldValues - 1) / kFoldValues, group = blockIdx.x / parts;
  const int place = threadIdx.x % kFoldValues, value = blockIdx.x % parts * kFoldValues + place;
  const double* const own = partials + int64_t{group} * blocks * values + value;
  double sum = 0.0;
#pragma unroll 4
  for (int i = threadIdx.x / kFoldValues; value < values && i < blocks; i += kFoldThreads / kFoldValues) {
    sum += own[int64_t{i} * values];
  }
  for (int distance = kFoldValues; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
  if (threadIdx.x % 32 < kFoldValues) of_warps[threadIdx.x / 32][place] = sum;
  __syncthreads();
  if (threadIdx.x >= kFoldValues || value >= values) return;
  for (int i = 1; i < kFoldWarps; ++i) sum += of_warps[i][place];
  sums[int64_t{group} * values + value] = sum;
}
void launch_fold(const double* partials, int64_t groups, int64_t blocks, int64_t values, double* sums, Stream stream) {
  launch(fold_overlap, Start::Behind, groups * plan::ceil_div(values, kFoldValues), kFoldThreads, stream, partials,
         static_cast<int>(blocks), static_cast<int>(values), sums);
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
// Of a pass whose strides fit.
NearStrides near_strides(const int64_t (&stride)[kOverlapDims], int64_t bytes) {
  const auto narrow = [&](OverlapDim d) { return static_cast<int32_t>(stride[d] * bytes); };
  return {stride[kSample] * bytes, 0, narrow(kClass), narrow(kInner), narrow(kOuter)};
}
void make_near(OverlapTask& task) {
  const Overlap& p = task.of;
  const int64_t bytes = size_of(p.input.dtype);
  task.input = near_strides(p.input_stride, bytes), task.gradient = near_strides(p.gradient_stride, bytes);
  dispatch_any(p.target.dtype,
               [&](auto type) { task.target = near_strides(p.target_stride, sizeof(typename decltype(type)::type)); });
  task.mask = near_strides(p.mask_stride, 1);
  task.has_outer = p.outer > 1;
  const auto lies = [&](const void* data, const int64_t (&stride)[kOverlapDims], bool in_rows) {
    const int64_t n = kVectorBytes / bytes;
    if (!in_rows) return lies_dense(data, stride, n, p.outer > 1);
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 && stride[kClass] == 1 && p.outer <= 1 &&
           stride[kInner] == p.classes && stride[kSample] % n == 0;
  };
  const auto all_lie = [&](bool in_rows) {
    return lies(p.input.data, p.input_stride, in_rows) &&
           (!p.gradient.data || lies(p.gradient.data, p.gradient_stride, in_rows));
  };
  task.order.in_rows = !all_lie(false) && all_lie(true);
  task.comes = task.order.in_rows || all_lie(false);
  for (int64_t j = 0; j < kNearClasses; ++j) {
    const int64_t own = std::min(j, p.classes - 1) * bytes;
    task.of_input[j] = own * p.input_stride[kClass], task.of_gradient[j] = own * p.gradient_stride[kClass];
    task.counts[j] = j < p.classes ? 1.0f : 0.0f;
  }
}
// of_lane: the voxels of a lane.
void order_logits(OverlapTask& task, int of_lane) {
  LogitsOrder& order = task.order;
  const bool are_words = task.comes && !order.in_rows;
  order.next_lane = are_words ? of_lane : 1, order.next_voxel = are_words ? 1 : 32;
  order.of_voxel = order.in_rows ? static_cast<int32_t>(task.of.classes) : 1;
  order.of_class = order.in_rows ? 1 : 32 * of_lane;
  const int64_t of_class = 32 * of_lane * size_of(task.of.input.dtype) / kVectorBytes;  // pieces of 16 bytes
  for (NearStrides* stride : {&task.input, &task.gradient}) {
    stride->of_pieces = order.in_rows ? 32 * kVectorBytes : 32 / of_class * stride->of_class;
  }
}
// Whether a voxel's logits are read several times.
bool reads_again(const Overlap& p) {
  if (p.activation != Activation::Softmax) return false;
  const bool is_near = fits(p.input_stride) && fits(p.target_stride) && fits(p.mask_stride) && fits(p.gradient_stride);
  return p.classes > kNearClasses || p.input.dtype == DType::Float64 || !p.has_indices || !is_near;
}

template <class E>
struct Kernels {
  using Kernel = void (*)(OverlapTask);
  Kernel sums, gradient;
  int64_t shared, logits;  // bytes of the sums, and of the logits that come ahead
  int of_lane;             // voxels

  template <int kPlace>
  static Kernels of_classes(const Overlap& p) {
    constexpr int kClasses = kNearSizes[kPlace].classes;
    constexpr int64_t kCounts = kClasses * kThreads, kFloats = kCounts * sizeof(float);
    constexpr int64_t kLogits = kWarps * WarpLogits<E, kPlace>::kBytes;
    const Kernel gradient = softmax_gradient<E, kPlace>;
    constexpr int kOfLane = WarpLogits<E, kPlace>::kOfLane;
    if (p.entropy) return {softmax_sums<E, kPlace, true>, gradient, 2 * kFloats + kCounts, kLogits, kOfLane};
    return {softmax_sums<E, kPlace, false>, gradient, kFloats + kCounts, kLogits, kOfLane};
  }
  static Kernels of(const Overlap& p) {
    if (p.activation != Activation::Softmax) {
      if (!is_dense(p)) return {element_sums<E, Reading::Any, true>, element_gradient<E, Reading::Any>, 0, 0, 1};
      const Kernel gradient = element_gradient<E, Reading::Dense>;
      if (p.entropy) return {element_sums<E, Reading::Dense, true>, gradient, 0, 0, 1};
      return {element_sums<E, Reading::Dense, false>, gradient, 0, 0, 1};
    }
    if constexpr (!std::is_same_v<E, double>) {
      if (!reads_again(p)) {
        const int place = near_place(p.classes);
        return place == 0 ? of_classes<0>(p) : place == 1 ? of_classes<1>(p) : of_classes<2>(p);
      }
    }
    const int64_t of_block = kWarps * p.classes * kOverlapSums * sizeof(double);
    return {any_softmax_sums<Beside<E>, E>, any_softmax_gradient<Beside<E>, E>, of_block, 0, 1};
  }
};

constexpr int kFinishThreads = 256;
__global__ void __launch_bounds__(kFinishThreads) finish_overlap(const __grid_constant__ OverlapLoss of) {
  __shared__ double all_divisors;
  wait_for_prior();
  const int64_t count = of.samples * of.classes;
  OverlapTerms sum = {};
  for (int64_t place = threadIdx.x; place < count; place += kFinishThreads) sum = sum + overlap_part(of, place).terms;
  const OverlapTerms all = block_sum<kFinishThreads, OverlapTerms>(sum);  // one: two in turn would share their memory
  if (threadIdx.x == 0) {
    all_divisors = all.divisor;
    store_scalar(of.loss, 0, overlap_value(of, all));
  }
  __syncthreads();
  for (int64_t place = threadIdx.x; place < count; place += kFinishThreads) {
    store_overlap_slopes(of, place, overlap_part(of, place), all_divisors);
  }
}

int64_t blocks_of(const Overlap& p) {
  const bool of_classes = p.activation != Activation::Softmax;
  const int64_t groups = p.samples * (of_classes ? p.classes : 1);
  const int64_t all = of_classes ? kAllBlocks : kNearSizes[near_place(p.classes)].all_blocks;
  const int64_t tiles = plan::ceil_div(p.voxels(), reads_again(p) ? kThreads : kTile);
  return std::max<int64_t>(1, std::min(tiles, plan::ceil_div(all, std::max<int64_t>(groups, 1))));
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
  if (!of_classes && !reads_again(p)) make_near(task);
  dispatch(p.input.dtype, [&](auto type) {
    const auto kernels = Kernels<typename decltype(type)::type>::of(p);
    if (p.grads) {  // more blocks than for sums, which have partials
      task.blocks = static_cast<uint32_t>(plan::ceil_div(p.voxels(), kTile));
      order_logits(task, kernels.of_lane);
      return launch_with_shared(kernels.gradient, Start::Alone, groups * task.blocks, kThreads,
                                task.comes ? static_cast<int>(kernels.logits) : 0, stream, task);
    }
    int shared = static_cast<int>(kernels.shared);
    if (task.comes) {  // if all blocks of a processor have room for logits beside their sums
      const int both = static_cast<int>(kernels.shared + kernels.logits);
      task.comes = both <= shared_memory_of(kNearSizes[near_place(p.classes)].blocks_of_sums);
      if (task.comes) shared = both;
    }
    order_logits(task, kernels.of_lane);
    launch_with_shared(kernels.sums, Start::Alone, groups * task.blocks, kThreads, shared, stream, task);
    launch_fold(partials, groups, task.blocks, kOverlapSums * (of_classes ? 1 : p.classes), p.sums, stream);
  });
}

void overlap_loss(const OverlapLoss& loss, double* totals, Stream stream) {
  using namespace overlaps;
  OverlapLoss of = loss;
  if (of.batch) {
    launch_fold(of.sums, 1, of.samples, of.classes * kOverlapSums, totals, stream);
    of.totals = totals;
  }
  launch(finish_overlap, Start::Behind, 1, kFinishThreads, stream, of);
}

}  // namespace cudaloss::cuda
