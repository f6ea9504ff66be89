// What the engines ask of a loss, in one form for losses of the difference and of two operands: its terms, once an
// element, and from them its value and the gradients of both operands.
#pragma once

#include <type_traits>
#include <utility>

#include "core/numbers.h"

namespace cudaloss {

// A loss's own numbers. Its third operand (beta, delta, quantile, pos_weight) may be a tensor instead: see `with`.
struct Numbers {
  double third, second;
  int flags;  // bit i: its row's flag i
};

// A loss of two operands, or of a difference in two parts, has Terms of its own; a third operand where it says
// kHasThird, and of the target the input's gradient with the other sign where it says kMirrors.
template <class Loss, class = void>
constexpr bool kHasTerms = false;
template <class Loss>
constexpr bool kHasTerms<Loss, std::void_t<typename Loss::Terms>> = true;
template <class Loss, class = void>
constexpr bool kDeclaresThird = false;
template <class Loss>
constexpr bool kDeclaresThird<Loss, std::void_t<decltype(Loss::kHasThird)>> = Loss::kHasThird;
template <class Loss, class = void>
constexpr bool kDeclaresMirrors = false;
template <class Loss>
constexpr bool kDeclaresMirrors<Loss, std::void_t<decltype(Loss::kMirrors)>> = Loss::kMirrors;

// Whether it has gradients of a third operand that is a tensor: grad_third.
template <class Loss, class = void>
constexpr bool kHasGradThird = false;
template <class Loss>
constexpr bool kHasGradThird<Loss, std::void_t<decltype(&Loss::grad_third)>> = true;

constexpr char kNoGradThird[] = "cudaloss: the loss has no gradient for its third operand";

template <class Loss, class = void>
constexpr bool kValuesHaveRests = false;
template <class Loss>
constexpr bool kValuesHaveRests<
    Loss, std::void_t<decltype(std::declval<Loss>().value(std::declval<typename Loss::Terms>()).rest)>> = true;

// Whether it has a cheaper value for sums of many terms, whose roundings average out: value_in_sum.
template <class Loss, class = void>
constexpr bool kHasValueInSum = false;
template <class Loss>
constexpr bool kHasValueInSum<
    Loss, std::void_t<decltype(std::declval<Loss>().value_in_sum(std::declval<typename Loss::Terms>()))>> = true;

// A loss of d = input - target: value(d), and grad(d, scale) of the input, which the target's mirrors.
template <class T, class Loss>
struct OfDifference : Loss {
  using Arithmetic = T;
  using F = Scalar<T>;
  using Terms = T;
  static constexpr bool kHasThird = kDeclaresThird<Loss>;
  static constexpr bool kMirrors = true;  // the target's gradient is the input's with the other sign

  explicit OfDifference(const Numbers& numbers) : Loss(numbers.third) {}
  CUDALOSS_INLINE explicit OfDifference(F third) : Loss(third) {}

  // The same loss for an element that has a third operand of its own.
  CUDALOSS_INLINE OfDifference with(F third) const { return OfDifference(third); }
  template <class A, class B>
  CUDALOSS_INLINE Terms terms(A input, B target) const {
    return Difference<T>::of(input, target);
  }
  CUDALOSS_INLINE T value(Terms d) const { return Loss::value(d); }
  CUDALOSS_INLINE F grad_input(Terms d, Constant<F> scale) const { return Loss::grad(d, scale); }
};

// A loss of (input, target), in the scalar arithmetic F: what costs most is in its Terms.
template <class T, class Loss, bool kInSum = std::is_same_v<T, float> && kHasValueInSum<Loss>>
struct OfOperands : Loss {
  using Arithmetic = T;
  using F = Scalar<T>;
  using Terms = typename Loss::Terms;
  static constexpr bool kHasThird = kDeclaresThird<Loss>;
  static constexpr bool kMirrors = kDeclaresMirrors<Loss>;

  explicit OfOperands(const Numbers& numbers) : Loss(numbers) {}
  CUDALOSS_INLINE explicit OfOperands(const Loss& loss) : Loss(loss) {}

  CUDALOSS_INLINE OfOperands with(F third) const { return OfOperands(Loss::with(third)); }
  template <class A, class B>
  CUDALOSS_INLINE Terms terms(A input, B target) const {
    return Loss::terms(widen<F>(input), widen<F>(target));
  }
  CUDALOSS_INLINE T value(const Terms& terms) const {
    if constexpr (kInSum) {
      return Loss::value_in_sum(terms);
    } else {
      return as(Loss::value(terms));
    }
  }

