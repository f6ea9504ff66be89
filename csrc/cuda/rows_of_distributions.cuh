// The CUDA engine for losses of rows of two distributions, given by their logits: some lanes of a warp or a block have
// a row, of any strides and dtypes, and read it for the maxima, for the sums of exp, for the loss and for the
// gradients; from the second time on in shared memory, where it fits. Included by the source of each such loss, which
// setup.py writes.
#pragma once

#include "core/distributions.h"
#include "cuda/accessor.cuh"
#include "cuda/engine.h"
#include "cuda/row_lanes.cuh"
#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

// E: the one dtype of all; or Any<F>, looked up at each element.
template <class F, class E>
struct DistributionParameters {
  RowParameters<Partial<F>> rows;
  Constant<F> inverse;  // of the temperature
  Constant<F> log2_e;   // over the temperature
  int lanes_shift;      // of a row's threads
  bool stages;          // a thread's part of a row stays in shared memory
  Accessor<E> input, target, grad_input, grad_target;
};

// ---- sums ----------------------------------------------------------------------------------------------------

template <class F>
__device__ __forceinline__ WithRest<F> plus(WithRest<F> a, WithRest<F> b) {
  const F sum = a.value + b.value, added = sum - a.value;
  return {sum, (a.rest + b.rest) + ((a.value - (sum - added)) + (b.value - added))};
}
__device__ __forceinline__ double plus(double a, double b) { return a + b; }

template <class N>
struct Two {
  N input, target;
};
template <class N>
struct Terms {
  N divergence, excess, p;
};
template <class N>
__device__ __forceinline__ Two<N> plus(const Two<N>& a, const Two<N>& b) {
  return {plus(a.input, b.input), plus(a.target, b.target)};
}
template <class N>
__device__ __forceinline__ Terms<N> plus(const Terms<N>& a, const Terms<N>& b) {
  return {plus(a.divergence, b.divergence), plus(a.excess, b.excess), plus(a.p, b.p)};
}
// Of a few, as a tree.
template <class N, class F, int n>
__device__ __forceinline__ N tree_of(const F (&x)[n]) {
  if constexpr (n == 1) {
    return number_of<N>({x[0], F(0)});
  } else {
    F half[n / 2];
#pragma unroll
    for (int k = 0; k < n / 2; ++k) half[k] = x[2 * k] + x[2 * k + 1];
    return tree_of<N>(half);
  }
}
template <class N>
__device__ __forceinline__ double in_double(N x) {
  const double value = static_cast<double>(value_of(x)), sum = value + static_cast<double>(rest_of(x));
  return sum == sum ? sum : value;  // beside an infinite value the rest is NaN
}

// ---- a row ---------------------------------------------------------------------------------------------------

// How a row's classes are seen: logits are less their shifts.
template <class T>
struct SeenClasses {
  using F = Scalar<T>;
  static constexpr bool kFast = std::is_same_v<T, FastFloat>;
  Constant<F> inverse, log2_e;  // 1 and log2(e) over the temperature
  RowScale<F> input, target;
  Constant<F> of_input, of_target;  // what exp is multiplied by for q and for p
  Constant<F> lower;                // what d is lowered by

  __device__ __forceinline__ WithRest<F> d(F x, F t) const { return log_quotient<kFast>(x, t, inverse, lower); }
  __device__ __forceinline__ static F times(F x, Constant<F> by) {
    return kFast ? x * by.hi : fused(x, by.hi, x * by.lo);
  }
  __device__ __forceinline__ WithRest<F> exp(F x, F power, F least) const {
    if constexpr (kFast) {
      return {coarse_exp(x, power, log2_e), F(0)};
    } else {
      return scaled_exp(x, power, least, inverse);
    }
  }
  // For sums whose last places do not matter.
  __device__ __forceinline__ F any_exp(F x, const RowScale<F>& scale) const {
    if constexpr (sizeof(F) == sizeof(float)) {
      return coarse_exp(x, scale.power, log2_e);
    } else {
      return scaled_exp(x, scale.power, scale.least, inverse).value;
    }
  }
  __device__ __forceinline__ F exp_target(F t) const { return rounded(exp(t, target.power, target.least)); }
  // The larger one of p and q.
  __device__ __forceinline__ WithRest<F> larger(F x, F t, WithRest<F> d) const {
    const bool is_more = d.value > F(0);
    const WithRest<F> e =
        exp(is_more ? x : t, is_more ? input.power : target.power, is_more ? input.least : target.least);
    const WithRest<F> by = {is_more ? of_input.hi : of_target.hi, is_more ? of_input.lo : of_target.lo};
    if constexpr (kFast) return {e.value * by.value, F(0)};
    return e * by;
  }

