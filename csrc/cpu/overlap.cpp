// Sums of overlap and their gradients on a CPU: a thread takes a chunk of one sample's voxels, tile by tile.
#include "cpu/overlap.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/convert.h"

namespace cudaloss::cpu {

namespace {

constexpr int64_t kVoxels = 128, kChunk = 32 * kVoxels;  // of a tile, and of a chunk
constexpr int kSumLanes = 8;

// A tile: classes one after another, each with its voxels.
template <class F>
struct Tile {
  int64_t count;
  int64_t input[kVoxels], target[kVoxels], gradient[kVoxels], index[kVoxels];
  bool counts[kVoxels];
  F p[kVoxels], g[kVoxels], max[kVoxels], others[kVoxels], own[kVoxels], mean[kVoxels], of_entropy[kVoxels];
  std::vector<F> all;  // the probabilities of all classes

  F* of_class(int64_t j) { return all.data() + j * kVoxels; }
};

template <class F>
CUDALOSS_MULTIVERSION void find_max(const F* x, int64_t count, F* max) {
  for (int64_t i = 0; i < count; ++i) max[i] = select((x[i] > max[i]) | (x[i] != x[i]), x[i], max[i]);
}
// x = exp(x - max); adds it to the others, or keeps it as the target's own.
template <class F>
CUDALOSS_MULTIVERSION void make_exp(F* x, int64_t count, const F* max, const int64_t* index, int64_t j, F* others,
                                    F* own) {
  for (int64_t i = 0; i < count; ++i) {
    const F z = max[i] - x[i], e = exp_below_one(z).exp, found = select(z > ExpParts<F>::limit_half, F(0), e);
    const F taken = select(absolute(max[i]) <= largest(F()), found, F(NAN));
    const bool is_own = index[i] == j;
    x[i] = taken;
    others[i] += select(is_own, F(0), taken);
    own[i] = select(is_own, taken, own[i]);
  }
}
template <class F>
CUDALOSS_MULTIVERSION void multiply(F* x, int64_t count, const F* by) {
  for (int64_t i = 0; i < count; ++i) x[i] *= by[i];
}
struct LanesOfSums {
  double of[kOverlapSums][kSumLanes] = {};
};
template <class F>
CUDALOSS_MULTIVERSION void add_sums(const F* p, const F* g, const bool* counts, int64_t count, bool squares,
                                    LanesOfSums& sums) {
  for (int64_t first = 0; first < count; first += kSumLanes) {
    for (int lane = 0; lane < kSumLanes; ++lane) {
      const int64_t i = first + lane;
      const bool has = i < count && counts[i];
      const double own = has ? static_cast<double>(p[i]) : 0.0, other = has ? static_cast<double>(g[i]) : 0.0;
      sums.of[kBoth][lane] += own * other;
      sums.of[kOfInput][lane] += overlap_of_input(squares, own);
      sums.of[kOfTarget][lane] += overlap_of_input(squares, other);
    }
  }
}
template <class F>
CUDALOSS_MULTIVERSION void add_means(const F* p, const F* g, int64_t count, bool squares, F of_both, F of_input,
                                     F* mean) {
  for (int64_t i = 0; i < count; ++i)
    mean[i] = fused(p[i], overlap_slope(squares, of_both, of_input, p[i], g[i]), mean[i]);
}

template <class F>
class Run {
 public:
  explicit Run(const Overlap& pass) : pass_(pass), of_classes_(pass.activation == Activation::Softmax) {}

  int64_t chunks() const { return (pass_.voxels() + kChunk - 1) / kChunk; }
  int64_t tasks() const { return pass_.samples * chunks(); }
  int64_t values() const { return pass_.classes * kOverlapSums; }

  // partials: the sums of a chunk, if there are no grads.
  void run(int64_t task, double* partials) const {
    Tile<F> tile;
    tile.all.resize(pass_.classes * kVoxels);
    const int64_t sample = task / chunks(), begin = task % chunks() * kChunk;
    const int64_t end = std::min(begin + kChunk, pass_.voxels());
    for (int64_t first = begin; first < end; first += kVoxels) {
      place(sample, first, std::min(kVoxels, end - first), tile);
      if (of_classes_) make_probabilities(tile);
      if (pass_.grads) {
        write_gradients(sample, tile);
      } else {
        add_tile(tile, partials + task * values());
      }
    }
  }
  void raise() const {
    if (!is_wrong_) return;
    throw std::runtime_error("cudaloss: target must hold class indices at least 0 and below " +
                             std::to_string(pass_.classes) + ", or ignore_index, got " + std::to_string(wrong_));
  }