 private:
  CUDALOSS_INLINE static T as(F value) { return T{value}; }
  CUDALOSS_INLINE static T as(WithRest<F> value) {
    if constexpr (std::is_same_v<T, FloatFloat>) {
      return {value.value, value.rest};
    } else {
      return T{rounded(value)};
    }
  }
};

template <template <class> class Loss>
constexpr bool kIsOfOperands = kHasTerms<Loss<float>>;

// Of these, whether its value comes as a WithRest: few of them can be summed as exactly as differences.
template <template <class> class Loss>
constexpr bool kHasRests = kIsOfOperands<Loss> && kValuesHaveRests<Loss<float>>;

// Whether single results and sums are made in two ways.
template <template <class> class Loss>
constexpr bool kSumsApart = kHasRests<Loss> || kHasValueInSum<Loss<float>>;

// What a loss of two operands computes its terms in, where an engine takes T: where T is FloatFloat in float, whose
// rests it keeps, and where T is float without them.
template <template <class> class Loss, class T>
struct TermsIn {
  using type = T;
};
template <template <class> class Loss>
struct TermsIn<Loss, FloatFloat> {
  using type = float;
};
template <template <class> class Loss>
struct TermsIn<Loss, float> {
  using type = std::conditional_t<kHasRests<Loss>, Plain<float>, float>;
};

template <template <class> class Loss, class T>
using Functor = std::conditional_t<kIsOfOperands<Loss>, OfOperands<T, Loss<typename TermsIn<Loss, T>::type>>,
                                   OfDifference<T, Loss<T>>>;

// The one that makes single results of numbers that are read as F, in T: a wider T needs no rests.
template <template <class> class Loss, class T, class F>
using SingleFunctor = std::conditional_t<
    kHasRests<Loss> && (sizeof(T) > sizeof(F)), OfOperands<T, Loss<Plain<T>>>,
    std::conditional_t<kHasValueInSum<Loss<float>>, OfOperands<T, Loss<T>, false>, Functor<Loss, T>>>;

// The arithmetic in which a loss computes where an engine would take FloatFloat. A loss of two operands does so in
// float: its terms keep what float would lose, and value and gradients then share them.
template <template <class> class Loss, class T>
using ArithmeticOf =
    std::conditional_t<kIsOfOperands<Loss> && !kSumsApart<Loss> && std::is_same_v<T, FloatFloat>, float, T>;

// A loss may have a cheaper form for its usual numbers, which an engine then calls in its place: Loss::Usual. In that
// the compiler knows the flags: a branch at each flag of each element costs more than the arithmetic, as elements no
// longer overlap.
template <class Loss, class = void>
constexpr bool kHasUsual = false;
template <class Loss>
constexpr bool kHasUsual<Loss, std::void_t<decltype(Loss::is_usual(std::declval<Numbers>()))>> = true;

// A form of a loss: its own is 0, its usual one's is 1, and that may have one in turn.
template <template <class> class Loss, int kForm>
struct FormOf {
  static constexpr int kIndex = kForm;
  template <class T>
  using Of = Loss<T>;
};
// Calls `visit` with the form that the numbers ask for.
template <template <class> class Loss, int kForm = 0, class Visit>
auto with_form(const Numbers& numbers, const Visit& visit) {
  if constexpr (kHasUsual<Loss<float>>) {
    if (Loss<float>::is_usual(numbers)) return with_form<Loss<float>::template Usual, kForm + 1>(numbers, visit);
  }
  return visit(FormOf<Loss, kForm>());
}

// Whether it is of the difference alone, and so of few instructions; whether it takes more than 40 registers a thread,
// as it then says.
template <class Functor>
constexpr bool kIsOfDifference = false;
template <class T, class Loss>
constexpr bool kIsOfDifference<OfDifference<T, Loss>> = true;
template <class Loss, class = void>
constexpr bool kIsHeavy = false;
template <class Loss>
constexpr bool kIsHeavy<Loss, std::void_t<decltype(Loss::kIsHeavy)>> = Loss::kIsHeavy;

// Whether value and gradients are made from one evaluation of the terms: where these are worth more than the registers
// that they take meanwhile.
template <class OfValue, class OfGradient>
constexpr bool kSharesTerms = false;
template <class TV, class TG, class Loss, bool kV, bool kG>
constexpr bool kSharesTerms<OfOperands<TV, Loss, kV>, OfOperands<TG, Loss, kG>> = true;

}  // namespace cudaloss
