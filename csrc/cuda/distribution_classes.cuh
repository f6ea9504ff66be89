// How the classes of a row of two distributions are read, and the sums over them: plain numbers, or floats with rests.
#pragma once

#include "core/distribution_pairs.h"
#include "cuda/row_lanes.cuh"

namespace cudaloss::cuda {

// ---- plain numbers -----------------------------------------------------------------------------------------

// How a distribution's classes are read, given their maximum.
template <class T, class Read>
struct SeenLogits {
  using F = Scalar<T>;
  F inverse;  // of the temperature
  Read max, least;

  __device__ __forceinline__ static SeenLogits of(F inverse, Read max, double farthest) {
    return {inverse, max, max_or_nan(-largest(Read()), static_cast<Read>(max - farthest))};
  }
  __device__ __forceinline__ F below_max(Read x) const { return (F(x) - F(max)) * inverse; }
  __device__ __forceinline__ F exp(Read x, F below) const {
    const F e = exp_of_below<T>(below);
    return std::is_same_v<T, FastFloat> ? e : select(x < least, F(0), e);  // FastFloat's exp is 0 there
  }
};

// What a row's gradients for the target are made of.
template <class F>
struct OfTarget {
  F lowered, divergence, of_p, of_row;
};

// How a row's classes are read, given the values that all classes share.
template <class T, class Read>
struct SeenClasses {
  using F = Scalar<T>;
  Two<SeenLogits<T, Read>> logits;
  Two<F> of_exp;
  F lower;

  struct Class {
    F q, p, d;
  };
  struct Term {
    F divergence, excess, p;
  };
  __device__ __forceinline__ static SeenClasses of(F inverse, double farthest, const Two<Read>& max,
                                                   const Two<F>& others) {
    using Logits = SeenLogits<T, Read>;
    return {{Logits::of(inverse, max.input, farthest), Logits::of(inverse, max.target, farthest)},
            {F(1) / (F(1) + others.input), F(1) / (F(1) + others.target)},
            log_of_sums(others.input, others.target)};
  }
  __device__ __forceinline__ Class of(Read x, Read t) const {
    const F of_x = logits.input.below_max(x), of_t = logits.target.below_max(t);
    return {logits.input.exp(x, of_x) * of_exp.input, logits.target.exp(t, of_t) * of_exp.target,
            (of_x - of_t) - lower};
  }
  template <class Run>
  __device__ __forceinline__ void with_scaling(const Run& run) const {
    run(std::true_type());
  }
  // Visits a vector's terms; and with them the target's gradients.
  template <bool kScales, class Loss, int n, class Visit>
  __device__ __forceinline__ void each_term(const Read (&x)[n], const Read (&t)[n], const Visit& visit) const {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const Class one = of(x[k], t[k]);
      const auto term = Loss::template term<T>(one.q, one.p, one.d);
      visit(k, Term{term.divergence, term.excess, one.p});
    }
  }
  template <bool kScales, class Loss, int n, class Visit>
  __device__ __forceinline__ void each_gradient(const Read (&x)[n], const Read (&t)[n], const OfTarget<F>& row,
                                                const Visit& visit) const {
#pragma unroll
    for (int k = 0; k < n; ++k) {
      const Class one = of(x[k], t[k]);
      const auto term = Loss::template term<T>(one.q, one.p, one.d);
      const F for_target = Loss::grad_target(one.p * row.of_p, one.d - row.lowered, row.divergence) * row.of_row;
      visit(k, Term{term.divergence, term.excess, one.p}, for_target);
    }
  }
};

// Sums over a row's classes: of the loss's terms, and of p. In fp64 their rounding would show.
template <class T>
struct Terms {
  using N = std::conditional_t<std::is_same_v<T, double>, Sum, Scalar<T>>;
  N divergence, excess, p;

  template <class Term>
  __device__ __forceinline__ void add(const Term& term) {
    add_to(divergence, term.divergence);
    add_to(excess, term.excess);
    add_to(p, term.p);
  }
  __device__ __forceinline__ Terms total() const { return *this; }
  __device__ __forceinline__ Terms operator+(const Terms& other) const {
    return {divergence + other.divergence, excess + other.excess, p + other.p};
  }
};

