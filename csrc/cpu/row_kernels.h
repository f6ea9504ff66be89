// The CPU loops over rows. A tile has kLanes columns. For short or strided rows each lane is one row; for a long row
// the lanes are parts of it, side by side. The loops are the same for both.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/log.h"
#include "core/softmax.h"
#include "core/sum.h"
#include "cpu/kernels.h"

namespace cudaloss::cpu {

constexpr int kParts = kLanes / kDoubles;
// fp64 shows what additions round away.
template <class F>
constexpr bool kIsCompensated = sizeof(F) == sizeof(double);

// A sum for each lane, and the rounding errors of its additions.
struct LaneSums {
  SumOf<Doubles> part[kParts];

  template <bool kCompensated, class F>
  CUDALOSS_INLINE void add(const F* terms) {
    double wide[kLanes];  // a loop: GCC 12 makes three instructions of a vector's conversion
    for (int lane = 0; lane < kLanes; ++lane) wide[lane] = static_cast<double>(terms[lane]);
    for (int k = 0; k < kParts; ++k) {
      Doubles own;
      memcpy(&own, wide + k * kDoubles, sizeof own);
      if constexpr (kCompensated) {
        part[k].add(own);
      } else {
        part[k].value += own;
      }
    }
  }
  // The sum over all lanes.
  CUDALOSS_INLINE Sum total() const {
    const SumOf<Doubles> lanes = (part[0] + part[2]) + (part[1] + part[3]);
    Sum lane[kDoubles];
    for (int k = 0; k < kDoubles; ++k) lane[k] = {lanes.value[k], lanes.rest[k]};
    return (lane[0] + lane[2]) + (lane[1] + lane[3]);
  }
  CUDALOSS_INLINE void store(double* values, double* rests) const {
    for (int k = 0; k < kParts; ++k) {
      memcpy(values + k * kDoubles, &part[k].value, sizeof(Doubles));
      memcpy(rests + k * kDoubles, &part[k].rest, sizeof(Doubles));
    }
  }
};

// GCC 12 keeps an array of them in a register, but not a struct of them.
template <class F>
CUDALOSS_INLINE void copy_lanes(const F* from, F* to) {
  memcpy(to, from, kLanes * sizeof(F));
}

// The shares of a row's classes: one for each element of a tile, or one for each line.
template <class F>
struct Shares {
  const F* values;
  bool each;
};
template <bool kEach, class F>
CUDALOSS_INLINE F share_at(const F* values, int64_t line, int lane) {
  return kEach ? values[line * kLanes + lane] : values[line];
}

// kLanes rows, from the results of their tiles to the factors of their gradients.
template <class F>
struct RowLanes {
  F max[kLanes];                               // of the other classes, or of all if no class is the target's
  double reference[kLanes], behind[kLanes];    // about max: the reference of the exponentials
  double sums[kLanes], rests[kLanes];          // of exp(x - reference) / small,
  F largest[kLanes];                           // the maximum's own exponential in this form
  double target[kLanes], weight[kLanes];       // the target's logit and class weight
  double below_max[kLanes], shares[kLanes];    // see ClassShares
  double factor[kLanes], factor_rest[kLanes];  // of all gradients of the row
  int64_t keep[kLanes];                        // all bits if the row counts, otherwise none
  double loss[kLanes], at_target[kLanes];
  double log_all[kLanes], log_rest[kLanes];  // log(sum of exp(x - `reference`))
  // A class's gradient is exp / small times `unlifted` times (hi + lo), minus `share` times the class's share.
  F unlifted[kLanes], hi[kLanes], lo[kLanes], share[kLanes];
};

// max[lane] = the largest of its column, without NaN; -inf if there is none. With vectors, because GCC 12 does not
// vectorise a loop over lanes.
template <class F>
CUDALOSS_INLINE void find_max(const F* tile, int64_t lines, F* max) {
  constexpr int kWide = 32 / sizeof(F), kVectors = kLanes / kWide, kAhead = 4;  // independent lines
  typedef F Vector __attribute__((vector_size(32)));
  Vector found[kAhead][kVectors];
  for (auto& line : found) {
    for (Vector& lanes : line) lanes = Vector{} - F(INFINITY);
  }
  const auto take = [&](int64_t i, Vector(&line)[kVectors]) CUDALOSS_INLINE_LAMBDA {
    for (int k = 0; k < kVectors; ++k) {
      Vector x;
      memcpy(&x, tile + i * kLanes + k * kWide, sizeof x);
      line[k] = x > line[k] ? x : line[k];
    }
  };
  int64_t i = 0;
  for (; i + kAhead <= lines; i += kAhead) {
    for (int line = 0; line < kAhead; ++line) take(i + line, found[line]);
  }
  for (; i < lines; ++i) take(i, found[0]);
  for (int k = 0; k < kVectors; ++k) {
    for (int line = 1; line < kAhead; ++line) {
      found[0][k] = found[line][k] > found[0][k] ? found[line][k] : found[0][k];
    }
    memcpy(max + k * kWide, &found[0][k], sizeof(Vector));
  }
}
template <class F>
CUDALOSS_MULTIVERSION void lanes_max(const F* tile, int64_t lines, F* max) {
  find_max(tile, lines, max);
}
// The largest of all elements.
template <class F>
CUDALOSS_MULTIVERSION F row_max(const F* tile, int64_t lines) {
  F max[kLanes];
  find_max(tile, lines, max);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane)
      max[lane] = select(max[lane + width] > max[lane], max[lane + width], max[lane]);
  }
  return max[0];
}

