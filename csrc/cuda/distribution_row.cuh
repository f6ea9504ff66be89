// A row of two distributions, as the kernel in rows_of_distributions.cuh reads it: for the maxima, for the sums of exp,
// for the loss and for the gradients; from the second time on in shared memory, where it fits.
#pragma once

#include "core/distributions.h"
#include "cuda/accessor.cuh"
#include "cuda/row_lanes.cuh"
#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

// E: the one dtype of all; or Any<F>, looked up at each element.
template <class F, class E>
struct DistributionParameters {
  RowParameters<Partial<F>> rows;
  Constant<F> inverse;  // of the temperature
  F log2_e;             // over the temperature
  int lanes_shift;      // of a row's threads
  bool stages;          // a thread's part of a row stays in shared memory
  Accessor<E> input, target, grad_input, grad_target;
};

// ---- sums ----------------------------------------------------------------------------------------------------

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
// ---- a row ---------------------------------------------------------------------------------------------------

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

}  // namespace cudaloss::cuda
