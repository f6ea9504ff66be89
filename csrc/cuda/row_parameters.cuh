// A pass over rows in the form for its kernels: where a row is, whether it counts, the factors of its gradients.
#pragma once

#include <algorithm>
#include <stdexcept>

#include "core/pairs.h"
#include "core/plan.h"
#include "cuda/dense.cuh"
#include "cuda/groups.cuh"
#include "cuda/launch.h"
#include "cuda/partition.h"

namespace cudaloss::cuda {

template <class P>
struct RowParameters {
  uint32_t rows, segments;
  FastDivmod by_inner;       // from a row to its segment
  OffsetCalculator offsets;  // of rows, one segment after another
  int32_t classes;
  int64_t class_stride[kPlaces];
  Operand input, target, weight, third;
  const uint8_t* mask;
  int64_t ignore_index;
  double softcap;

  double scale;
  Denominator denominator;
  Constant<float> known_scale;  // scale over denominator, if the host knows it
  bool scale_is_known;
  bool counts_rows;  // the denominator is the number of valid rows; each block counts them
  GradOutput grad_output;
  bool one_factor;  // all rows' gradients have the same one, apart from their weights

  Result grad_input, grad_target, grad_third, losses;
  bool wants_gradients;  // at least one
  bool sums;             // the losses: one partial sum for each block, or for each row if there are several segments
  Fold<P, SegmentLoss> fold;
  Part part;
};

// A row, and its indices along two dimensions, if there are no more.
struct RowPlace {
  uint32_t row, at[2];
};

template <class P>
__device__ __forceinline__ RowPlace place_of(const RowParameters<P>& p, uint32_t row) {
  if (p.offsets.rank <= 1) return {row, {row, 0}};
  const FastDivmod& size = p.offsets.size[0];
  const uint32_t over = size.quotient(row);
  return {row, {row - over * size.divisor, over}};
}

template <class P>
__device__ __forceinline__ int64_t offset(const RowParameters<P>& p, const RowPlace& place, Place whose) {
  int64_t sum = place.at[0] * p.offsets.step[0][whose];
  if (p.offsets.rank <= 1) return sum;
  if (p.offsets.rank == 2) return sum + place.at[1] * p.offsets.step[1][whose];
  uint32_t rest = place.at[1];
#pragma unroll 1
  for (int d = 1; d < p.offsets.rank; ++d) {
    const uint32_t over = p.offsets.size[d].quotient(rest);
    sum += (rest - over * p.offsets.size[d].divisor) * p.offsets.step[d][whose];
    rest = over;
  }
  return sum;
}
template <class P>
__device__ __forceinline__ uint32_t segment_of(const RowParameters<P>& p, const RowPlace& place) {
  return p.segments > 1 ? p.by_inner.quotient(place.row) : 0;
}

__device__ __forceinline__ int64_t index_at(const Operand& target, int64_t i) {
  if (target.dtype == DType::Int64) return static_cast<const int64_t*>(target.data)[i];
  switch (target.dtype) {
    case DType::UInt8:
      return static_cast<const uint8_t*>(target.data)[i];
    case DType::Int8:
      return static_cast<const int8_t*>(target.data)[i];
    case DType::Int16:
      return static_cast<const int16_t*>(target.data)[i];
    default:
      return static_cast<const int32_t*>(target.data)[i];
  }
}

template <class F>
__device__ __forceinline__ F floating_at(const Operand& operand, int64_t i) {
  F number = F();
  dispatch(operand.dtype,
           [&](auto type) { number = widen<F>(static_cast<const typename decltype(type)::type*>(operand.data)[i]); });
  return number;
}

// What to do with a row. A row that does not count has loss and gradients 0, whatever its logits and target are. A row
// whose target is not a class has NaN.
template <class F>
struct Task {
  RowPlace at;
  bool counts, is_class, held;  // held: its gradients are already right
  int32_t target;               // no class if the row does not count; with probabilities a class with the largest logit
  F weight;                     // of the row
  F class_weight;               // of the target index's class
  Constant<F> factor;           // of the gradients, including the weight
};

template <class F, class P>
__device__ __forceinline__ Constant<F> grad_output_of(const RowParameters<P>& p, const RowPlace& at) {
  if (!p.grad_output.operand.data) return {F(1), F(0)};
  return p.grad_output.at(p.grad_output.scalar ? 0 : offset(p, at, kGradOutput), F());
}

// Waits for the kernel before this one if it could be the grad_output's. Otherwise it is a count: the logits were there
// before it began, and the expected grad_output too, so their loads need not wait.
template <class P>
__device__ __forceinline__ void start_reading(const RowParameters<P>& p) {
  if (p.grad_output.operand.data && !p.grad_output.is_expected()) wait_for_prior();
}

// Whether there is nothing to do, because all gradients are already right for the one grad_output of all rows. Also
// writes the record or the slot.
template <class F, class P>
__device__ __forceinline__ bool all_held(const RowParameters<P>& p) {
  p.grad_output.note();
  return p.grad_output.hold_gradients && p.grad_output.scalar && p.grad_output.holds(p.grad_output.at(0, F()));
}

template <class F, class P>
__device__ __forceinline__ Constant<F> scale_of(const RowParameters<P>& p, uint32_t segment) {
  if constexpr (sizeof(F) == sizeof(float)) {
    if (p.scale_is_known) return p.known_scale;
  }
  return constant_of(factor_of<F>(p.scale, p.denominator.at(segment)), F());
}
template <class F, class P>
__device__ __forceinline__ Constant<F> factor_of_row(const RowParameters<P>& p, const RowPlace& at) {
  const Constant<F> scale = scale_of<F>(p, segment_of(p, at));
  return p.grad_output.operand.data ? times(scale, grad_output_of<F>(p, at)) : scale;
}

// The factor of a thread's rows' gradients, without their weights; looked up only once if all rows have the same.
template <class F>
struct RowFactor {
  Constant<F> factor;
  bool is_known = false;