  // From the sums of exp to p, and to q and d as they then are to it.
  __device__ __forceinline__ void compare(const Two<F>& sums) {
    using Parts = ExpParts<F>;
    const F log = std::log(sums.input / sums.target), powers = input.power - target.power;
    WithRest<F> of_powers = product_of(powers, F(Parts::ln2));
    of_powers.rest = fused(powers, F(Parts::ln2_rest), of_powers.rest);
    const WithRest<F> lowered = difference_of(of_powers, WithRest<F>{-log, F(0)});
    const WithRest<F> apart = in_place(exp_of(-log, is_lifted(-log))), inverse_sum = {F(1) / sums.target, F(0)};
    lower = {lowered.value, lowered.rest};
    of_target = {inverse_sum.value, F(0)};
    const WithRest<F> of_q = apart * inverse_sum;
    of_input = {of_q.value, of_q.rest};
  }
  // With the row's sums found, and the gradients' factor taken in.
  __device__ __forceinline__ void correct(double lowered, double of_p) {
    const Constant<F> more = constant_of(lowered, F());
    const WithRest<F> sum = difference_of(lower.hi, -more.hi);
    lower = {sum.value, sum.rest + (lower.lo + more.lo)};
    const double own = static_cast<double>(of_input.hi) + static_cast<double>(of_input.lo);
    of_target = constant_of(static_cast<double>(of_target.hi) * of_p, F());
    of_input = constant_of(own * (of_p * (1.0 - lowered + 0.5 * lowered * lowered)), F());
  }
};

template <class T, class E>
struct RowOfDistributions {
  using F = Scalar<T>;
  using P = Partial<F>;
  using N = std::conditional_t<std::is_same_v<T, FastFloat>, float, WithRest<F>>;  // with what additions round away
  static constexpr bool kIsAny = std::is_same_v<E, Any<F>>;
  static constexpr int n = kIsAny ? 1 : kVectorBytes / sizeof(E);
  using Element = Loaded<E>;
  using V = Vector<Element, n>;
  static constexpr bool kCanKeep = std::is_same_v<Element, F>;

  const DistributionParameters<F, E>& g;
  int64_t of_input, of_target;
  int32_t first, end, step;
  V* stage;  // null: none
  int threads;

  // -inf beyond the row.
  __device__ __forceinline__ V load(const Accessor<E>& operand, int64_t begin, int32_t j) const {
    if constexpr (kIsAny) {
      return operand.template load<n>(begin + j * operand.spacing.stride, n);
    } else {
      if (operand.spacing.vectorized && j + n <= g.rows.classes) return operand.template load_vector<n>(begin + j);
      const int length = min(n, g.rows.classes - j);
      V v = operand.template load_each<n>(begin + j * operand.spacing.stride, length);
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (k >= length) v.element[k] = kMinusInfinity<E>;
      }
      return v;
    }
  }
  // Visits (x, t) of n classes at a time, and where they are in shared memory. kFirst: for the first time.
  template <bool kFirst = false, class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    V* at = stage;
