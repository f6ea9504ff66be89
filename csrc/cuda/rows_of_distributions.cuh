// The CUDA engine for losses of rows of two distributions, given by their logits: some lanes of a warp or a block have
// a row, of any strides and dtypes. Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/distribution_row.cuh"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// All threads of a warp, or of a block, must call it, also for a held row, because of the sums.
template <int kThreads, class T, class E, class Loss>
__device__ __forceinline__ void row_of_distributions(const DistributionParameters<T, E>& g, const Loss& loss,
                                                     const Task<Scalar<T>>& task, int lane, int lanes,
                                                     Partial<Scalar<T>>& sum) {
  using Row = RowOfDistributions<T, E>;
  using F = typename Row::F;
  using Read = typename Row::Read;
  extern __shared__ __align__(16) char memory[];
  const RowParameters<Partial<F>>& p = g.rows;
  typename Row::V* const stage = reinterpret_cast<typename Row::V*>(memory) + threadIdx.x;
  const Row row = {g,
                   offset(p, task.at, kInput),
                   offset(p, task.at, kTarget),
                   lane * Row::n,
                   task.counts ? p.classes : 0,
                   lanes * Row::n,
                   g.stages ? stage : nullptr,
                   kThreads};
  const Two<Read> max = row.template maxima<kThreads>(lanes);
  const Two<SeenLogits<T, Read>> logits = {SeenLogits<T, Read>::of(g.inverse, max.input, g.farthest),
                                           SeenLogits<T, Read>::of(g.inverse, max.target, g.farthest)};
  constexpr bool kIsPrecise = Loss::kIsCentred && !std::is_same_v<T, FastFloat>;
  const Two<F> others = row.template others<kThreads, kIsPrecise>(lanes, logits);
  const double by = as_double(WithRest<F>{task.factor.hi, task.factor.lo}) * loss.temperature;
  // A loss that is not centred is linear in q and p, and divides by their sums: both are lifted, so that what is kept
  // of a class has its digits where the gradient has them. Only in FastDouble: in float, and for float64's largest
  // logits, p d would overflow. And only for |by| above 1: for a smaller one OfKept's factors would be subnormal.
  constexpr bool kLifts = !Loss::kIsCentred && std::is_same_v<T, FastDouble>;
  const F lift = kLifts && fabs(by) > 1.0 ? F(0x1p100) : F(1);
  const SeenClasses<T, Read> seen = {
      logits, {lift / (F(1) + others.input), lift / (F(1) + others.target)}, log_of_sums(others.input, others.target)};
  // What is kept makes the gradients without all terms again. H200, jsd_with_logits, (32768, 4096) fp32, a step: 1.53
  // ms; with the target's gradient too, which needs the terms again, 2.42.
  constexpr bool kKeeps = !Loss::kIsCentred || Row::kKeepsBase;
  const bool keeps = kKeeps && g.stages && p.grad_input.data && !p.grad_target.data;
  const Terms<T> terms = row.template terms<kThreads>(lanes, seen, loss, keeps, by);
  if (task.held) return;
  const DistributionRow found = loss.row(value_in(terms.divergence), value_in(terms.slope), value_in(terms.base));
  const bool is_nan = !(absolute(max.input) <= largest(Read()) && absolute(max.target) <= largest(Read()));
  const double unread = task.counts ? NAN : 0.0;
  const double own = is_nan || !task.counts ? unread : loss.loss(found.divergence);
  if (lane == 0) add_loss(p, task.at, Partial<F>{own * static_cast<double>(task.weight)}, sum);
  if (!p.grad_input.data && !p.grad_target.data) return;
  const int64_t of_first = offset(p, task.at, kResult), of_second = offset(p, task.at, kSecondResult);
  if (is_nan || !task.counts) return row.fill_gradients(static_cast<Read>(unread), of_first, of_second);
  if constexpr (kKeeps) {
    if (keeps) return row.template write_kept<Loss>(Row::template of_kept<Loss>(found, by), of_first);
  }
  // Gradients of halves are computed in float. But input's gradient must have the bits that it has without target's:
  // if that one would come from kept slopes, both come from the arithmetic of these.
  if (Row::kKeepsBase || (!Loss::kIsCentred && g.stages)) {
    row.write_gradients(seen, loss, found, by, of_first, of_second);
  } else if constexpr (!Row::kKeepsBase) {
    row.write_gradients(seen.in_float(), loss, found, by, of_first, of_second);
  }
}

template <int kThreads, class T, class E, class Loss>
__global__ void __launch_bounds__(kThreads, kThreads > 128 ? 2 : 5)
    rows_of_distributions(const __grid_constant__ DistributionParameters<T, E> g, const __grid_constant__ Loss loss) {
  using F = Scalar<T>;
  const RowParameters<Partial<F>>& p = g.rows;
  release_next();
  wait_for_prior();
  if (all_held<F>(p)) return;
  const int lanes = 1 << g.lanes_shift, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const uint32_t rows = kThreads >> g.lanes_shift;
  Partial<F> sum = {};
  RowFactor<F> factor;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * rows; first < p.rows; first += gridDim.x * rows) {
    const Task<F> task = task_of<F, false>(p, factor, first + (threadIdx.x >> g.lanes_shift));
    if (lanes > 32 && task.held) continue;
    // Threads of a warp that have no row run with the others.
    row_of_distributions<kThreads, T, E>(g, loss, task, lane, lanes, sum);
  }
  reduce_losses<kThreads, SumsOf::Block>(p, sum);
}