  template <class P>
  __device__ __forceinline__ Constant<F> at(const RowParameters<P>& p, const RowPlace& place) {
    if (!is_known) factor = factor_of_row<F>(p, place);
    is_known = p.one_factor;
    return factor;
  }
};

// The denominator of few rows, for the block's sums and its rows' factors. So a step of 64 rows of 1,000 classes in a
// graph has one launch; a separate count would be a second one. It is in shared memory, because it is needed last.
template <int kThreads, class F, class P>
__device__ __forceinline__ const Divisor& count_rows(const RowParameters<P>& p, RowFactor<F>& of_rows) {
  __shared__ Divisor kept;
  if (!p.counts_rows) return kept;
  int count = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < p.rows; first += kThreads) {
    const uint32_t row = first + threadIdx.x;
    count +=
        __syncthreads_count(row < p.rows && index_at(p.target, offset(p, place_of(p, row), kTarget)) != p.ignore_index);
  }
  const Divisor found = {static_cast<double>(count), count == 0 ? 0.0 : 1.0 / count};
  const Constant<F> scale = constant_of(factor_of<F>(p.scale, found), F());
  of_rows.factor = p.grad_output.operand.data ? times(scale, grad_output_of<F>(p, RowPlace{})) : scale;
  of_rows.is_known = true;
  if (threadIdx.x == 0) kept = found;
  return kept;
}

// Makes a task in three steps, so that a kernel can start to read logits in between: where the row is,
// (kUsual: nothing of a row is optional, and its target is a dense int64; see has_usual_rows)
template <class F, bool kUsual = false, class P>
__device__ __forceinline__ Task<F> task_at(const RowParameters<P>& p, uint32_t row) {
  Task<F> task = {};
  task.target = -1;
  task.weight = task.class_weight = F(1);
  task.held = row >= p.rows;
  if (task.held) return task;
  task.at = place_of(p, row);
  if (!kUsual && p.grad_output.hold_gradients) task.held = p.grad_output.holds(grad_output_of<F>(p, task.at));
  return task;
}
// its target's index; its use waits for the load,
struct TargetIndex {
  bool is_selected;
  int64_t index;
};
template <class F, class P>
__device__ __forceinline__ bool is_selected(const RowParameters<P>& p, const Task<F>& task) {
  return !task.held && (!p.mask || p.mask[offset(p, task.at, kMask)] != 0);
}
template <bool kUsual = false, class F, class P>
__device__ __forceinline__ TargetIndex index_of(const RowParameters<P>& p, const Task<F>& task) {
  if (task.held) return {false, 0};
  if (kUsual) return {true, static_cast<const int64_t*>(p.target.data)[task.at.row]};
  return {is_selected(p, task), index_at(p.target, offset(p, task.at, kTarget))};
}
// the target (for a part: one of all processes' classes),
template <bool kIsPart = false, class F, class P>
__device__ __forceinline__ void take_target(const RowParameters<P>& p, Task<F>& task, const TargetIndex& read) {
  const int64_t all = kIsPart ? p.part.all_classes : p.classes;
  const int64_t own = kIsPart ? read.index - p.part.first_class : read.index;
  task.counts = read.is_selected && read.index != p.ignore_index;
  task.is_class = task.counts && static_cast<uint64_t>(read.index) < static_cast<uint64_t>(all);
  const bool has = !kIsPart || static_cast<uint64_t>(own) < static_cast<uint64_t>(p.classes);
  if (task.is_class && has) task.target = static_cast<int32_t>(own);
}
// and the factors of its gradients.
template <bool kUsual = false, class F, class P>
__device__ __forceinline__ void read_factors(const RowParameters<P>& p, RowFactor<F>& of_rows, Task<F>& task) {
  if constexpr (kUsual) {
    if (p.wants_gradients) task.factor = of_rows.at(p, task.at);
    return;
  }
  if (task.held || !task.counts) return;
  if (p.weight.data) task.weight = floating_at<F>(p.weight, offset(p, task.at, kWeight));
  if (p.third.data && task.target >= 0) {
    task.class_weight = floating_at<F>(p.third, task.target * p.class_stride[kThird]);
  }
  if (!p.wants_gradients) return;
  task.factor = of_rows.at(p, task.at);
  if (p.weight.data) task.factor = times(task.factor, Constant<F>{task.weight, F(0)});
}

