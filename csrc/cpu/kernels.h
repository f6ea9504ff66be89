// The CPU loops. F is the type read, T the arithmetic's. Each loop is compiled once per x86-64 level; the lanes and
// the tree below are spelled out, so that every level, and every thread count, adds in the same order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/arith.h"
#include "core/sum.h"

namespace cudaloss::cpu {

constexpr int kLanes = 16;  // floats in the widest register
constexpr int kRows = 4;
constexpr int kTile = kLanes * kRows;
constexpr int kTilesABlock = 16;  // a lane's running sum starts again after this many tiles: short chains, small error

// Sums that stay in registers, where GCC 12 has an array of them go through memory from one tile to the next. As wide
// as AVX2's registers: of wider ones it makes memory there.
constexpr int kDoubles = 4;
typedef double Doubles __attribute__((vector_size(kDoubles * sizeof(double))));

template <class T>
CUDALOSS_INLINE void load(const T* values, Doubles& loaded) {
  typedef T Values __attribute__((vector_size(kDoubles * sizeof(T))));
  Values narrow;
  memcpy(&narrow, values, sizeof narrow);
  loaded = __builtin_convertvector(narrow, Doubles);
}

// The sum of term(0) ... term(count - 1), each a T. Within a tile the four rows are added as a tree in T (exact where
// the values are equal), then in fp64, compensated from the second block on.
template <class T, class Term>
CUDALOSS_INLINE Sum sum_of(const Term& term, int64_t count) {
  constexpr int kParts = kLanes / kDoubles;
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

// A selection as a loop takes it, as wide as F: all bits where an element counts, none where it does not. What is kept
// by a bitwise product needs no comparison, before which GCC 12 leaves a loop over bytes and floats scalar.
template <class F>
using Keep = std::conditional_t<sizeof(F) == sizeof(double), int64_t, int32_t>;

template <class T, class Bits>
CUDALOSS_INLINE T kept(T value, Bits keep) {
  return bit_cast<T>(bit_cast<Keep<T>>(value) & static_cast<Keep<T>>(keep));
}

// The loss of element i, times its weight, if it is kept.
template <class T, bool kWeighed, bool kSelected, class F, class Loss>
struct TermOf {
  const Loss& loss;
  const F *input, *target, *weights;
  const Keep<F>* keep;

  CUDALOSS_INLINE T operator()(int64_t i) const {
    T value = loss.value(Difference<T>::of(input[i], target[i]));
    if constexpr (kWeighed) value *= static_cast<T>(weights[i]);
    if constexpr (kSelected) value = kept(value, keep[i]);
    return value;
  }
};

// The sum of the losses of `count` elements, times their weights, of those that are kept.
template <class T, bool kWeighed, bool kSelected, class F, class Loss>
CUDALOSS_MULTIVERSION Sum sum_of_losses(Loss loss, const F* input, const F* target, const F* weights,
                                        const Keep<F>* keep, int64_t count) {
  return sum_of<T>(TermOf<T, kWeighed, kSelected, F, Loss>{loss, input, target, weights, keep}, count);
}
template <class T, class F, class Loss>
Sum sum_of_losses(const Loss& loss, const F* input, const F* target, int64_t count) {
  return sum_of_losses<T, false, false, F>(loss, input, target, nullptr, nullptr, count);
}

template <class T, class F, class Loss, class Out>
CUDALOSS_MULTIVERSION void losses(Loss loss, const F* input, const F* target, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<Out>(loss.value(Difference<T>::of(input[i], target[i])));
  }
}

// out = scale * grad, the same scale for all elements.
template <class T, class F, class Loss, class Out>
CUDALOSS_MULTIVERSION void gradients(Loss loss, T scale, const F* input, const F* target, int64_t count, Out* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<Out>(loss.grad(Difference<T>::of(input[i], target[i]), Constant<T>{scale, T(0)}));
  }
}

// The same with one more factor for each element.
template <class T, class F, class Factor, class Loss, class Out>
CUDALOSS_MULTIVERSION void gradients(Loss loss, T scale, const Factor* factors, const F* input, const F* target,
                                     int64_t count, Out* out) {
  for (int64_t i = 0; i < count; ++i) {
    const T factor = scale * static_cast<T>(factors[i]);
    out[i] = static_cast<Out>(loss.grad(Difference<T>::of(input[i], target[i]), Constant<T>{factor, T(0)}));
  }
}

template <class F>
CUDALOSS_MULTIVERSION void negate(const F* source, int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = -source[i];
}

}  // namespace cudaloss::cpu
