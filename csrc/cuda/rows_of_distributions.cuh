// The CUDA engine for losses of rows of two distributions, given by their logits: some lanes of a warp or a block have
// a row, of any strides and dtypes. Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/distribution_row.cuh"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// All threads of a warp, or of a block, call it, also those whose row is held: for the sums.
template <int kThreads, class T, class E, class Loss>
__device__ __forceinline__ void row_of_distributions(const DistributionParameters<Scalar<T>, E>& g, const Loss& loss,
                                                     const Task<Scalar<T>>& task, int lane, int lanes,
                                                     Partial<Scalar<T>>& sum) {
  using Row = RowOfDistributions<T, E>;
  using F = typename Row::F;
  using P = typename Row::P;
  constexpr int n = Row::n;
  extern __shared__ __align__(16) char memory[];
  const RowParameters<P>& p = g.rows;
  typename Row::V* const stage = reinterpret_cast<typename Row::V*>(memory) + threadIdx.x;
  const Row row = {g,
                   offset(p, task.at, kInput),
                   offset(p, task.at, kTarget),
                   lane * n,
                   task.counts ? p.classes : 0,
                   lanes * n,
                   g.stages ? stage : nullptr,
                   kThreads};
  const Two<F> max = row.template maxima<kThreads>(lanes);
  const F temperature = static_cast<F>(loss.temperature);
  SeenClasses<T> seen = {g.inverse, g.log2_e, RowScale<F>::of(max.input, g.inverse, temperature),
                         RowScale<F>::of(max.target, g.inverse, temperature)};
  const Two<F> of_exp = row.template sums_of_exp<kThreads>(lanes, seen);
  seen.compare(of_exp.input, of_exp.target);
  // 80 instructions of a class that need not run again.
  const bool keeps = Row::kCanKeep && g.stages && p.grad_input.data && !p.grad_target.data;
  const auto terms = row.template terms<kThreads>(lanes, seen, loss, keeps);
  if (task.held) return;
  typename Loss::Row found = loss.finish(as_double(terms.divergence), as_double(terms.excess), as_double(terms.p));
  const bool is_nan = !(absolute(max.input) <= largest(F()) && absolute(max.target) <= largest(F()));
  if (is_nan || !task.counts) found.loss = task.counts ? NAN : 0.0;
  if (lane == 0) hand_in(p, task.at, P{found.loss * static_cast<double>(task.weight)}, sum);
  if (!p.grad_input.data && !p.grad_target.data) return;
  const int64_t of_first = offset(p, task.at, kFirst), of_second = offset(p, task.at, kSecond);
  if (is_nan || !task.counts) return row.fill_gradients(static_cast<F>(found.loss), of_first, of_second);
  const double factor = as_double(WithRest<F>{task.factor.hi, task.factor.lo});
  const double of_p = factor * loss.temperature / as_double(terms.p);
  if (keeps) return row.write_kept(static_cast<F>(found.of_q * of_p), constant_of(of_p, F()), of_first);
  seen.correct(found.lowered, of_p);
  row.write_gradients(seen, loss, static_cast<F>(found.divergence), of_first, of_second);
}

template <int kThreads, class T, class E, class Loss>
__global__ void __launch_bounds__(kThreads, kThreads > 128                      ? 2
                                            : sizeof(Scalar<T>) > sizeof(float) ? 4
                                                                                : 6)
    rows_of_distributions(const __grid_constant__ DistributionParameters<Scalar<T>, E> g,
                          const __grid_constant__ Loss loss) {
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
    // Threads of a warp that have no row go with the others.
    row_of_distributions<kThreads, T, E>(g, loss, task, lane, lanes, sum);
  }
  hand_in_sum<kThreads, true>(p, sum);
}

// ---- host code ---------------------------------------------------------------------------------------------

constexpr int kStagedVectors = 12;  // of a thread and operand: 48 KB of a block of 128

// A row's threads, of which each has about two vectors of n at least; neighbours of rows that lie side by side read
// side by side if each has a row.
inline int lanes_shift_of(const Pass& r, int n, int threads_shift) {
  const int64_t between = r.inner.rank > 0 ? std::abs(r.inner.stride[0][kInput]) : 0;
  if (between != 0 && between < std::abs(r.rows.class_stride[kInput])) return 0;
  int shift = 0;
  while (shift < 5 && (int64_t{2} * n << shift) < r.rows.classes) ++shift;
  return r.rows.classes > 32 * n * kStagedVectors ? threads_shift : shift;
}

template <int kThreadsShift, class T, class E, class Loss>
void distributions_pass_of(const Pass& r, const Memory& memory, Stream stream) {
  using F = Scalar<T>;
  using V = typename RowOfDistributions<T, E>::V;
  constexpr int n = RowOfDistributions<T, E>::n, kThreads = 1 << kThreadsShift;
  const Loss loss(r.numbers);
  auto p = row_parameters<Partial<F>>(r);
  const auto accessor = [&](const Operand& operand, Place place) {
    const bool vectorized = n > 1 && lies_in_vectors(r, operand.data, place, n);
    return accessor_of<E>(operand, {r.rows.class_stride[place], vectorized});
  };
  const int lanes_shift = lanes_shift_of(r, n, kThreadsShift);
  const int64_t vectors = plan::ceil_div(r.rows.classes, int64_t{n} << lanes_shift);
  const bool stages = vectors * kThreads <= kStagedVectors * 128;
  const int bytes = stages ? static_cast<int>(vectors * 2 * kThreads * sizeof(V)) : 0;
  DistributionParameters<F, E> g = {p,
                                    inverse_of(loss.temperature, F()),
                                    static_cast<F>(ExpParts<double>::log2_e / loss.temperature),
                                    lanes_shift,
                                    stages,
                                    accessor(r.input, kInput),
                                    accessor(r.target, kTarget),
                                    accessor(as_operand(r.grad_input), kFirst),
                                    accessor(as_operand(r.grad_target), kSecond)};
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

template <class Loss>
void distributions_pass(const Pass& r, const Memory& memory, Stream stream) {
  if (wants_float64_rows(r)) return distributions_pass_of<7, double, Any<double>, Loss>(r, memory, stream);
  const DType dtype = r.input.dtype;
  const bool are_alike = r.target.dtype == dtype && (!r.grad_input.data || r.grad_input.dtype == dtype) &&
                         (!r.grad_target.data || r.grad_target.dtype == dtype);
  if (are_alike && dtype == DType::Float32) return distributions_pass_as<FloatFloat, float, Loss>(r, memory, stream);
  if (are_alike && dtype == DType::Float16) return distributions_pass_as<FastFloat, Half, Loss>(r, memory, stream);
  if (are_alike && dtype == DType::BFloat16) return distributions_pass_as<FastFloat, BFloat16, Loss>(r, memory, stream);
  distributions_pass_of<7, FloatFloat, Any<float>, Loss>(r, memory, stream);
}

}  // namespace cudaloss::cuda
