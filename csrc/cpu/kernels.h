// The CPU loops. F is the type read, T the arithmetic. Each loop is compiled once per x86-64 level. The lanes and the
// tree below are written out, so that every level, and every thread count, adds in the same order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/functor.h"
#include "core/sum.h"

namespace cudaloss::cpu {

constexpr int kLanes = 16;  // floats in the widest register
constexpr int kRows = 4;
constexpr int kTile = kLanes * kRows;
constexpr int kTilesABlock = 16;  // a lane's running sum restarts after this many tiles: short chains, small error

// Sums that stay in registers; GCC 12 would move an array of sums through memory between tiles. They are as wide as
// AVX2's registers, because GCC 12 puts wider ones in memory there.
constexpr int kDoubles = 4;
constexpr int kParts = kLanes / kDoubles;
typedef double Doubles __attribute__((vector_size(kDoubles * sizeof(double))));

template <class T>
CUDALOSS_INLINE void load(const T* values, Doubles& loaded) {
  typedef T Values __attribute__((vector_size(kDoubles * sizeof(T))));
  Values narrow;
  memcpy(&narrow, values, sizeof narrow);
  loaded = __builtin_convertvector(narrow, Doubles);
}

// The sum of term(0) ... term(count - 1), each a T. Within a tile the four rows are added as a tree in T (exact if the
// values are equal), then in fp64, compensated from the second block on.
template <class T, class Term>
CUDALOSS_INLINE Sum sum_of(const Term& term, int64_t count) {
  SumOf<Doubles> total[kParts] = {};
  int64_t i = 0;
  while (i + kTile <= count) {
    Doubles block[kParts] = {};
    for (int tile = 0; tile < kTilesABlock && i + kTile <= count; ++tile, i += kTile) {
      T value[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        T row[kRows];
        for (int k = 0; k < kRows; ++k) row[k] = term(i + k * kLanes + lane);
        value[lane] = (row[0] + row[1]) + (row[2] + row[3]);
      }
      for (int part = 0; part < kParts; ++part) {
        Doubles terms;
        load(value + part * kDoubles, terms);
        block[part] += terms;
      }
    }
    for (int part = 0; part < kParts; ++part) total[part].add(block[part]);
  }
  while (i < count) {
    T value[kLanes] = {};
    for (int lane = 0; lane < kLanes && i < count; ++lane, ++i) value[lane] = term(i);
    for (int part = 0; part < kParts; ++part) {
      Doubles terms;
      load(value + part * kDoubles, terms);
      total[part].add(terms);
    }
  }
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int part = 0; part < width; ++part) total[part].add(total[part + width]);
  }
  Sum sum = {};
  for (int lane = 0; lane < kDoubles; ++lane) sum.add(Sum{total[0].value[lane], total[0].rest[lane]});
  return sum;
}

// A selection for a loop, as wide as F: all bits set for an element that counts, none for the others. A bitwise product
// then selects without a comparison; with one, GCC 12 does not vectorise a loop over bytes and floats.
template <class F>
using Keep = std::conditional_t<sizeof(F) == sizeof(double), int64_t, int32_t>;

template <class T, class Bits>
CUDALOSS_INLINE T kept(T value, Bits keep) {
  return bit_cast<T>(bit_cast<Keep<T>>(value) & static_cast<Keep<T>>(keep));
}

// The sum of the losses of the selected ones of `count` elements, times their weights.
template <class T, bool kWeighed, bool kSelected, class F, class Loss>
CUDALOSS_MULTIVERSION Sum sum_of_losses(Loss loss, const F* input, const F* target, const F* weights,
                                        const Keep<F>* keep, int64_t count) {
  const auto term = [&loss, input, target, weights, keep](int64_t i) CUDALOSS_INLINE_LAMBDA {
    T value = loss.value(loss.terms(input[i], target[i]));
    if constexpr (kWeighed) value *= static_cast<T>(weights[i]);
    if constexpr (kSelected) value = kept(value, keep[i]);
    return value;
  };
  return sum_of<T>(term, count);
}

// The loss for element i; with kThird, one with the element's own third operand.
template <bool kThird, class F, class Loss>
CUDALOSS_INLINE decltype(auto) own(const Loss& loss, const F* third, int64_t i) {
  if constexpr (kThird) {
    return loss.with(static_cast<typename Loss::F>(third[i]));
  } else {
    return (loss);  // by reference: GCC 12 vectorises nothing around a copy
  }
}

template <bool kThird, class F, class Loss, class Out>
CUDALOSS_MULTIVERSION void losses(Loss loss, const F* input, const F* target, const F* third, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; ++i) {
    const Loss& of_element = own<kThird>(loss, third, i);
    out[i] = static_cast<Out>(of_element.value(of_element.terms(input[i], target[i])));
  }
}

// The operand whose gradients a loop makes.
enum class Of { Input, Target, Third };

template <Of kOf, class Loss, class F>
CUDALOSS_INLINE typename Loss::F gradient(const Loss& loss, Constant<typename Loss::F> factor, F input, F target) {
  if constexpr (kOf == Of::Input) {
    return loss.grad_input(loss.terms(input, target), factor);
  } else if constexpr (kOf == Of::Third) {
    return loss.grad_third(loss.terms(input, target), factor);
  } else {
    return loss.grad_target(loss.terms(input, target), factor);
  }
}

// out = scale * gradient, the same scale for all elements.
template <Of kOf, class T, class F, class Loss, class Out>
CUDALOSS_MULTIVERSION void gradients(Loss loss, Constant<T> scale, const F* input, const F* target, int64_t count,
                                     Out* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<Out>(gradient<kOf>(loss, scale, input[i], target[i]));
  }
}

// The same with one more factor for each element.
template <Of kOf, bool kThird, class T, class F, class Loss, class Out>
CUDALOSS_MULTIVERSION void gradients(Loss loss, T scale, const T* factors, const F* input, const F* target,
                                     const F* third, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; ++i) {
    const Constant<T> factor = {scale * factors[i], T(0)};
    out[i] = static_cast<Out>(gradient<kOf>(own<kThird>(loss, third, i), factor, input[i], target[i]));
  }
}

// Both from the same terms, which are most of the work for a loss of two operands.
template <class T, class F, class Loss>
CUDALOSS_MULTIVERSION void losses_and_gradients(Loss loss, Constant<T> scale, const F* __restrict input,
                                                const F* __restrict target, int64_t count, T* __restrict losses,
                                                F* __restrict gradients) {
  for (int64_t i = 0; i < count; ++i) {
    const auto terms = loss.terms(input[i], target[i]);
    const T value = loss.value(terms);
    gradients[i] = static_cast<F>(loss.grad_input(terms, scale));
    losses[i] = value;
  }
}

}  // namespace cudaloss::cpu
