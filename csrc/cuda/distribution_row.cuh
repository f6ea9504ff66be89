// A row of two distributions. The kernel in rows_of_distributions.cuh reads it for the maxima, the sums of exp, the
// loss and the gradients; from the second time on from shared memory, if it fits there.
#pragma once

#include "cuda/accessor.cuh"
#include "cuda/distribution_classes.cuh"
#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

// E: the dtype of all operands; or Any<double>, looked up at each element. T: the arithmetic.
template <class T, class E>
struct DistributionParameters {
  RowParameters<Partial<Scalar<T>>> rows;
  Constant<Scalar<T>> temperature, inverse;
  float log2_e;     // divided by the temperature
  double farthest;  // distance from the maximum; beyond it a class has probability 0
  int lanes_shift;  // the log2 of a row's threads
  bool stages;      // a thread's part of a row stays in shared memory
  Accessor<E> input, target, grad_input, grad_target;
};

template <class T, class E, class Read, class F>
__device__ __forceinline__ auto seen_classes(const DistributionParameters<T, E>& g, const Two<Read>& max,
                                             const Two<F>& others, float scale) {
  if constexpr (std::is_same_v<T, FloatFloat>) {
    return PairedClasses{PairedLogits::of(g.inverse, g.temperature.hi, max, others, scale)};
  } else {
    return SeenClasses<T, Read>::of(g.inverse.hi, g.farthest, max, others);
  }
}

// The sums of exp below the maximum, and of all; their difference is how many classes are at the maximum.
struct ExpSum {
  float below, all;

  __device__ __forceinline__ ExpSum operator+(const ExpSum& other) const {
    return {below + other.below, all + other.all};
  }
  __device__ __forceinline__ float others() const { return below + (rintf(all - below) - 1.0f); }
};

// The factors of q - p and p for the input's gradient. They correct q and p that do not sum to 1 yet.
template <class Read>
struct OfKept {
  Constant<Read> excess;
  Read p;
};

template <class T, class E>
struct RowOfDistributions {
  using Arithmetic = T;
  using F = Scalar<T>;
  using Element = Loaded<E>;
  using Read = std::conditional_t<sizeof(Element) == sizeof(double), double, float>;  // represents it exactly
  static constexpr bool kIsAny = std::is_same_v<E, Any<double>>;
  static constexpr int n = kIsAny ? 1 : kVectorBytes / sizeof(E);
  using V = Vector<Element, n>;
  // The arithmetic of gradients with dtype E if nothing was kept.
  using G = std::conditional_t<sizeof(E) == 2, FastFloat, T>;
  using K = Scalar<G>;
  // q - p replaces the logits in shared memory; p too, except for halves, which need no correction.
  static constexpr bool kKeepsP = sizeof(E) != 2;
  static constexpr int kKept = kKeepsP ? n : n / 2;
  using Kept = Vector<Read, kKept>;
  static_assert(sizeof(Kept) == sizeof(V));

  const DistributionParameters<T, E>& g;
  int64_t of_input, of_target;
  int32_t first, end, step;
  V* stage;  // null: none
  int threads;