// For each column the last line that equals its maximum, or -1.
template <class F>
CUDALOSS_MULTIVERSION void lines_of_max(const F* tile, int64_t lines, const F* max, int64_t* found) {
  F own[kLanes];
  Keep<F> last[kLanes];
  copy_lanes(max, own);
  for (int lane = 0; lane < kLanes; ++lane) last[lane] = -1;
  for (int64_t i = 0; i < lines; ++i) {
    const auto line = static_cast<Keep<F>>(i);
    for (int lane = 0; lane < kLanes; ++lane) last[lane] = tile[i * kLanes + lane] == own[lane] ? line : last[lane];
  }
  for (int lane = 0; lane < kLanes; ++lane) found[lane] = last[lane];
}

// Sums of share (top - x), and of the shares. The rounding of a product is too small to show in the sum.
template <bool kEach, class F>
CUDALOSS_INLINE void add_below(const F* tile, int64_t lines, const F* shares, const double* top, LaneSums& below,
                               LaneSums& all) {
  for (int64_t i = 0; i < lines; ++i) {
    double share[kLanes], term[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) share[lane] = static_cast<double>(share_at<kEach>(shares, i, lane));
    for (int lane = 0; lane < kLanes; ++lane) {
      term[lane] = share[lane] * (top[lane] - static_cast<double>(tile[i * kLanes + lane]));
    }
    below.add<kIsCompensated<F>>(term);
    all.add<kIsCompensated<F>>(share);
  }
}
template <class F>
CUDALOSS_MULTIVERSION void lanes_below(const F* tile, int64_t lines, Shares<F> shares, const double* top, double* below,
                                       double* all) {
  LaneSums of_below = {}, of_all = {};
  double from[kLanes], rests[kLanes];
  std::copy(top, top + kLanes, from);
  shares.each ? add_below<true>(tile, lines, shares.values, from, of_below, of_all)
              : add_below<false>(tile, lines, shares.values, from, of_below, of_all);
  of_below.store(below, rests);
  for (int lane = 0; lane < kLanes; ++lane) below[lane] = rounded(WithRest<double>{below[lane], rests[lane]});
  of_all.store(all, rests);
  for (int lane = 0; lane < kLanes; ++lane) all[lane] = rounded(WithRest<double>{all[lane], rests[lane]});
}

// The factors of a tile's lanes.
template <class F>
struct LaneFactors {
  F unlifted[kLanes], hi[kLanes], lo[kLanes], share[kLanes];
  Keep<F> keep[kLanes];
};
// Of kLanes rows, or of one row in all lanes.
template <class F>
LaneFactors<F> factors_of(const RowLanes<F>& rows, int row = -1) {
  LaneFactors<F> factors;
  for (int lane = 0; lane < kLanes; ++lane) {
    const int from = row < 0 ? lane : row;
    factors.unlifted[lane] = rows.unlifted[from];
    factors.hi[lane] = rows.hi[from];
    factors.lo[lane] = rows.lo[from];
    factors.share[lane] = rows.share[from];
    factors.keep[lane] = static_cast<Keep<F>>(rows.keep[from]);
  }
  return factors;
}

// The shares that are subtracted from exp in the gradients.
enum class Less { Nothing, Line, Each };

// out = tile * factors minus the shares, line i at i * step. `out` may be the tile itself.
template <Less kLess, class F>
CUDALOSS_INLINE void times(const F* tile, int64_t lines, const LaneFactors<F>& by, const F* shares, F* out,
                           int64_t step) {
  F unlifted[kLanes], hi[kLanes], lo[kLanes], less[kLanes];
  Keep<F> keep[kLanes];
  copy_lanes(by.unlifted, unlifted);
  copy_lanes(by.hi, hi);
  copy_lanes(by.lo, lo);
  copy_lanes(by.share, less);
  copy_lanes(by.keep, keep);
  for (int64_t i = 0; i < lines; ++i) {
    F gradient[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const F e = tile[i * kLanes + lane] * unlifted[lane];
      F rest = e * lo[lane];
      if constexpr (kLess != Less::Nothing) {
        rest = fused(-less[lane], share_at<kLess == Less::Each>(shares, i, lane), rest);
      }
      gradient[lane] = kept(fused(e, hi[lane], rest), keep[lane]);
    }
    memcpy(out + i * step, gradient, sizeof gradient);
  }
}
template <class F>
CUDALOSS_MULTIVERSION void lanes_times(const F* tile, int64_t lines, const LaneFactors<F>& by, F* out, int64_t step) {
  times<Less::Nothing, F>(tile, lines, by, nullptr, out, step);
}
template <class F>
CUDALOSS_MULTIVERSION void lanes_times_less(const F* tile, int64_t lines, const LaneFactors<F>& by, Shares<F> shares,
                                            F* out, int64_t step) {
  shares.each ? times<Less::Each>(tile, lines, by, shares.values, out, step)
              : times<Less::Line>(tile, lines, by, shares.values, out, step);
}

}  // namespace cudaloss::cpu
