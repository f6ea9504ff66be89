// What the engines ask of a loss. Losses of the difference and of two operands have one form: the terms, made once an
// element; and from the terms the value and the gradients of both operands.
#pragma once

#include <type_traits>
#include <utility>

#include "core/numbers.h"

namespace cudaloss {

// A loss's own numbers. Its third operand (beta, delta, quantile, pos_weight) can be a tensor instead: see `with`.
struct Numbers {
  double third, second;
  int flags;  // bit i: its row's flag i
};

// A loss of two operands, or of a difference in two parts, has its own Terms. It has a third operand if it sets
// kHasThird. If it sets kMirrors, the target's gradient is the input's with the other sign.
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

// Whether it has gradients for a third operand that is a tensor: grad_third.
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

// A loss of d = input - target: value(d), and the input's gradient grad(d, scale).
template <class T, class Loss>
struct OfDifference : Loss {
  using Arithmetic = T;
  using F = Scalar<T>;
  using Terms = T;
  static constexpr bool kHasThird = kDeclaresThird<Loss>;
  static constexpr bool kMirrors = true;  // the target's gradient is the input's with the other sign

  explicit OfDifference(const Numbers& numbers) : Loss(numbers.third) {}
  CUDALOSS_INLINE explicit OfDifference(F third) : Loss(third) {}

  // The same loss for an element with its own third operand.
  CUDALOSS_INLINE OfDifference with(F third) const { return OfDifference(third); }
  template <class A, class B>
  CUDALOSS_INLINE Terms terms(A input, B target) const {
    return Difference<T>::of(input, target);
  }
  CUDALOSS_INLINE T value(Terms d) const { return Loss::value(d); }
  CUDALOSS_INLINE F grad_input(Terms d, Constant<F> scale) const { return Loss::grad(d, scale); }
};

// A loss of (input, target), in the scalar arithmetic F. The expensive part is in its Terms.
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

// Whether the value of a loss of operands is a WithRest: few such values can be summed as exactly as differences.
template <template <class> class Loss>
constexpr bool kHasRests = kIsOfOperands<Loss> && kValuesHaveRests<Loss<float>>;

// Whether single results and sums are computed in two ways.
template <template <class> class Loss>
constexpr bool kSumsApart = kHasRests<Loss> || kHasValueInSum<Loss<float>>;

// The arithmetic of the terms of a loss of two operands, if an engine takes T. For FloatFloat: float with rests. For
// float: float without rests.
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

// The functor for single results in T of numbers that are read as F. A T wider than F needs no rests.
template <template <class> class Loss, class T, class F>
using SingleFunctor = std::conditional_t<
    kHasRests<Loss> && (sizeof(T) > sizeof(F)), OfOperands<T, Loss<Plain<T>>>,
    std::conditional_t<kHasValueInSum<Loss<float>>, OfOperands<T, Loss<T>, false>, Functor<Loss, T>>>;

// The arithmetic in which a loss computes if an engine would take FloatFloat. A loss of two operands uses float: its
// terms keep what float would lose, and value and gradients then share them.
template <template <class> class Loss, class T>
using ArithmeticOf =
    std::conditional_t<kIsOfOperands<Loss> && !kSumsApart<Loss> && std::is_same_v<T, FloatFloat>, float, T>;

// A loss can have a cheaper form for its usual numbers, Loss::Usual, which an engine then calls instead. There the
// compiler knows the flags. A branch at each flag of each element costs more than the arithmetic, because elements no
// longer overlap.
template <class Loss, class = void>
constexpr bool kHasUsual = false;
template <class Loss>
constexpr bool kHasUsual<Loss, std::void_t<decltype(Loss::is_usual(std::declval<Numbers>()))>> = true;

// A form of a loss: 0 is the loss itself, 1 its usual form, which can have a usual form in turn.
template <template <class> class Loss, int kForm>
struct FormOf {
  static constexpr int kIndex = kForm;
  template <class T>
  using Of = Loss<T>;
};
// Calls `visit` with the form that fits the numbers.
template <template <class> class Loss, int kForm = 0, class Visit>
auto with_form(const Numbers& numbers, const Visit& visit) {
  if constexpr (kHasUsual<Loss<float>>) {
    if (Loss<float>::is_usual(numbers)) return with_form<Loss<float>::template Usual, kForm + 1>(numbers, visit);
  }
  return visit(FormOf<Loss, kForm>());
}

// kIsOfDifference: a loss of the difference, which has few instructions. kIsHeavy: a loss that says it takes more than
// 40 registers a thread.
template <class Functor>
constexpr bool kIsOfDifference = false;
template <class T, class Loss>
constexpr bool kIsOfDifference<OfDifference<T, Loss>> = true;
template <class Loss, class = void>
constexpr bool kIsHeavy = false;
template <class Loss>
constexpr bool kIsHeavy<Loss, std::void_t<decltype(Loss::kIsHeavy)>> = Loss::kIsHeavy;

// Whether value and gradients come from one evaluation of the terms: worth it if the terms cost more than the registers
// that hold them meanwhile.
template <class OfValue, class OfGradient>
constexpr bool kSharesTerms = false;
template <class TV, class TG, class Loss, bool kV, bool kG>
constexpr bool kSharesTerms<OfOperands<TV, Loss, kV>, OfOperands<TG, Loss, kG>> = true;

}  // namespace cudaloss