  // -inf after the row's end.
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
  // Visits (x, t), n classes at a time, with their place in shared memory. kIsFirst: for the first time.
  template <bool kIsFirst = false, class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    V* at = stage;
#pragma unroll 1
    for (int32_t j = first; j < end; j += step, at += 2 * threads) {
      V a, b;
      if (!kIsFirst && stage) {
        a = at[0];
        b = at[threads];
      } else {
        a = load(g.input, of_input, j);
        b = load(g.target, of_target, j);
      }
      if (kIsFirst && stage) {
        at[0] = a;
        at[threads] = b;
      }
      Read x[n], t[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        x[k] = widen<Read>(a.element[k]);
        t[k] = widen<Read>(b.element[k]);
      }
      visit(j, x, t, at);
    }
  }
  template <class N>
  __device__ __forceinline__ void store(const Accessor<E>& gradient, int64_t begin, int32_t j,
                                        const N (&value)[n]) const {
    gradient.store(begin + j * gradient.spacing.stride, min(n, g.rows.classes - j), value);
  }

  template <int kThreads>
  __device__ __forceinline__ Two<Read> maxima(int lanes) const {
    Two<Read> max = {-INFINITY, -INFINITY};
    each<true>([&](int32_t, const Read(&x)[n], const Read(&t)[n], V*) {
#pragma unroll
      for (int k = 0; k < n; ++k) max = {max_or_nan(max.input, x[k]), max_or_nan(max.target, t[k])};
    });
    return together<kThreads>(max, lanes, [](const Two<Read>& a, const Two<Read>& b) -> Two<Read> {
      return {max_or_nan(a.input, b.input), max_or_nan(a.target, b.target)};
    });
  }
  // Precise to 2^-21: the error is common to q, p and d of all classes, and is corrected later.
  template <int kThreads>
  __device__ __forceinline__ Two<ExpSum> sums(int lanes, const Two<Read>& max) const {
    Two<ExpSum> sum = {};
    const auto take = [&](ExpSum& to, Read top, Read x) {
      const float e = fast_exp2(static_cast<float>(x - top) * g.log2_e);
      to.all += e;
      if (x != top) to.below += e;
    };
    each([&](int32_t, const Read(&x)[n], const Read(&t)[n], V*) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        take(sum.input, max.input, x[k]);
        take(sum.target, max.target, t[k]);
      }
    });
    return together<kThreads>(sum, lanes, [](const Two<ExpSum>& a, const Two<ExpSum>& b) -> Two<ExpSum> {
      return {a.input + b.input, a.target + b.target};
    });
  }
  template <int kThreads, class Loss, class Seen>
  __device__ __forceinline__ auto terms(int lanes, const Seen& seen, const Loss&, bool keeps) const {
    Terms<T> sum = {};
    seen.with_scaling([&](auto scales) {
      each([&](int32_t, const Read(&x)[n], const Read(&t)[n], V* at) {
        Read excess[n], p[n];
        seen.template each_term<scales, Loss>(x, t, [&](int k, const auto& term) {
          sum.add(term);
          excess[k] = static_cast<Read>(term.excess);
          p[k] = static_cast<Read>(value_of(term.p));
        });
        if (keeps) {
          kept(at, 0) = part_of<0>(excess);
          kept(at, 1) = kKeepsP ? part_of<0>(p) : part_of<n - kKept>(excess);
        }
      });
    });
    return together<kThreads>(sum.total(), lanes, [](const auto& a, const auto& b) { return a + b; });
  }
  __device__ __forceinline__ Kept& kept(V* at, int which) const {
    return *reinterpret_cast<Kept*>(at + which * threads);
  }
  template <int kBegin>
  __device__ __forceinline__ static Kept part_of(const Read (&x)[n]) {
    Kept part;
#pragma unroll
    for (int k = 0; k < kKept; ++k) part.element[k] = x[kBegin + k];
    return part;
  }
  // The input's gradient from q - p and p, kept or computed again.
  __device__ __forceinline__ static Read for_input(const OfKept<Read>& of, Read excess, Read p) {
    return kKeepsP ? fused(excess, of.excess.hi, fused(of.p, p, excess * of.excess.lo)) : excess * of.excess.hi;
  }
  __device__ __forceinline__ void write_kept(const OfKept<Read>& of, int64_t of_first) const {
    V* at = stage;
#pragma unroll 1
    for (int32_t j = first; j < end; j += step, at += 2 * threads) {
      const Kept a = kept(at, 0), b = kept(at, 1);
      Read value[n];
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
        value[k] = for_input(of, a.element[k], b.element[k]);
        if constexpr (!kKeepsP) value[kKept + k] = for_input(of, b.element[k], Read(0));
      }
      store(g.grad_input, of_first, j, value);
    }
  }
  template <class Loss, class Seen, class OfTargets>
  __device__ __forceinline__ void write_gradients(const Seen& seen, const Loss&, const OfKept<Read>& of,
                                                  const OfTargets& of_targets, int64_t of_first,
                                                  int64_t of_second) const {
    seen.with_scaling([&](auto scales) {
      each([&](int32_t j, const Read(&x)[n], const Read(&t)[n], V*) {
        Read value[n];
        K for_target[n];
        seen.template each_gradient<scales, Loss>(x, t, of_targets, [&](int k, const auto& term, K of_target) {
          value[k] = for_input(of, static_cast<Read>(term.excess), static_cast<Read>(value_of(term.p)));
          for_target[k] = of_target;
        });
        if (g.rows.grad_input.data) store(g.grad_input, of_first, j, value);
        if (g.rows.grad_target.data) store(g.grad_target, of_second, j, for_target);
      });
    });
  }
  __device__ __forceinline__ void fill_gradients(K with, int64_t of_first, int64_t of_second) const {
    K value[n];
#pragma unroll
    for (int k = 0; k < n; ++k) value[k] = with;
    for (int32_t j = first; j < g.rows.classes; j += step) {
      if (g.rows.grad_input.data) store(g.grad_input, of_first, j, value);
      if (g.rows.grad_target.data) store(g.grad_target, of_second, j, value);
    }
  }
};

}  // namespace cudaloss::cuda
