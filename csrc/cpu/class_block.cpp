// A block of classes of each row, in tiles.
#include "core/class_block.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "core/exp_log.h"
#include "cpu/convert.h"
#include "cpu/engine.h"

namespace cudaloss::cpu {
namespace {

constexpr int64_t kClasses = kBlock;  // of a tile
constexpr int kColumns = 16;          // that loops compute side by side

template <class F>
struct Tile {
  alignas(64) F z[kClasses], slope[kClasses];
};

// For x at most 0, or NaN.
template <class F>
CUDALOSS_INLINE F exp_of_negative(F x) {
  const F limit = -F(ExpParts<F>::limit);
  return exp_by(F(ExpParts<F>::magic), select(x < limit, limit, x)).value * F(ExpParts<F>::small);
}

// Reads classes of a row, and makes z and its slope of each; the rest of the last columns is -inf.
template <class F, class E>
CUDALOSS_MULTIVERSION void read_tile(const ClassBlock& block, const E* logits, int64_t count, Tile<F>& tile) {
  const F by = F(1.0 / block.temperature), softcap = F(block.softcap);
  for (int64_t i = 0; i < count; ++i) tile.z[i] = widen<F>(logits[i]);
  if (block.softcap != 0.0) {
    for (int64_t i = 0; i < count; ++i) {
      const F bent = std::tanh(tile.z[i] / softcap);
      tile.z[i] = softcap * bent;
      tile.slope[i] = (F(1) - bent) * (F(1) + bent) * by;
    }
  } else if (block.bends()) {
    std::fill(tile.slope, tile.slope + count, by);
  }
  if (block.temperature != 1.0) {
    for (int64_t i = 0; i < count; ++i) tile.z[i] *= by;
  }
  for (int64_t i = count; i % kColumns != 0; ++i) tile.z[i] = -F(INFINITY);
}

template <class F>
CUDALOSS_MULTIVERSION F max_of(const F* z, int64_t count) {
  F max[kColumns];
  std::fill(max, max + kColumns, -F(INFINITY));
  for (int64_t i = 0; i < count; i += kColumns) {
    for (int j = 0; j < kColumns; ++j) max[j] = select(z[i + j] > max[j], z[i + j], max[j]);
  }
  return *std::max_element(max, max + kColumns);
}

struct TileSums {
  double sum, weighted;
};
template <class F>
CUDALOSS_MULTIVERSION TileSums sums_below(const F* z, int64_t count, F max) {
  F sums[kColumns] = {}, weighted[kColumns] = {};
  for (int64_t i = 0; i < count; i += kColumns) {
    for (int j = 0; j < kColumns; ++j) {
      const F below = z[i + j] - max, e = exp_of_negative(below);
      sums[j] += e;
      weighted[j] += select(e == F(0), F(0), e * below);
    }
  }
  TileSums total = {};
  for (int j = 0; j < kColumns; ++j) {
    total.sum += sums[j];
    total.weighted += weighted[j];
  }
  return total;
}

template <class F>
double shares_of(const ClassBlock& block, const F* z, int64_t first, int64_t count) {
  double sum = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    sum += static_cast<double>(z[i]) * block.weight_of<F>(first + i);
  }
  return sum;
}

template <class F, class E>
void make_sums(const ClassBlock& block, int64_t row, int64_t own, Tile<F>& tile) {
  const E* const logits = block.logits_of<E>(row);
  F of_target = -F(INFINITY), base = -F(INFINITY);
  double sum = 0.0, weighted = 0.0, shares = 0.0;
  for (int64_t first = 0; first < block.classes; first += kClasses) {
    const int64_t count = std::min(kClasses, block.classes - first);
    read_tile(block, logits + first, count, tile);
    if (block.shares) shares += shares_of(block, tile.z, first, count);
    if (own >= first && own < first + count) {
      of_target = tile.z[own - first];
      tile.z[own - first] = -F(INFINITY);
    }
    const F max = max_of(tile.z, count);
    if (max > base) {
      const double below = static_cast<double>(base) - max, ratio = std::exp(below);
      weighted = ratio == 0.0 ? 0.0 : ratio * (weighted + sum * below);  // 0 times an infinite difference
      sum *= ratio;
      base = max;
    }
    const TileSums added = sums_below(tile.z, count, base == -F(INFINITY) ? F(0) : base);
    sum += added.sum;
    weighted += added.weighted;
  }
  store_sums<F>(block, row, {base, F(sum), F(weighted), F(shares)}, of_target);
}

template <class F>
CUDALOSS_MULTIVERSION void make_slopes(const RowSlopes& slopes, bool entropy, int64_t count, F* z) {
  const F high = F(slopes.log_sum), low = F(slopes.log_sum - high), of_exp = F(slopes.of_exp);
  const F of_mean = F(slopes.of_mean), mean = F(slopes.mean);
  const F mean_low = F(slopes.mean - mean);
  for (int64_t i = 0; i < count; ++i) {
    const F e = exp_of_negative((z[i] - high) - low);
    z[i] = e * (of_exp + select(entropy && e != F(0), of_mean * (F(1) + ((z[i] - mean) - mean_low)), F(0)));
  }
}
template <class F, class E>
CUDALOSS_MULTIVERSION void write_tile(const F* z, int64_t count, E* gradient) {
  for (int64_t i = 0; i < count; ++i) gradient[i] = narrow<E>(z[i]);
}

template <class F, class E>
void make_gradients(const ClassBlock& block, int64_t row, int64_t own, Tile<F>& tile) {
  const E* const logits = block.logits_of<E>(row);
  E* const gradient = block.gradient_of<E>(row);
  const RowSlopes slopes = slopes_of(block, row);
  for (int64_t first = 0; first < block.classes; first += kClasses) {
    const int64_t count = std::min(kClasses, block.classes - first);
    read_tile(block, logits + first, count, tile);
    make_slopes(slopes, block.entropy, count, tile.z);
    if (own >= first && own < first + count) tile.z[own - first] = F(slopes.of_own);
    for (int64_t i = 0; block.shares && i < count; ++i) {
      tile.z[i] += F(slopes.of_shares) * block.weight_of<F>(first + i);
    }
    for (int64_t i = 0; block.bends() && i < count; ++i) tile.z[i] *= tile.slope[i];
    write_tile(tile.z, count, gradient + first);
  }
}

template <class E>
class Rows {
  using F = std::conditional_t<std::is_same_v<E, double>, double, float>;

