// The CPU loops. F is the type read, T the arithmetic's. Each loop is compiled once per x86-64 level; the lanes and
// the tree below are spelled out, so that every level, and every thread count, adds in the same order.
#pragma once

#include <cstdint>

#include "core/arith.h"
#include "core/sum.h"

namespace cudaloss::cpu {

constexpr int kLanes = 16;  // floats in the widest register
constexpr int kRows = 4;
constexpr int kTile = kLanes * kRows;
constexpr int kTilesABlock = 16;  // a lane's running sum starts again after this many tiles: short chains, small error

// The sum of the losses of `count` elements. Within a tile the four rows are added as a tree in T (exact where the
// values are equal), then in fp64, compensated from the second block on.
template <class T, class F, class Loss>
CUDALOSS_MULTIVERSION Sum sum_of_losses(Loss loss, const F* input, const F* target, int64_t count) {
  Sum total[kLanes] = {};
  int64_t i = 0;
  while (i + kTile <= count) {
    double block[kLanes] = {};
    for (int tile = 0; tile < kTilesABlock && i + kTile <= count; ++tile, i += kTile) {
      for (int lane = 0; lane < kLanes; ++lane) {
        T value[kRows];
        for (int row = 0; row < kRows; ++row) {
          const int64_t k = i + row * kLanes + lane;
          value[row] = loss.value(Difference<T>::of(input[k], target[k]));
        }
        block[lane] += (value[0] + value[1]) + (value[2] + value[3]);
      }
    }
    for (int lane = 0; lane < kLanes; ++lane) total[lane].add(block[lane]);
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    total[lane % kLanes].add(loss.value(Difference<T>::of(input[i], target[i])));
  }
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) total[lane].add(total[lane + width]);
  }
  return total[0];
}

template <class T, class F, class Loss>
CUDALOSS_MULTIVERSION void losses(Loss loss, const F* input, const F* target, int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<F>(loss.value(Difference<T>::of(input[i], target[i])));
  }
}

// out = scale * grad, the same scale for all elements.
template <class T, class F, class Loss>
CUDALOSS_MULTIVERSION void gradients(Loss loss, T scale, const F* input, const F* target, int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<F>(loss.grad(Difference<T>::of(input[i], target[i]), Constant<T>{scale, T(0)}));
  }
}

// The same with one more factor for each element.
template <class T, class F, class Loss>
CUDALOSS_MULTIVERSION void gradients(Loss loss, T scale, const F* grad_output, const F* input, const F* target,
                                     int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) {
    const T factor = scale * static_cast<T>(grad_output[i]);
    out[i] = static_cast<F>(loss.grad(Difference<T>::of(input[i], target[i]), Constant<T>{factor, T(0)}));
  }
}

template <class F>
CUDALOSS_MULTIVERSION void negate(const F* source, int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = -source[i];
}

}  // namespace cudaloss::cpu