// ---- host code ---------------------------------------------------------------------------------------------

// Blocks that have a row at a time take several: a block's start and its sum of losses are a twentieth of a row of
// 4,096 classes.
constexpr int64_t kWholeRowBlocks = 16384;
constexpr int kStagedVectors = 12;  // for each thread and operand: 48 KB in a block of 128

// How many threads a row has: each gets at least about four vectors of n. H200, (2^22, 10) fp32, a training step: 0.53
// ms, with two vectors 0.78. If rows are side by side, each has one thread, so that neighbours read side by side.
inline int lanes_shift_of(const Pass& r, int n, int threads_shift) {
  const int64_t between = r.inner.rank > 0 ? std::abs(r.inner.stride[0][kInput]) : 0;
  if (between != 0 && between < std::abs(r.rows.class_stride[kInput])) return 0;
  int shift = 0;
  while (shift < 5 && (int64_t{4} * n << shift) < r.rows.classes) ++shift;
  return r.rows.classes > 32 * n * kStagedVectors ? threads_shift : shift;
}

template <int kThreadsShift, class T, class E, class Loss>
void distributions_pass_of(const Pass& r, const Memory& memory, Stream stream) {
  using Row = RowOfDistributions<T, E>;
  using F = typename Row::F;
  constexpr int n = Row::n, kThreads = 1 << kThreadsShift;
  const Loss loss(r.numbers);
  auto p = row_parameters<Partial<F>>(r);
  const auto accessor = [&](const Operand& operand, Place place) {
    const bool vectorized = n > 1 && lies_in_vectors(r, operand.data, place, n);
    return accessor_of<E>(operand, {r.rows.class_stride[place], vectorized});
  };
  const int lanes_shift = lanes_shift_of(r, n, kThreadsShift);
  const int64_t vectors = plan::ceil_div(r.rows.classes, int64_t{n} << lanes_shift);
  const bool stages = vectors * kThreads <= kStagedVectors * 128;
  const int bytes = stages ? static_cast<int>(vectors * 2 * kThreads * sizeof(typename Row::V)) : 0;
  DistributionParameters<T, E> g = {p,
                                    static_cast<F>(1.0 / loss.temperature),
                                    static_cast<float>(ExpParts<double>::log2_e / loss.temperature),
                                    kFarthest * loss.temperature,
                                    lanes_shift,
                                    stages,
                                    accessor(r.input, kInput),
                                    accessor(r.target, kTarget),
                                    accessor(as_operand(r.grad_input), kResult),
                                    accessor(as_operand(r.grad_target), kSecondResult)};
  const auto start = [&](Start start, int64_t blocks) {
    g.rows = p;
    launch_with_shared(rows_of_distributions<kThreads, T, E, Loss>, start, blocks, kThreads, bytes, stream, g, loss);
  };
  const int64_t most = lanes_shift == kThreadsShift ? kWholeRowBlocks : plan::kMaxBlocks;
  start_rows(r, p, kThreads >> lanes_shift, memory, stream, start, most);
}

template <class T, class E, class Loss>
void distributions_pass_as(const Pass& r, const Memory& memory, Stream stream) {
  if (r.rows.classes > 8192) return distributions_pass_of<9, T, E, Loss>(r, memory, stream);
  distributions_pass_of<7, T, E, Loss>(r, memory, stream);
}
// Halves with an fp32 loss need more digits than those with a half, or without a loss.
template <class E, class Loss>
void distributions_pass_of_halves(const Pass& r, const Memory& memory, Stream stream) {
  if (r.loss_dtype == DType::Float32) return distributions_pass_as<FastDouble, E, Loss>(r, memory, stream);
  distributions_pass_as<FastFloat, E, Loss>(r, memory, stream);
}

template <class Loss>
void distributions_pass(const Pass& r, const Memory& memory, Stream stream) {
  const DType dtype = r.input.dtype;
  const bool are_alike = r.target.dtype == dtype && (!r.grad_input.data || r.grad_input.dtype == dtype) &&
                         (!r.grad_target.data || r.grad_target.dtype == dtype) && !wants_float64_rows(r);
  if (are_alike && dtype == DType::Float32) return distributions_pass_as<FastDouble, float, Loss>(r, memory, stream);
  if (are_alike && dtype == DType::Float16) return distributions_pass_of_halves<Half, Loss>(r, memory, stream);
  if (are_alike && dtype == DType::BFloat16) return distributions_pass_of_halves<BFloat16, Loss>(r, memory, stream);
  distributions_pass_of<7, double, Any<double>, Loss>(r, memory, stream);
}

}  // namespace cudaloss::cuda