 public:
  explicit Rows(const ClassBlock& block) : block_(block) {}

  void operator()(int64_t begin, int64_t end) {
    Tile<F> tile;
    for (int64_t row = begin; row < end; ++row) take(row, tile);
  }
  void run(ParallelFor parallel_for) {
    constexpr int64_t kGrain = 1 << 15;  // classes
    parallel_for(
        0, block_.rows, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, block_.classes)),
        [](int64_t begin, int64_t end, void* self) { (*static_cast<Rows*>(self))(begin, end); }, this);
    if (!has_wrong_) return;
    throw std::runtime_error("cudaloss: target must hold class indices at least 0 and below " +
                             std::to_string(block_.all_classes) + ", or ignore_index, got " + std::to_string(wrong_));
  }

 private:
  void take(int64_t row, Tile<F>& tile) {
    const int64_t target = block_.target[row], own = target - block_.first_class;
    const bool counts = !block_.counts || block_.counts[row];
    if (!block_.numbers) {
      const bool is_class = target >= 0 && target < block_.all_classes;
      if (counts && !is_class && !has_wrong_.exchange(true)) wrong_ = target;  // a worker thread cannot throw
      return make_sums<F, E>(block_, row, own, tile);
    }
    if (counts) return make_gradients<F, E>(block_, row, own, tile);
    E* const gradient = block_.gradient_of<E>(row);
    std::fill(gradient, gradient + block_.classes, narrow<E>(F(0)));
  }

  const ClassBlock& block_;
  std::atomic<bool> has_wrong_{false};
  int64_t wrong_ = 0;
};

}  // namespace

void class_block(const ClassBlock& block, ParallelFor parallel_for) {
  dispatch(block.dtype, [&](auto type) { Rows<typename decltype(type)::type>(block).run(parallel_for); });
}

}  // namespace cudaloss::cpu