// The gradient at the target of a part's row, if this part has the target.
template <class F, class P>
__device__ __forceinline__ F grad_target_of(const RowParameters<P>& p, const Task<F>& task) {
  if (task.target < 0 || !p.part.grad_targets.data) return F(0);
  return floating_at<F>(p.part.grad_targets, offset(p, task.at, kGradOutput));
}

// kIndices: the targets are indices.
template <class F, bool kIndices, bool kIsPart = false, class P>
__device__ __forceinline__ Task<F> task_of(const RowParameters<P>& p, RowFactor<F>& of_rows, uint32_t row) {
  Task<F> task = task_at<F>(p, row);
  if (kIndices) {
    take_target<kIsPart>(p, task, index_of(p, task));
  } else if (!task.held) {
    task.counts = is_selected(p, task);
    task.is_class = true;
  }
  read_factors(p, of_rows, task);
  return task;
}

template <class P>
__device__ __forceinline__ double weighted(const RowParameters<P>& p, const Task<float>& task, double loss) {
  return p.weight.data ? loss * double{task.weight} : loss;
}

// Stores or adds a row's weighted loss; `loss` has two parts or one. One thread calls it.
template <class P>
__device__ __forceinline__ void add_loss(const RowParameters<P>& p, const RowPlace& at, const P& loss, P& sum) {
  if (p.losses.data) {
    const int64_t i = offset(p, at, kResult);
    if constexpr (std::is_same_v<P, double>) {
      store_scalar(p.losses, i, loss * p.scale);
    } else {
      store_scalar(p.losses, i, loss.times(p.scale).over(1.0));
    }
  }
  if (!p.sums) return;
  if (p.segments > 1) {
    const uint32_t segment = segment_of(p, at), within = at.row - segment * p.by_inner.divisor;
    p.fold.partials[int64_t{within} * p.segments + segment] = loss;
  } else {
    sum = sum + loss;
  }
}

// The same for an unweighted loss.
template <bool kUsual, class P>
__device__ __forceinline__ void add_row(const RowParameters<P>& p, const Task<float>& task, double loss, double& sum) {
  if constexpr (kUsual) {
    sum += loss;
  } else {
    add_loss(p, task.at, weighted(p, task, loss), sum);
  }
}

// Reduces the sums of the block's first thread, or of all its threads. `counted` is the result of count_rows; null if
// the pass has no indices.
enum class SumsOf { Thread, Block };
template <int kThreads, SumsOf kSums, class P>
__device__ __forceinline__ void reduce_losses(const RowParameters<P>& p, const P& sum,
                                              const Divisor* counted = nullptr) {
  if (!p.sums || p.segments > 1) return;
  P total = sum;
  if constexpr (kSums == SumsOf::Block) total = block_sum<kThreads, P>(sum);
  if (!grid_reduce<kThreads>(total, p.fold) || threadIdx.x != 0) return;
  SegmentLoss store = p.fold.store;
  if (counted && p.counts_rows) store.denominator.constant = *counted;
  store(total, 0);
}

// For a part: stores the target's logit beside the loss.
template <class P>
__device__ __forceinline__ void store_target_logit(const RowParameters<P>& p, const RowPlace& at, double logit) {
  if (p.part.targets.data) store_scalar(p.part.targets, offset(p, at, kResult), logit);
}