 private:
  void place(int64_t sample, int64_t first, int64_t count, Tile<F>& tile) const {
    tile.count = count;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t outer = (first + i) / pass_.inner, inner = (first + i) % pass_.inner;
      tile.input[i] = overlap_offset(pass_.input_stride, sample, outer, inner);
      tile.target[i] = overlap_offset(pass_.target_stride, sample, outer, inner);
      tile.gradient[i] = overlap_offset(pass_.gradient_stride, sample, outer, inner);
      tile.counts[i] = !pass_.mask || pass_.mask[overlap_offset(pass_.mask_stride, sample, outer, inner)] != 0;
      tile.index[i] = -1;
    }
    if (!pass_.has_indices) return;
    dispatch_any(pass_.target.dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      if constexpr (std::is_integral_v<Element>) {
        const auto* const data = static_cast<const Element*>(pass_.target.data);
        for (int64_t i = 0; i < count; ++i) tile.index[i] = static_cast<int64_t>(data[tile.target[i]]);
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      tile.counts[i] &= tile.index[i] != pass_.ignore_index;
      if (static_cast<uint64_t>(tile.index[i]) < static_cast<uint64_t>(pass_.classes)) continue;
      if (tile.counts[i] && !is_wrong_.exchange(true)) wrong_ = tile.index[i];
      tile.index[i] = -1;
    }
  }

  void read_class(const Tile<F>& tile, int64_t j, F* out) const {
    with_elements(pass_.input, [&](const auto* data) {
      const auto* const own = data + j * pass_.input_stride[kClass];
      for (int64_t i = 0; i < tile.count; ++i) out[i] = widen<F>(own[tile.input[i]]);
    });
  }
  const F* target_of(int64_t j, Tile<F>& tile) const {
    if (pass_.has_indices) {
      for (int64_t i = 0; i < tile.count; ++i) tile.g[i] = F(tile.index[i] == j);
      return tile.g;
    }
    dispatch_any(pass_.target.dtype, [&](auto type) {
      const auto* const data = static_cast<const typename decltype(type)::type*>(pass_.target.data);
      const auto* const own = data + j * pass_.target_stride[kClass];
      for (int64_t i = 0; i < tile.count; ++i) tile.g[i] = widen<F>(own[tile.target[i]]);
    });
    return tile.g;
  }

  void make_probabilities(Tile<F>& tile) const {
    const int64_t count = tile.count;
    std::fill(tile.max, tile.max + count, -F(INFINITY));
    std::fill(tile.others, tile.others + count, F(0));
    std::fill(tile.own, tile.own + count, F(0));
    for (int64_t j = 0; j < pass_.classes; ++j) {
      read_class(tile, j, tile.of_class(j));
      find_max(tile.of_class(j), count, tile.max);
    }
    for (int64_t j = 0; j < pass_.classes; ++j) {
      make_exp(tile.of_class(j), count, tile.max, tile.index, j, tile.others, tile.own);
    }
    for (int64_t i = 0; i < count; ++i) tile.mean[i] = F(1) / (tile.others[i] + tile.own[i]);
    for (int64_t j = 0; j < pass_.classes; ++j) multiply(tile.of_class(j), count, tile.mean);
  }
  // Of a voxel's target.
  double entropy_of(const Tile<F>& tile, int64_t i) const {
    const double x = number_at<double>(pass_.input, tile.input[i] + tile.index[i] * pass_.input_stride[kClass]);
    return overlap_entropy<double>(tile.others[i], tile.own[i], static_cast<double>(tile.max[i]) - x);
  }

  void add_tile(Tile<F>& tile, double* partials) const {
    for (int64_t j = 0; j < pass_.classes; ++j) {
      const F *p = tile.of_class(j), *const g = target_of(j, tile);
      LanesOfSums sums;
      double entropy = 0.0;
      if (!of_classes_) {
        read_class(tile, j, tile.p);
        for (int64_t i = 0; i < tile.count; ++i) {
          const OverlapElement<F> of = overlap_element<F>(pass_.activation, tile.p[i], g[i]);
          tile.p[i] = of.p;
          if (tile.counts[i]) entropy += static_cast<double>(of.entropy);
        }
        p = tile.p;
      }
      add_sums(p, g, tile.counts, tile.count, pass_.squares, sums);
      for (int k = 0; k < kOverlapSums; ++k) {
        for (const double lane : sums.of[k]) partials[j * kOverlapSums + k] += lane;
      }
      if (pass_.entropy && !of_classes_) partials[j * kOverlapSums + kEntropy] += entropy;
    }
    for (int64_t i = 0; pass_.entropy && of_classes_ && i < tile.count; ++i) {
      if (tile.counts[i] && tile.index[i] >= 0) {
        partials[tile.index[i] * kOverlapSums + kEntropy] += entropy_of(tile, i);
      }
    }
  }

