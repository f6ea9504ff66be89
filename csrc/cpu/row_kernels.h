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

// fp64 shows what additions round away.
template <class F>
constexpr bool kIsCompensated = sizeof(F) == sizeof(double);

// The row that all lanes of a tile belong to; or this, if each lane is a row.
constexpr int kEachLane = -1;
// From numbers of rows to those of a tile's lanes.
template <class From, class To>
CUDALOSS_INLINE void take(const From* rows, int row, To* lanes) {
  if (row == kEachLane) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = static_cast<To>(rows[lane]);
  } else {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = static_cast<To>(rows[row]);
  }
}
// From sums of a tile's lanes to those of rows.
CUDALOSS_INLINE void put(const double* lanes, int row, double* rows) {
  if (row == kEachLane) {
    std::copy(lanes, lanes + kLanes, rows);
  } else {
    Sum total = {};
    for (int lane = 0; lane < kLanes; ++lane) total.add(lanes[lane]);
    rows[row] = rounded(WithRest<double>{total.value, total.rest});
  }
}

// The lanes of a line. By a loop: GCC 12 makes three instructions of a vector's conversion.
template <class F>
CUDALOSS_INLINE void load_line(const F* line, Doubles (&lanes)[kParts]) {
  double wide[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) wide[lane] = static_cast<double>(line[lane]);
  memcpy(lanes, wide, sizeof wide);
}

// A sum for each lane, and the rounding errors of its additions.
struct LaneSums {
  SumOf<Doubles> part[kParts];

  template <bool kCompensated, class F>
  CUDALOSS_INLINE void add(const F* terms) {
    Doubles lanes[kParts];
    load_line(terms, lanes);
    for (int k = 0; k < kParts; ++k) add<kCompensated>(k, lanes[k]);
  }
  template <bool kCompensated>
  CUDALOSS_INLINE void add(int k, Doubles own) {
    if constexpr (kCompensated) {
      part[k].add(own);
    } else {
      part[k].value += own;
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
  CUDALOSS_INLINE void put(int row, double* rows) const {
    double values[kLanes], rests[kLanes];
    store(values, rests);
    for (int lane = 0; lane < kLanes; ++lane) values[lane] = rounded(WithRest<double>{values[lane], rests[lane]});
    cpu::put(values, row, rows);
  }
};

// GCC 12 keeps an array of them in a register, but not a struct of them.
template <class F>
CUDALOSS_INLINE void copy_lanes(const F* from, F* to) {
  memcpy(to, from, kLanes * sizeof(F));
}

// The shares of a row's classes: one for each element of a tile, or one for each line. Without values: none.
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
// The largest of each row.
template <class F>
CUDALOSS_MULTIVERSION void rows_max(const F* tile, int64_t lines, int row, F* rows) {
  F max[kLanes];
  find_max(tile, lines, max);
  if (row == kEachLane) return copy_lanes(max, rows);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane)
      max[lane] = select(max[lane + width] > max[lane], max[lane + width], max[lane]);
  }
  rows[row] = max[0];
}

// For each row its last class that equals its maximum, or -1.
template <class F>
CUDALOSS_MULTIVERSION void classes_of_max(const F* tile, int64_t lines, int row, const F* max, int64_t* found) {
  F own[kLanes];
  Keep<F> last[kLanes];
  take(max, row, own);
  for (int lane = 0; lane < kLanes; ++lane) last[lane] = -1;
  for (int64_t i = 0; i < lines; ++i) {
    const auto line = static_cast<Keep<F>>(i);
    for (int lane = 0; lane < kLanes; ++lane) {
      // By masks: GCC makes a branch for each lane of a select between integers by floats. A step with probabilities of
      // (65536, 10) fp32 then takes 3.4 ms, not 2.7 (one thread, AVX-512).
      const auto is_max = -static_cast<Keep<F>>(tile[i * kLanes + lane] == own[lane]);
      last[lane] = (line & is_max) | (last[lane] & ~is_max);
    }
  }
  if (row == kEachLane) {
    for (int lane = 0; lane < kLanes; ++lane) found[lane] = last[lane];
    return;
  }
  found[row] = -1;
  for (int lane = 0; lane < kLanes; ++lane) {
    if (last[lane] >= 0) found[row] = std::max<int64_t>(found[row], int64_t{last[lane]} * kLanes + lane);
  }
}

// Lines to prefetch while others are computed: those read next, and those where the gradients go. Nothing is read or
// written there yet. Null: none.
struct Ahead {
  const char *read, *written;
  int64_t read_step, written_step;  // bytes between lines

  CUDALOSS_INLINE void fetch(int64_t line) const {
    if (read) __builtin_prefetch(read + line * read_step);
    if (written) __builtin_prefetch(written + line * written_step, 1);
  }
};

// Sums of share (top - x), and of the shares. The rounding of a product is too small to show in the sum. With vectors,
// because GCC 12 computes parts of a loop over lanes one element at a time.
template <bool kEach, class F>
CUDALOSS_INLINE void add_below(const F* tile, int64_t lines, const F* shares, const double* top, Ahead ahead,
                               LaneSums& below, LaneSums& all) {
  Doubles from[kParts];
  memcpy(from, top, sizeof from);
  for (int64_t i = 0; i < lines; ++i) {
    ahead.fetch(i);
    Doubles share[kParts], x[kParts];
    load_line(tile + i * kLanes, x);
    if constexpr (kEach) {
      load_line(shares + i * kLanes, share);
    } else {
      for (Doubles& lanes : share) lanes = Doubles{} + static_cast<double>(shares[i]);
    }
    for (int k = 0; k < kParts; ++k) {
      below.add<kIsCompensated<F>>(k, share[k] * (from[k] - x[k]));
      all.add<kIsCompensated<F>>(k, share[k]);
    }
  }
}
template <class F>
CUDALOSS_MULTIVERSION void rows_below(const F* tile, int64_t lines, Shares<F> shares, const F* top, int row,
                                      Ahead ahead, double* below, double* all) {
  LaneSums of_below = {}, of_all = {};
  double from[kLanes];
  take(top, row, from);
  shares.each ? add_below<true>(tile, lines, shares.values, from, ahead, of_below, of_all)
              : add_below<false>(tile, lines, shares.values, from, ahead, of_below, of_all);
  of_below.put(row, below);
  of_all.put(row, all);
}

// The shares that are subtracted from exp in the gradients.
enum class Less { Nothing, Line, Each };

// out = tile * the rows' factors minus the shares, line i at i * step. `out` may be the tile itself.
template <Less kLess, class F>
CUDALOSS_INLINE void times(const F* tile, int64_t lines, const RowLanes<F>& rows, int row, const F* shares, F* out,
                           int64_t step) {
  F unlifted[kLanes], hi[kLanes], lo[kLanes], less[kLanes];
  Keep<F> keep[kLanes];
  take(rows.unlifted, row, unlifted);
  take(rows.hi, row, hi);
  take(rows.lo, row, lo);
  take(rows.share, row, less);
  take(rows.keep, row, keep);
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
CUDALOSS_MULTIVERSION void rows_times(const F* tile, int64_t lines, const RowLanes<F>& rows, int row, Shares<F> shares,
                                      F* out, int64_t step) {
  if (!shares.values) return times<Less::Nothing, F>(tile, lines, rows, row, nullptr, out, step);
  shares.each ? times<Less::Each>(tile, lines, rows, row, shares.values, out, step)
              : times<Less::Line>(tile, lines, rows, row, shares.values, out, step);
}

}  // namespace cudaloss::cpu