#pragma unroll 1
    for (int32_t j = first; j < end; j += step, at += 2 * threads) {
      V a, b;
      if (!kFirst && stage) {
        a = at[0];
        b = at[threads];
      } else {
        a = load(g.input, of_input, j);
        b = load(g.target, of_target, j);
      }
      if (kFirst && stage) {
        at[0] = a;
        at[threads] = b;
      }
      F x[n], t[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        x[k] = widen<F>(a.element[k]);
        t[k] = widen<F>(b.element[k]);
      }
      visit(j, x, t, at);
    }
  }
  // The same of logits less their shifts, which there mostly are not.
  template <class Visit>
  __device__ __forceinline__ void each_seen(const SeenClasses<T>& seen, const Visit& visit) const {
    const bool is_shifted = seen.input.shift != F(0) || seen.target.shift != F(0);
    each([&](int32_t j, F(&x)[n], F(&t)[n], V* at) {
      if (is_shifted) {
#pragma unroll
        for (int k = 0; k < n; ++k) {
          x[k] -= seen.input.shift;
          t[k] -= seen.target.shift;
        }
      }
      visit(j, x, t, at);
    });
  }
  __device__ __forceinline__ void store(const Accessor<E>& gradient, int64_t begin, int32_t j,
                                        const F (&value)[n]) const {
    gradient.store(begin + j * gradient.spacing.stride, min(n, g.rows.classes - j), value);
  }

  template <int kThreads>
  __device__ __forceinline__ Two<F> maxima(int lanes) const {
    Two<F> max = {-F(INFINITY), -F(INFINITY)};
    each<true>([&](int32_t, const F(&x)[n], const F(&t)[n], V*) {
#pragma unroll
      for (int k = 0; k < n; ++k) max = {max_or_nan(max.input, x[k]), max_or_nan(max.target, t[k])};
    });
    return together<kThreads>(max, lanes, [](const Two<F>& a, const Two<F>& b) {
      return Two<F>{max_or_nan(a.input, b.input), max_or_nan(a.target, b.target)};
    });
  }
  template <int kThreads>
  __device__ __forceinline__ Two<F> sums_of_exp(int lanes, const SeenClasses<T>& seen) const {
    Two<F> sum = {};
    each_seen(seen, [&](int32_t, const F(&x)[n], const F(&t)[n], V*) {
      F q[n], p[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        q[k] = seen.any_exp(x[k], seen.input);
        p[k] = seen.any_exp(t[k], seen.target);
      }
      sum = plus(sum, Two<F>{tree_of<F>(q), tree_of<F>(p)});
    });
    return together<kThreads>(sum, lanes, [](const Two<F>& a, const Two<F>& b) { return plus(a, b); });
  }
  // keeps: q - p and q take the logits' places in shared memory.
  template <int kThreads, class Loss>
  __device__ __forceinline__ Terms<N> terms(int lanes, const SeenClasses<T>& seen, const Loss& loss, bool keeps) const {
    Terms<N> sum = {};
    each_seen(seen, [&](int32_t, const F(&x)[n], const F(&t)[n], V* at) {
      F divergence[n], excess[n], p[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const WithRest<F> d = seen.d(x[k], t[k]);
        const auto term = loss.template term<SeenClasses<T>::kFast>(seen.larger(x[k], t[k], d), d);
        divergence[k] = term.divergence;
        excess[k] = term.excess;
        p[k] = term.p;
      }
      if constexpr (kCanKeep) {
        if (keeps) {
#pragma unroll
          for (int k = 0; k < n; ++k) {
            at[0].element[k] = excess[k];
            at[threads].element[k] = p[k] + excess[k];
          }
        }
      }
      sum = plus(sum, Terms<N>{tree_of<N>(divergence), tree_of<N>(excess), tree_of<N>(p)});
    });
    return together<kThreads>(sum, lanes, [](const Terms<N>& a, const Terms<N>& b) { return plus(a, b); });
  }
  template <class Loss>
  __device__ __forceinline__ void write_gradients(const SeenClasses<T>& seen, const Loss& loss, F divergence,
                                                  int64_t of_first, int64_t of_second) const {
    each_seen(seen, [&](int32_t j, const F(&x)[n], const F(&t)[n], V*) {
      F value[n];
      if (g.rows.grad_input.data) {
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const WithRest<F> d = seen.d(x[k], t[k]);
          value[k] = loss.template grad_input<SeenClasses<T>::kFast>(seen.larger(x[k], t[k], d), d);
        }
        store(g.grad_input, of_first, j, value);
      }
      if (g.rows.grad_target.data) {
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const F d = seen.d(x[k], t[k]).value;
          value[k] = seen.times(loss.grad_target(seen.exp_target(t[k]), d, divergence), seen.of_target);
        }
        store(g.grad_target, of_second, j, value);
      }
    });
  }
  // Of what was kept: with the sums found, q - p has a little of q less.
  __device__ __forceinline__ void write_kept(F less, Constant<F> by, int64_t of_first) const {
    each([&](int32_t j, const F(&excess)[n], const F(&q)[n], V*) {
      F value[n];
#pragma unroll
      for (int k = 0; k < n; ++k) value[k] = fused(excess[k], by.hi, fused(-less, q[k], excess[k] * by.lo));
      store(g.grad_input, of_first, j, value);
    });
  }
  __device__ __forceinline__ void fill_gradients(F with, int64_t of_first, int64_t of_second) const {
    F value[n];
#pragma unroll
    for (int k = 0; k < n; ++k) value[k] = with;
    for (int32_t j = first; j < g.rows.classes; j += step) {
      if (g.rows.grad_input.data) store(g.grad_input, of_first, j, value);
      if (g.rows.grad_target.data) store(g.grad_target, of_second, j, value);
    }
  }
};

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
  seen.compare(row.template sums_of_exp<kThreads>(lanes, seen));
  // 80 instructions of a class that need not run again.
  const bool keeps = Row::kCanKeep && g.stages && p.grad_input.data && !p.grad_target.data;
  const auto terms = row.template terms<kThreads>(lanes, seen, loss, keeps);
  if (task.held) return;
  typename Loss::Row found = loss.finish(in_double(terms.divergence), in_double(terms.excess), in_double(terms.p));
  const bool is_nan = !(absolute(max.input) <= largest(F()) && absolute(max.target) <= largest(F()));
  if (is_nan || !task.counts) found.loss = task.counts ? NAN : 0.0;
  if (lane == 0) hand_in(p, task.at, P{found.loss * static_cast<double>(task.weight)}, sum);
  if (!p.grad_input.data && !p.grad_target.data) return;
  const int64_t of_first = offset(p, task.at, kFirst), of_second = offset(p, task.at, kSecond);
  if (is_nan || !task.counts) return row.fill_gradients(static_cast<F>(found.loss), of_first, of_second);
  const double factor = static_cast<double>(task.factor.hi) + static_cast<double>(task.factor.lo);
  const double of_p = factor * loss.temperature / found.p;
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
                                    constant_of(ExpParts<double>::log2_e / loss.temperature, F()),
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