  void write_gradients(int64_t sample, Tile<F>& tile) const {
    const double* const grads = pass_.grads + sample * values();
    const double by = pass_.factor();
    const auto grad = [&](int64_t j, int k) { return static_cast<F>(grads[j * kOverlapSums + k] * by); };
    std::fill(tile.mean, tile.mean + tile.count, F(0));
    std::fill(tile.of_entropy, tile.of_entropy + tile.count, F(0));
    for (int64_t j = 0; of_classes_ && j < pass_.classes; ++j) {
      const F *const p = tile.of_class(j), *const g = target_of(j, tile);
      add_means(p, g, tile.count, pass_.squares, grad(j, kBoth), grad(j, kOfInput), tile.mean);
      for (int64_t i = 0; pass_.entropy && i < tile.count; ++i) {
        if (tile.index[i] == j) tile.of_entropy[i] = grad(j, kEntropy);
      }
    }
    for (int64_t j = 0; j < pass_.classes; ++j) {
      const F of_both = grad(j, kBoth), of_input = grad(j, kOfInput);
      const F *const p = tile.of_class(j), *const g = target_of(j, tile);
      if (of_classes_) {
        for (int64_t i = 0; i < tile.count; ++i) {
          const F slope = p[i] * (overlap_slope(pass_.squares, of_both, of_input, p[i], g[i]) - tile.mean[i]);
          tile.p[i] = fused(tile.of_entropy[i], p[i] - F(tile.index[i] == j), slope);
        }
      } else {
        const F of_entropy = pass_.entropy ? grad(j, kEntropy) : F(0);
        read_class(tile, j, tile.p);
        for (int64_t i = 0; i < tile.count; ++i) {
          const OverlapElement<F> of = overlap_element<F>(pass_.activation, tile.p[i], g[i]);
          const F slope = overlap_slope(pass_.squares, of_both, of_input, of.p, g[i]) * of.slope;
          tile.p[i] = fused(of_entropy, of.p - g[i], slope);
        }
      }
      for (int64_t i = 0; i < tile.count; ++i) tile.p[i] = tile.counts[i] ? tile.p[i] : F(0);
      with_elements(pass_.gradient, [&](auto* out) {
        auto* const own = out + j * pass_.gradient_stride[kClass];
        for (int64_t i = 0; i < tile.count; ++i) move(own[tile.gradient[i]], tile.p[i]);
      });
    }
  }

  const Overlap& pass_;
  const bool of_classes_;
  mutable std::atomic<bool> is_wrong_{false};
  mutable int64_t wrong_ = 0;
};

template <class F>
void run_overlap(const Overlap& pass, ParallelFor parallel_for) {
  const Run<F> run(pass);
  struct Context {
    const Run<F>& run;
    std::vector<double> partials;
  } context = {run, std::vector<double>(pass.grads ? 0 : run.tasks() * run.values())};
  parallel_for(
      0, run.tasks(), 1,
      [](int64_t begin, int64_t end, void* given) {
        auto& own = *static_cast<Context*>(given);
        for (int64_t task = begin; task < end; ++task) own.run.run(task, own.partials.data());
      },
      &context);
  run.raise();
  if (pass.grads) return;
  const int64_t values = run.values(), chunks = run.chunks();
  for (int64_t i = 0; i < pass.samples * values; ++i) {
    double sum = 0.0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum += context.partials[(i / values * chunks + chunk) * values + i % values];
    }
    pass.sums[i] = sum;
  }
}

}  // namespace

void overlap_loss(const OverlapLoss& given) {
  OverlapLoss loss = given;
  OverlapTerms all = {};
  const int64_t count = loss.samples * loss.classes, values = loss.classes * kOverlapSums;
  std::vector<double> totals(loss.batch ? values : 0);
  for (int64_t i = 0; loss.batch && i < loss.samples * values; ++i) totals[i % values] += loss.sums[i];
  loss.totals = totals.data();
  std::vector<OverlapPart> parts(count);
  for (int64_t place = 0; place < count; ++place) {
    parts[place] = overlap_part(loss, place);
    all = all + parts[place].terms;
  }
  for (int64_t place = 0; place < count; ++place) store_overlap_slopes(loss, place, parts[place], all.divisor);
  double value = overlap_value(loss, all);
  with_elements(loss.loss, [&](auto* out) { move(*out, value); });
}

void overlap(const Overlap& pass, ParallelFor parallel_for) {
  if (pass.input.dtype == DType::Float64) return run_overlap<double>(pass, parallel_for);
  run_overlap<float>(pass, parallel_for);
}

}  // namespace cudaloss::cpu
