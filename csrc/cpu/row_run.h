// Shares out the rows of a Pass over threads in blocks: which rows count, the factors of their gradients, their
// offsets, and the results from their losses. `Groups` compute a block's rows.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/engine.h"
#include "cpu/row_finish.h"
#include "cpu/row_tiles.h"
#include "cpu/segments.h"

namespace cudaloss::cpu {

// Notes a target that is not a class; worker threads cannot throw.
class Fault {
 public:
  void note(int64_t index) {
    if (!noted_.exchange(true)) index_ = index;
  }
  void raise(int64_t classes) const {
    if (!noted_) return;
    throw std::runtime_error("cudaloss: target must hold class indices at least 0 and below " +
                             std::to_string(classes) + ", or ignore_index, got " + std::to_string(index_));
  }

 private:
  std::atomic<bool> noted_{false};
  int64_t index_ = 0;
};

// The buffers of a thread, aligned like those of PassScratch. The first arrays have an element for each row of a block.
template <class F>
struct alignas(64) RowScratch {
  static constexpr bool kHasRests = true;
  int64_t of_input[kBlock], of_target[kBlock], of_third[kBlock];
  int64_t of_first[kBlock], of_second[kBlock], of_last[kBlock];  // results
  int64_t between, between_targets;                              // the distances of the input's and the target's rows
  int64_t index[kBlock], keep[kBlock];                           // index: a target; -1 if there is none that counts
  double weights[kBlock], factors[kBlock], rests[kBlock], terms[kBlock], of_segments[kBlock], segment_rests[kBlock],
      of_targets[kBlock],  // for a part: the targets' gradients, then their logits
      buffer[kBlock];
  uint8_t mask[kBlock];
  RowLanes<F> lanes = {};
  std::vector<F> tiles, shares, slopes;
};

// Groups: made from a pass. `run(first, rows, scratch)` takes up to `batch()` rows, fills scratch.terms with losses and
// writes gradients.
template <class F, class Groups>
class RowRun {
 public:
  using Scratch = RowScratch<F>;

  RowRun(const Pass& pass, const Strips& strips, const Segments<F>& segments, const Groups& groups, Fault& fault)
      : pass_(pass),
        strips_(strips),
        segments_(segments),
        groups_(groups),
        fault_(fault),
        of_indices_(!is_floating(pass.target.dtype)) {}

  // `first` is the index of the strip's first segment in the array of factors.
  void operator()(const Strip& strip, int64_t first, Sums* sums, Scratch& scratch) const {
    strips_.for_each_block(strip, [&](const Block& block) {
      const int64_t count = block.count();
      const Position at = strips_.walk().after(block.before);
      select(at, count, scratch);
      read_factors(block, at, first, scratch);
      find_all_offsets(at, count, scratch);
      if (of_indices_) select_indices(count, scratch);
      for (int64_t row = 0; row < count; row += groups_.batch()) {
        groups_.run(row, std::min(groups_.batch(), count - row), scratch);
      }
      for (int64_t row = 0; pass_.selection.weight.data && row < count; ++row) {
        scratch.terms[row] = kept(scratch.terms[row] * scratch.weights[row], scratch.keep[row]);
      }
      if (pass_.losses.data) write_losses(at, count, scratch);
      if (pass_.reduction.data) strips_.add_terms(block, scratch.terms, kCompensated, *sums);
    });
  }

 private:
  static constexpr bool kCompensated = sizeof(F) == sizeof(double);

  void select(const Position& at, int64_t count, Scratch& scratch) const {
    const Selection& selection = pass_.selection;
    if (selection.weight.data) read_into(selection.weight, strips_.walk(), at, kWeight, count, scratch.weights);
    if (read_selection<double>(selection, strips_.walk(), at, count, nullptr, scratch)) return;
    std::fill(scratch.keep, scratch.keep + count, int64_t{-1});
  }

