// A row of two distributions. The kernel in rows_of_distributions.cuh reads it for the maxima, the sums of exp, the
// loss and the gradients; from the second time on from shared memory, if it fits there.
#pragma once

#include "cuda/distribution_classes.cuh"
#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

// E: the dtype of all operands; or Any<double>, looked up at each element. T: the arithmetic.
template <class T, class E>
struct DistributionParameters {
  RowParameters<Partial<Scalar<T>>> rows;
  Scalar<T> inverse;  // of the temperature
  float log2_e;       // divided by the temperature
  double farthest;    // distance from the maximum; beyond it a class has probability 0
  int lanes_shift;    // the log2 of a row's threads
  bool stages;        // a thread's part of a row stays in shared memory
  Accessor<E> input, target, grad_input, grad_target;
};

template <class T, class E>
struct RowOfDistributions {
  using F = Scalar<T>;
  using Element = Loaded<E>;
  using Read = std::conditional_t<sizeof(Element) == sizeof(double), double, float>;  // represents it exactly
  static constexpr bool kIsAny = std::is_same_v<E, Any<double>>;
  static constexpr int n = kIsAny ? 1 : kVectorBytes / sizeof(E);
  using V = Vector<Element, n>;
  static constexpr int kInFlight = n > 4 ? 2 : 4;  // vectors
  // The slope (of a centred loss q f) replaces the logits in shared memory; the base too, except for halves, which have
  // room for one number of a class: a centred loss keeps nothing of them.
  static constexpr bool kKeepsBase = sizeof(E) != 2;
  static constexpr int kKept = kKeepsBase ? n : n / 2;
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
  template <class Visit>
  __device__ __forceinline__ static void visit_vectors(const Visit& visit, int32_t j, const V& a, const V& b, V* at) {
    Read x[n], t[n];
#pragma unroll
    for (int k = 0; k < n; ++k) {
      x[k] = widen<Read>(a.element[k]);
      t[k] = widen<Read>(b.element[k]);
    }
    visit(j, x, t, at);
  }
  // Stages and visits what can be read in whole vectors, several at a time, so that their loads are in flight together.
  // Returns how many these are. H200, kl_div_with_logits, with several rows a block: (32768, 4096) fp32, a forward:
  // 0.69 ms, without both 0.78; (16384, 8192) bf16, a step: 0.39 and 0.50. Four vectors of halves would spill
  // registers.
  template <class Visit>
  __device__ __forceinline__ int32_t in_flight(const Visit& visit) const {
    int32_t vectors = 0;
    if constexpr (!kIsAny) {
      if (!stage || !g.input.spacing.vectorized || !g.target.spacing.vectorized) return 0;
      V* at = stage;
#pragma unroll 1
      for (int32_t j = first; j + (kInFlight - 1) * step + n <= end; j += kInFlight * step, vectors += kInFlight) {
        V a[kInFlight], b[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
          a[i] = g.input.template load_vector<n>(of_input + j + i * step);
          b[i] = g.target.template load_vector<n>(of_target + j + i * step);
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i, at += 2 * threads) {
          at[0] = a[i];
          at[threads] = b[i];
          visit_vectors(visit, j, a[i], b[i], at);
        }
      }
    }
    return vectors;
  }
  template <class Loss, class A>
  __device__ __forceinline__ static auto class_of(const SeenClasses<A, Read>& seen, Read x, Read t) {
    if constexpr (Loss::kIsCentred && std::is_same_v<A, FastDouble>) {
      return seen.of_ratio(x, t);
    } else {
      return seen.of(x, t);
    }
  }
  // Visits (x, t), n classes at a time, with their place in shared memory. kIsFirst: for the first time. From the
  // thread's vector number `begin`.
  template <bool kIsFirst = false, class Visit>
  __device__ __forceinline__ void each(const Visit& visit, int32_t begin = 0) const {
    V* at = stage + begin * (2 * threads);
#pragma unroll 1
    for (int32_t j = first + begin * step; j < end; j += step, at += 2 * threads) {
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
      visit_vectors(visit, j, a, b, at);
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
    const auto take = [&](int32_t, const Read(&x)[n], const Read(&t)[n], V*) {
#pragma unroll
      for (int k = 0; k < n; ++k) max = {max_or_nan(max.input, x[k]), max_or_nan(max.target, t[k])};
    };
    each<true>(take, in_flight(take));
    return together<kThreads>(max, lanes, [](const Two<Read>& a, const Two<Read>& b) -> Two<Read> {
      return {max_or_nan(a.input, b.input), max_or_nan(a.target, b.target)};
    });
  }
  // The sums of exp without the maximum's 1. Unless kIsPrecise to 2^-21: the error is common to q, p and d of all
  // classes, and is corrected later or does not show in halves.
  template <int kThreads, bool kIsPrecise>
  __device__ __forceinline__ Two<F> others(int lanes, const Two<SeenLogits<T, Read>>& logits) const {
    using N = std::conditional_t<kIsPrecise, SumOf<T>, float>;
    using Sums = Two<ExpSum<N>>;
    Sums sum = {};
    const auto take = [&](ExpSum<N>& to, const SeenLogits<T, Read>& seen, Read x) {
      const bool is_max = x == seen.max;
      if constexpr (kIsPrecise && std::is_same_v<T, FastDouble>) {
        to.below += select(is_max, 0.0, exp_of_below<T>(not_too_far(seen.below_max(x))));
      } else if constexpr (kIsPrecise) {
        add_to(to.below, select(is_max, F(0), seen.exp(x, seen.below_max(x))));
      } else {
        to.below += select(is_max, 0.0f, fast_exp2(static_cast<float>(x - seen.max) * g.log2_e));
      }
      to.at_max += is_max;
    };
    each([&](int32_t, const Read(&x)[n], const Read(&t)[n], V*) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        take(sum.input, logits.input, x[k]);
        take(sum.target, logits.target, t[k]);
      }
    });
    sum = together<kThreads>(
        sum, lanes, [](const Sums& a, const Sums& b) -> Sums { return {a.input + b.input, a.target + b.target}; });
    const auto of = [](const ExpSum<N>& found) -> F {
      using As = std::conditional_t<kIsPrecise, F, float>;
      return F(static_cast<As>(value_in(found.below)) + static_cast<As>(found.at_max - 1));
    };
    return {of(sum.input), of(sum.target)};
  }
  // `by`: the factor of the row's gradients, if they are made from what is kept.
  template <int kThreads, class Loss>
  __device__ __forceinline__ Terms<T> terms(int lanes, const SeenClasses<T, Read>& seen, const Loss& loss, bool keeps,
                                            double by) const {
    using Sums = Terms<T>;
    const KeptTerm<F> factors = Lifts(by).factors<F>();
    Sums sum = {};
    each([&](int32_t, const Read(&x)[n], const Read(&t)[n], V* at) {
      Read slope[n], base[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const auto of = class_of<Loss>(seen, x[k], t[k]);
        const auto term = loss.template term<T>(of.q, of.p, of.d);
        add_to(sum.divergence, term.divergence);
        add_to(sum.slope, Loss::kIsCentred ? term.base * term.slope : term.slope);
        if constexpr (!Loss::kIsCentred) add_to(sum.base, term.base);
        const KeptTerm<Read> of_class = kept_term<Loss>(term, factors);
        slope[k] = of_class.slope;
        base[k] = of_class.base;
      }
      if (keeps) {
        kept(at, 0) = part_of<0>(slope);
        kept(at, 1) = kKeepsBase ? part_of<0>(base) : part_of<n - kKept>(slope);
      }
    });
    return together<kThreads>(sum, lanes, [](const Sums& a, const Sums& b) { return a + b; });
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
  template <class Loss>
  __device__ __forceinline__ static OfKept<Read> of_kept(const DistributionRow& found, double by) {
    if constexpr (Loss::kIsCentred) {
      const Lifts lifts(by);
      return {constant_of(-found.of_base * lifts.of_f, Read()), static_cast<Read>(lifts.back())};
    }
    const double of_slope = by * found.of_slope;
    return {constant_of(of_slope, Read()), static_cast<Read>(of_slope * found.of_base)};
  }
  template <class Loss, class N>
  __device__ __forceinline__ static KeptTerm<Read> kept_term(const DistributionTerm<N>& term, KeptTerm<N> factors) {
    if constexpr (!Loss::kIsCentred) return {static_cast<Read>(term.slope), static_cast<Read>(term.base)};
    const N q = term.base * factors.base;
    const Read slope = static_cast<Read>(term.base * term.slope * factors.slope);
    return {slope, kKeepsBase ? Unsigned<Read>::pack(q) : static_cast<Read>(q)};
  }
  // The input's gradient. For halves a loss that is not centred has no base: it only corrects, and beside a small q - p
  // its own error would show.
  template <class Loss>
  __device__ __forceinline__ static Read for_input(const OfKept<Read>& of, KeptTerm<Read> kept) {
    const auto [slope, base] = kept;
    if constexpr (!Loss::kIsCentred) {
      return kKeepsBase ? fused(slope, of.slope.hi, fused(of.base, base, slope * of.slope.lo)) : slope * of.slope.hi;
    } else if constexpr (kKeepsBase) {
      const WithRest<Read> q = Unsigned<Read>::unpack(base), product = product_in<WithRest<Read>>(q.value, of.slope.hi),
                           found = difference_in<WithRest<Read>>(slope, product.value);
      const Read rest = fused(q.value, of.slope.lo, fused(q.rest, of.slope.hi, product.rest));
      return (found.value + (found.rest - rest)) * of.base;
    } else {
      return fused(-base, of.slope.hi, slope) * of.base;
    }
  }
  template <class Loss>
  __device__ __forceinline__ void write_kept(const OfKept<Read>& of, int64_t of_first) const {
    V* at = stage;
#pragma unroll 1
    for (int32_t j = first; j < end; j += step, at += 2 * threads) {
      const Kept a = kept(at, 0), b = kept(at, 1);
      Read value[n];
#pragma unroll
      for (int k = 0; k < kKept; ++k) {
        value[k] = for_input<Loss>(of, {a.element[k], b.element[k]});
        if constexpr (!kKeepsBase) value[kKept + k] = for_input<Loss>(of, {b.element[k], Read(0)});
      }
      store(g.grad_input, of_first, j, value);
    }
  }
  // A: the arithmetic. The input's gradient has the bits of write_kept's.
  template <class A, class Loss>
  __device__ __forceinline__ void write_gradients(const SeenClasses<A, Read>& seen, const Loss& loss,
                                                  const DistributionRow& found, double by, int64_t of_first,
                                                  int64_t of_second) const {
    using N = Scalar<A>;
    const OfKept<Read> of = of_kept<Loss>(found, by);
    const KeptTerm<N> factors = Lifts(by).factors<N>();
    const N raised = static_cast<N>(found.raised), mean = static_cast<N>(found.mean), of_p = static_cast<N>(found.of_p),
            of_row = static_cast<N>(by);
    each([&](int32_t j, const Read(&x)[n], const Read(&t)[n], V*) {
      Read value[n];
      N for_target[n];
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const auto one = class_of<Loss>(seen, x[k], t[k]);
        const auto term = loss.template term<A>(one.q, one.p, one.d);
        value[k] = for_input<Loss>(of, kept_term<Loss>(term, factors));
        for_target[k] = grad_target(one.p * of_p, term.of_target + raised, mean) * of_row;
      }
      if (g.rows.grad_input.data) store(g.grad_input, of_first, j, value);
      if (g.rows.grad_target.data) store(g.grad_target, of_second, j, for_target);
    });
  }
  __device__ __forceinline__ void fill_gradients(Read with, int64_t of_first, int64_t of_second) const {
    Read value[n];
#pragma unroll
    for (int k = 0; k < n; ++k) value[k] = with;
    for (int32_t j = first; j < g.rows.classes; j += step) {
      if (g.rows.grad_input.data) store(g.grad_input, of_first, j, value);
      if (g.rows.grad_target.data) store(g.grad_target, of_second, j, value);
    }
  }
};

}  // namespace cudaloss::cuda