// ---- host code ---------------------------------------------------------------------------------------------

inline bool is_fp64(const void* data, DType dtype) { return data && dtype == DType::Float64; }
inline bool wants_float64_rows(const Pass& r) {
  if (r.part.all_classes) return is_fp64(r.input.data, r.input.dtype);  // the losses of a part are fp64 for all logits
  return is_fp64(r.input.data, r.input.dtype) || is_fp64(r.target.data, r.target.dtype) ||
         is_fp64(r.selection.weight.data, r.selection.weight.dtype) || is_fp64(r.third.data, r.third.dtype) ||
         r.loss_dtype == DType::Float64;
}

// The dimensions of `slower` after those of `faster`.
inline Dims joined(const Dims& faster, const Dims& slower) {
  Dims dims = faster;
  for (int d = 0; d < slower.rank; ++d, ++dims.rank) {
    dims.size[dims.rank] = slower.size[d];
    std::copy(slower.stride[d], slower.stride[d] + kPlaces, dims.stride[dims.rank]);
  }
  return dims;
}

template <class P>
RowParameters<P> row_parameters(const Pass& r) {
  const int64_t inner = r.inner.count(), segments = r.segments.count();
  constexpr int64_t kMost = int64_t{1} << 31, kStep = 1 << 16;  // more than a row's threads take in a step
  if (inner * segments >= kMost || r.rows.classes > kMost - kStep) {
    throw std::runtime_error("cudaloss: too many rows, or too many classes, for a pass");
  }
  RowParameters<P> p = {};
  p.rows = static_cast<uint32_t>(inner * segments);
  p.segments = static_cast<uint32_t>(segments);
  p.by_inner = FastDivmod::by(std::max<int64_t>(inner, 1));
  p.offsets = offsets_of(joined(r.inner, r.segments));
  p.classes = static_cast<int32_t>(r.rows.classes);
  std::copy(r.rows.class_stride, r.rows.class_stride + kPlaces, p.class_stride);
  p.input = r.input;
  p.target = r.target;
  p.weight = r.selection.weight;
  p.third = r.third;
  p.mask = static_cast<const uint8_t*>(r.selection.mask.data);
  p.ignore_index = r.rows.ignore_index;
  p.softcap = r.rows.softcap;
  p.scale = r.scale;
  p.denominator = r.denominator;
  p.scale_is_known = !r.denominator.counted && !r.denominator.normalizer.data;
  p.counts_rows = r.denominator.of_few_rows;
  p.known_scale = ratio(r.scale, r.denominator.constant.value, 0.0f);
  p.grad_output = GradOutput(r, !varies(r.segments, kGradOutput) && !varies(r.inner, kGradOutput));
  p.one_factor = (segments <= 1 || !(r.denominator.counted && r.denominator.counted_each)) && p.grad_output.scalar;
  p.grad_input = r.grad_input;
  p.grad_target = r.grad_target;
  p.grad_third = r.grad_third;
  p.wants_gradients = r.wants_gradients();
  p.losses = r.losses;
  p.sums = r.reduction.data != nullptr;
  p.part = r.part;
  return p;
}

// Starts `kernel(p)` over tiles of this many rows, in `most` blocks at most, and the fold if it is needed.
template <class P, class Launch>
void start_rows(const Pass& r, RowParameters<P>& p, int64_t rows_a_block, const Memory& memory, Stream stream,
                const Launch& start, int64_t most = plan::kMaxBlocks) {
  const SegmentLoss store = {r.denominator, r.scale, true, r.reduction};
  int64_t blocks = plan::blocks_for(plan::ceil_div(p.rows, rows_a_block), most);
  if (r.hold_gradients) blocks = std::min(blocks, plan::kPersistentBlocks);
  const auto run = [&](const Fold<P, SegmentLoss>& fold) {
    p.fold = fold;
    start(r.denominator.counted ? Start::Behind : Start::Alone, blocks);
  };
  if (!p.sums) {
    if (p.rows > 0) run({nullptr, nullptr, store});
    return;
  }
  if (p.segments == 1) return folded<P>(blocks, store, memory, stream, run);
  const Workspace workspace = memory.of<P>(std::max<int64_t>(p.rows, 1));
  if (p.rows > 0) run({static_cast<P*>(workspace.partials), nullptr, store});
  fold_segments<P>(p.segments, p.rows / std::max<uint32_t>(p.segments, 1), store, workspace, stream);
}

}  // namespace cudaloss::cuda
