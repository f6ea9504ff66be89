// The CUDA engine for losses of rows of two distributions, given by their logits: some lanes of a warp or a block have
// a row, of any strides and dtypes. Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/distribution_row.cuh"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// What a row's results are made of.
template <class N, class Read, class Targets>
struct DistributionResult {
  N divergence;
  OfKept<Read> kept;
  Targets targets;
};
template <class Row, class Loss>
__device__ __forceinline__ auto result_of(const Loss& loss, const Terms<typename Row::Arithmetic>& terms,
                                          const Constant<typename Row::F>& factor, const Constant<typename Row::F>&) {
  using Read = typename Row::Read;
  using K = typename Row::K;
  const double excess = value_in(terms.excess);
  const auto found = loss.corrected(value_in(terms.divergence), excess, value_in(terms.p));
  const double by = as_double(WithRest<typename Row::F>{factor.hi, factor.lo}) * loss.temperature,
               of_q = by * found.of_q;
  const OfKept<Read> kept = {constant_of(of_q, Read()), static_cast<Read>(-excess * found.of_p * of_q)};
  const OfTarget<K> targets = {static_cast<K>(found.lowered), static_cast<K>(found.divergence),
                               static_cast<K>(found.of_p), static_cast<K>(by)};
  return DistributionResult<double, Read, OfTarget<K>>{found.divergence, kept, targets};
}
template <class Row, class Loss>
__device__ __forceinline__ auto result_of(const Loss& loss, const PairedTotals& terms, const Constant<float>& factor,
                                          const Constant<float>& temperature) {
  const auto found = loss.corrected(terms.divergence, normalized(terms.excess), normalized(terms.p));
  const WithRest<float> by =
      sound(WithRest<float>{factor.hi, factor.lo} * WithRest<float>{temperature.hi, temperature.lo});
  const WithRest<float> of_q = sound(by * found.of_q);
  const OfKept<float> kept = {{of_q.value, of_q.rest}, -found.more * of_q.value};
  const WithRest<float> above = difference_of(found.divergence, WithRest<float>{found.lowered, 0.0f});
  return DistributionResult<WithRest<float>, float, OfPairedTarget>{
      found.divergence, kept, {above, sound(by * found.of_p)}};
}
// For gradients with 11 bits, of q and p that add up to 1.
template <class Result>
__device__ __forceinline__ Result in_float(const Result& result, float) {
  return result;
}
__device__ __forceinline__ DistributionResult<WithRest<float>, float, OfTarget<float>> in_float(
    const DistributionResult<WithRest<float>, float, OfPairedTarget>& result, float by) {
  return {result.divergence, {{by, 0.0f}, 0.0f}, {0.0f, result.targets.above.value, 1.0f, by}};
}

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
  const Two<ExpSum> sums = row.template sums<kThreads>(lanes, max);
  const Two<F> others = {F(sums.input.others()), F(sums.target.others())};
  const float by = static_cast<float>(task.factor.hi * g.temperature.hi);
  const auto seen = seen_classes<T>(g, max, others, by);
  const bool keeps = g.stages && p.grad_input.data && !p.grad_target.data;
  const auto terms = row.template terms<kThreads>(lanes, seen, loss, keeps);
  if (task.held) return;
  const auto result = result_of<Row>(loss, terms, task.factor, g.temperature);
  const bool is_nan = !(absolute(max.input) <= largest(Read()) && absolute(max.target) <= largest(Read()));
  const double unread = task.counts ? NAN : 0.0;
  if (lane == 0) {
    const double own = is_nan || !task.counts ? unread : loss.loss(as_double(result.divergence));
    add_loss(p, task.at, Partial<F>{own * static_cast<double>(task.weight)}, sum);
  }
  if (!p.grad_input.data && !p.grad_target.data) return;
  const int64_t of_first = offset(p, task.at, kResult), of_second = offset(p, task.at, kSecondResult);
  using K = typename Row::K;
  if (is_nan || !task.counts) return row.fill_gradients(static_cast<K>(unread), of_first, of_second);
  if (keeps) return row.write_kept(result.kept, of_first);
  if constexpr (Row::kKeepsP) {
    row.write_gradients(seen, loss, result.kept, result.targets, of_first, of_second);
  } else {
    const auto plain = SeenClasses<FastFloat, Read>::of(static_cast<float>(g.inverse.hi), g.farthest, max,
                                                        {sums.input.others(), sums.target.others()});
    const auto narrow = in_float(result, by);
    row.write_gradients(plain, loss, narrow.kept, narrow.targets, of_first, of_second);
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
                                    constant_of(loss.temperature, F()),
                                    constant_of(1.0 / loss.temperature, F()),
                                    static_cast<float>(ExpParts<double>::log2_e / loss.temperature),
                                    kFarthest * loss.temperature,
                                    lanes_shift,
                                    stages,
                                    accessor(r.input, kInput),
                                    accessor(r.target, kTarget),
                                    accessor(as_operand(r.grad_input), kResult),
                                    accessor(as_operand(r.grad_target), kSecondResult)};
  start_rows(r, p, kThreads >> g.lanes_shift, memory, stream, [&](Start start, int64_t blocks) {
    g.rows = p;
    launch_with_shared(rows_of_distributions<kThreads, T, E, Loss>, start, blocks, kThreads, bytes, stream, g, loss);
  });
}

template <class T, class E, class Loss>
void distributions_pass_as(const Pass& r, const Memory& memory, Stream stream) {
  if (r.rows.classes > 8192) return distributions_pass_of<9, T, E, Loss>(r, memory, stream);
  distributions_pass_of<7, T, E, Loss>(r, memory, stream);
}
// For halves whose loss is also a half, or for which only the gradients are wanted.
template <class E, class Loss>
void distributions_pass_of_halves(const Pass& r, const Memory& memory, Stream stream) {
  const DType loss = r.reduction.data ? r.reduction.dtype : r.losses.data ? r.losses.dtype : r.input.dtype;
  if (loss == DType::Float32) return distributions_pass_as<FloatFloat, E, Loss>(r, memory, stream);
  distributions_pass_as<FastFloat, E, Loss>(r, memory, stream);
}

template <class Loss>
void distributions_pass(const Pass& r, const Memory& memory, Stream stream) {
  const DType dtype = r.input.dtype;
  const double temperature = Loss(r.numbers).temperature;
  const bool is_usual = temperature > 0x1p-40 && temperature < 0x1p40;  // with its inverse in a float's range
  const bool are_alike = is_usual && r.target.dtype == dtype && (!r.grad_input.data || r.grad_input.dtype == dtype) &&
                         (!r.grad_target.data || r.grad_target.dtype == dtype) && !wants_float64_rows(r);
  if (are_alike && dtype == DType::Float32) return distributions_pass_as<FloatFloat, float, Loss>(r, memory, stream);
  if (are_alike && dtype == DType::Float16) return distributions_pass_of_halves<Half, Loss>(r, memory, stream);
  if (are_alike && dtype == DType::BFloat16) return distributions_pass_of_halves<BFloat16, Loss>(r, memory, stream);
  distributions_pass_of<7, double, Any<double>, Loss>(r, memory, stream);
}

}  // namespace cudaloss::cuda