// ---- floats with rests -------------------------------------------------------------------------------------

struct OfPairedTarget {
  WithRest<float> above, factor;
};

struct PairedClasses {
  PairedLogits row;
  static constexpr int kAtOnce = 4;  // so many classes are computed as if none is far, or all with care

  template <class Run>
  __device__ __forceinline__ void with_scaling(const Run& run) const {
    if (row.scales) {
      run(std::true_type());
    } else {
      run(std::false_type());
    }
  }
  // Calls near(k, distance) for some classes, or far(k).
  template <int n, class Near, class Far>
  __device__ __forceinline__ void each(const float (&x)[n], const float (&t)[n], const Near& near,
                                       const Far& far) const {
#pragma unroll
    for (int first = 0; first < n; first += kAtOnce) {
      WithRest<float> distance[kAtOnce];
      float least_target = INFINITY, least = INFINITY;
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        distance[k] = row.distance(x[first + k], t[first + k]);
        least_target = fminf(least_target, t[first + k]);
        least = fminf(least, distance[k].value);
      }
      if (least_target >= row.least && least >= row.lowest) {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) near(first + k, distance[k]);
      } else {
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) far(first + k);
      }
    }
  }
  template <bool kScales, class Loss, int n, class Visit>
  __device__ __forceinline__ void each_term(const float (&x)[n], const float (&t)[n], const Visit& visit) const {
    each(
        x, t,
        [&](int k, const WithRest<float>& distance) {
          visit(k, Loss::template paired_term<false>(row.near_class<kScales>(t[k], distance)));
        },
        [&](int k) { visit(k, Loss::template paired_term<true>(row.far_class(x[k], t[k]))); });
  }
  template <bool kScales, class Loss, int n, class Visit>
  __device__ __forceinline__ void each_gradient(const float (&x)[n], const float (&t)[n], const OfPairedTarget& of,
                                                const Visit& visit) const {
    each(
        x, t,
        [&](int k, const WithRest<float>& distance) {
          const PairedClass one = row.near_class<kScales>(t[k], distance);
          visit(k, Loss::template paired_term<false>(one),
                Loss::template paired_grad_target<false>(one, of.above, of.factor));
        },
        [&](int k) {
          const PairedClass one = row.far_class(x[k], t[k]);
          visit(k, Loss::template paired_term<true>(one),
                Loss::template paired_grad_target<true>(one, of.above, of.factor));
        });
  }
};

// A sum of terms between -4 and 4, that itself stays there. It starts above it, so that two more operations find the
// rounding error of an addition, and no bit of the sums' sum is rounded.
struct SumAboveAll {
  static constexpr float kStart = 6.0f;
  float sum = kStart, rest = 0.0f;

  __device__ __forceinline__ void add(float term) {
    const float next = sum + term, added = next - sum;
    rest += term - added;
    sum = next;
  }
  __device__ __forceinline__ WithRest<float> total() const { return {sum - kStart, rest}; }
};
struct PairedTotals {
  WithRest<float> divergence, excess, p;

  __device__ __forceinline__ PairedTotals operator+(const PairedTotals& other) const {
    return {plus(divergence, other.divergence),
            {excess.value + other.excess.value, excess.rest + other.excess.rest},
            {p.value + other.p.value, p.rest + other.p.rest}};
  }
};
template <>
struct Terms<FloatFloat> {
  WithRest<float> divergence = {0.0f, 0.0f};
  SumAboveAll excess, p;

  template <class Term>
  __device__ __forceinline__ void add(const Term& term) {
    const float of_term = term.divergence.value, sum = divergence.value + of_term;  // neither is negative
    const float more = fmaxf(divergence.value, of_term), less = fminf(divergence.value, of_term);
    divergence = {sum, divergence.rest + ((less - (sum - more)) + term.divergence.rest)};
    excess.add(term.excess);
    p.add(term.p.value);
    p.rest += term.p.rest;
  }
  __device__ __forceinline__ PairedTotals total() const { return {divergence, excess.total(), p.total()}; }
};

}  // namespace cudaloss::cuda