  // The factors of each row's gradients.
  void read_factors(const Block& block, const Position& at, int64_t first, Scratch& scratch) const {
    if (!segments_.wants_gradients()) return;
    const int64_t count = block.count(), own = segments_.one() ? 0 : first + block.segment;
    const bool each = block.segments > 1 && !segments_.one();
    std::fill(scratch.factors, scratch.factors + count, each ? 1.0 : scratch.of_segments[own]);
    std::fill(scratch.rests, scratch.rests + count, each ? 1.0 : scratch.segment_rests[own]);
    if (each) {
      multiply_segments(scratch.of_segments + own, strips_.grid(block), scratch.factors);
      multiply_segments(scratch.segment_rests + own, strips_.grid(block), scratch.rests);
    }
    if (segments_.elementwise()) {
      const double* outgoing = read(pass_.grad_output, strips_.walk(), at, kGradOutput, count, scratch.buffer);
      multiply_with_rests<F>(outgoing, count, scratch.factors, scratch.rests);
    }
    if (pass_.selection.weight.data) {
      multiply_with_rests<F>(scratch.weights, count, scratch.factors, scratch.rests);
    }
    if (pass_.part.grad_targets.data) {
      read_into(pass_.part.grad_targets, strips_.walk(), at, kGradOutput, count, scratch.of_targets);
    }
  }

  void find_all_offsets(const Position& at, int64_t count, Scratch& scratch) const {
    const Walk& walk = strips_.walk();
    find_offsets(walk, at, kInput, count, scratch.of_input);
    scratch.between = count > 1 ? scratch.of_input[1] - scratch.of_input[0] : 0;
    find_offsets(walk, at, kTarget, count, scratch.of_target);
    scratch.between_targets = count > 1 ? scratch.of_target[1] - scratch.of_target[0] : 0;
    if (pass_.third.data) find_offsets(walk, at, kThird, count, scratch.of_third);
    if (pass_.grad_input.data) find_offsets(walk, at, kResult, count, scratch.of_first);
    if (pass_.grad_target.data) find_offsets(walk, at, kSecondResult, count, scratch.of_second);
    if (pass_.grad_third.data) find_offsets(walk, at, kThirdResult, count, scratch.of_last);
  }

  // Which of the selected rows have a class; for a part, one of all processes' classes.
  void select_indices(int64_t count, Scratch& scratch) const {
    read_indices(pass_.target, scratch.of_target, count, scratch.index);
    const int64_t classes = pass_.rows.classes, all = pass_.all_classes();
    for (int64_t row = 0; row < count; ++row) {
      int64_t& index = scratch.index[row];
      const bool wanted = scratch.keep[row] && index != pass_.rows.ignore_index;
      const bool is_class = index >= 0 && index < all;
      if (wanted && !is_class) fault_.note(index);
      scratch.keep[row] = -static_cast<int64_t>(wanted && is_class);
      index -= pass_.part.first_class;
      if (!scratch.keep[row] || index < 0 || index >= classes) index = -1;
    }
  }

  void write_losses(const Position& at, int64_t count, Scratch& scratch) const {
    double* out = writable(pass_.losses, strips_.walk(), at, kResult, count, scratch.buffer);
    scaled(scratch.terms, pass_.scale, count, out);
    write(pass_.losses, strips_.walk(), at, kResult, count, out);
    if (!pass_.part.targets.data) return;
    out = writable(pass_.part.targets, strips_.walk(), at, kResult, count, scratch.buffer);
    std::copy(scratch.of_targets, scratch.of_targets + count, out);
    write(pass_.part.targets, strips_.walk(), at, kResult, count, out);
  }

  const Pass& pass_;
  const Strips& strips_;
  const Segments<F>& segments_;
  const Groups& groups_;
  Fault& fault_;
  const bool of_indices_;
};

// row_elements: the work of a row, in elements.
template <class F, class Groups>
void run_rows(const Pass& request, const Groups& groups, int64_t row_elements, ParallelFor parallel_for) {
  const Strips strips(request.segments, request.inner, kInput, kResult,
                      {kInput, kTarget, kThird, kWeight, kMask, kGradOutput, kResult, kSecondResult, kThirdResult},
                      row_elements);
  const Segments<F> segments(request);
  Fault fault;
  const RowRun<F, Groups> run(request, strips, segments, groups, fault);
  segments.template run<RowScratch<F>>(strips, parallel_for, run);
  fault.raise(request.all_classes());
}

}  // namespace cudaloss::cpu
