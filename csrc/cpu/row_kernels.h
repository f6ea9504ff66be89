// The CPU loops over rows. A tile has kLanes columns: of a short or strided row each lane is a row of its own, of a
// long one the lanes are parts of it, side by side. Both are the same loops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/softmax.h"
#include "cpu/kernels.h"

namespace cudaloss::cpu {

// max[lane] = the largest of its column, NaN left out.
template <class F>
CUDALOSS_MULTIVERSION void lanes_max(const F* tile, int64_t lines, F* max) {
  F found[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) found[lane] = kLowest<F>;
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const F x = tile[i * kLanes + lane];
      found[lane] = select(x > found[lane], x, found[lane]);
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) max[lane] = found[lane];
}

// tile = exp(tile - max) / small, and sums of it; of fp64, which shows what additions round away, with that.
template <class F>
CUDALOSS_MULTIVERSION void lanes_exp(F* tile, int64_t lines, const F* max, double* sums, double* rests) {
  double sum[kLanes] = {}, rest[kLanes] = {};
  for (int64_t i = 0; i < lines; ++i) {
    F* const line = tile + i * kLanes;
    for (int lane = 0; lane < kLanes; ++lane) line[lane] = exp_below_max(bounded(line[lane]), max[lane]);
    for (int lane = 0; lane < kLanes; ++lane) {
      if constexpr (sizeof(F) == sizeof(double)) {
        Sum all = {sum[lane], rest[lane]};
        all.add(line[lane]);
        sum[lane] = all.value;
        rest[lane] = all.rest;
      } else {
        sum[lane] += static_cast<double>(line[lane]);
      }
    }
  }
  std::copy(sum, sum + kLanes, sums);
  std::copy(rest, rest + kLanes, rests);
}

// tile *= factors; the tile is unlifted first where the products with `small` in them would leave the range
template <class F>
CUDALOSS_MULTIVERSION void lanes_times(F* tile, int64_t lines, F unlifted, const Constant<F>* factors) {
  F hi[kLanes], lo[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    hi[lane] = factors[lane].hi;
    lo[lane] = factors[lane].lo;
  }
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const F e = tile[i * kLanes + lane] * unlifted;
      tile[i * kLanes + lane] = fused(e, hi[lane], e * lo[lane]);
    }
  }
}

// What a tile is multiplied by before its factors, of which the least is `least`.
template <class F>
F unlifting(double least) {
  constexpr double small = static_cast<double>(ExpParts<F>::small);
  return least * small < static_cast<double>(cudaloss::least(F())) / small ? ExpParts<F>::small : F(1);
}

}  // namespace cudaloss::cpu
