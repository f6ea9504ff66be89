// Shares out the rows of a Pass over threads in blocks: which rows count, the factors of their gradients, their
// offsets, and the results from their losses. `Groups` compute a block's rows.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>

#include "cpu/engine.h"
#include "cpu/row_finish.h"
#include "cpu/row_scratch.h"
#include "cpu/row_tiles.h"
#include "cpu/segment_factors.h"
#include "cpu/strips.h"

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

// Groups: made from a pass. `run(first, rows, scratch)` takes up to `batch()` rows, fills scratch.terms with losses and
// writes gradients.
template <class F, class Groups>
class RowRun {
 public:
  using Scratch = RowScratch<F>;

  RowRun(const Pass& pass, const Strips& strips, const Groups& groups, Fault& fault)
      : pass_(pass),
        strips_(strips),
        fault_(fault),
        factors_(pass),
        groups_(groups),
        of_indices_(!is_floating(pass.target.dtype)),
        wants_gradients_(pass.wants_gradients()) {}

  bool is_held() const { return factors_.is_held(); }

  void operator()(const Strip& strip, Sums* sums, Scratch& scratch) const {
    double *factors = scratch.of_segments, *rests = scratch.segment_rests;
    if (!wants_gradients_) return visit(strip, 0, sums, scratch);
    const int64_t count = factors_.one() ? 1 : strip.segments;
    factors_.read_outgoing(strip.segment, count, factors);
    if (factors_.one() || !pass_.hold_unit_gradients) {
      factors_.make(strip.segment, count, factors, rests);
      return visit(strip, 0, sums, scratch);
    }
    for (int64_t from = 0, to = 0; from < count; from = to) {
      const bool held = factors[from] == 1.0;
      for (to = from; to < count && (factors[to] == 1.0) == held;) ++to;
      if (held) continue;
      factors_.make(strip.segment + from, to - from, factors + from, rests + from);
      visit({strip.segment + from, to - from, strip.begin, strip.end}, from, sums, scratch);
    }
  }

  void finish_segments(int64_t segment, int64_t count, const Sums& sums) const {
    const bool each = pass_.denominator.counted_each;
    const Divisor* divisors = each ? pass_.denominator.counted + segment : &factors_.divisor();
    double buffer[kBlock];
    double* out = writable(pass_.reduction, segment, buffer);
    finish(sums, count, {pass_.scale, divisors, each, false, pass_.reduction.dtype == DType::Float64}, out);
    write(pass_.reduction, segment, count, out);
  }

 private:
  static constexpr bool kCompensated = sizeof(F) == sizeof(double);

  // `first` is the index of the strip's first segment in the array of factors.
  void visit(const Strip& strip, int64_t first, Sums* sums, Scratch& scratch) const {
    strips_.for_each_block(strip, [&](const Block& block) {
      const int64_t count = block.count();
      const Position at = strips_.walk().after(block.before);
      read_selection(at, count, scratch);
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

  void read_selection(const Position& at, int64_t count, Scratch& scratch) const {
    const Selection& selection = pass_.selection;
    if (selection.weight.data) {
      const double* found = read(selection.weight, strips_.walk(), at, kWeight, count, scratch.weights);
      if (found != scratch.weights) std::copy(found, found + count, scratch.weights);
    }
    std::fill(scratch.keep, scratch.keep + count, int64_t{-1});
    if (!selection.mask.data) return;
    const uint8_t* mask = read_mask(selection.mask, strips_.walk(), at, count, scratch.mask);
    for (int64_t row = 0; row < count; ++row) scratch.keep[row] = -static_cast<int64_t>(mask[row] != 0);
  }

  // The factors of each row's gradients.
  void read_factors(const Block& block, const Position& at, int64_t first, Scratch& scratch) const {
    if (!wants_gradients_) return;
    const int64_t count = block.count(), own = factors_.one() ? 0 : first + block.segment;
    const Grid grid = strips_.grid(block);
    const bool each = block.segments > 1 && !factors_.one();
    std::fill(scratch.factors, scratch.factors + count, scratch.of_segments[own]);
    std::fill(scratch.rests, scratch.rests + count, scratch.segment_rests[own]);
    for (int64_t segment = 1; each && segment < grid.segments; ++segment) {
      for (int64_t element = 0; element < grid.length; ++element) {
        const int64_t row = segment * grid.segment_step + element * grid.step;
        scratch.factors[row] = scratch.of_segments[own + segment];
        scratch.rests[row] = scratch.segment_rests[own + segment];
      }
    }
    if (factors_.elementwise()) {
      const double* outgoing = read(pass_.grad_output, strips_.walk(), at, kGradOutput, count, scratch.buffer);
      multiply_with_rests<F>(outgoing, count, scratch.factors, scratch.rests);
    }
    if (pass_.selection.weight.data) {
      multiply_with_rests<F>(scratch.weights, count, scratch.factors, scratch.rests);
    }
    if (pass_.part.grad_targets.data) {
      const double* found = read(pass_.part.grad_targets, strips_.walk(), at, kGradOutput, count, scratch.of_targets);
      if (found != scratch.of_targets) std::copy(found, found + count, scratch.of_targets);
    }
  }

  void find_all_offsets(const Position& at, int64_t count, Scratch& scratch) const {
    const Walk& walk = strips_.walk();
    find_offsets(walk, at, kInput, count, scratch.of_input);
    scratch.between = count > 1 ? scratch.of_input[1] - scratch.of_input[0] : 0;
    find_offsets(walk, at, kTarget, count, scratch.of_target);
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
  Fault& fault_;
  const SegmentFactors<F> factors_;
  const Groups& groups_;
  const bool of_indices_, wants_gradients_;
};

// row_elements: the work of a row, in elements.
template <class F, class Groups>
void run_rows(const Pass& request, const Groups& groups, int64_t row_elements, ParallelFor parallel_for) {
  const Strips strips(request.segments, request.inner, kInput, kResult,
                      {kInput, kTarget, kThird, kWeight, kMask, kGradOutput, kResult, kSecondResult, kThirdResult},
                      row_elements);
  Fault fault;
  const RowRun<F, Groups> run(request, strips, groups, fault);
  using Scratch = RowScratch<F>;
  if (request.reduction.data) {
    sum_strips<Scratch>(
        strips, parallel_for, [&](const Strip& strip, Sums& sums, Scratch& scratch) { run(strip, &sums, scratch); },
        [&](int64_t segment, int64_t count, const Sums& sums) { run.finish_segments(segment, count, sums); });
  } else if (strips.segments() * strips.inner() > 0 && !run.is_held()) {
    strips.share_out(parallel_for, [&](int64_t first, int64_t last) {
      Scratch scratch;
      for (int64_t index = first; index < last; ++index) run(strips.strip(index), nullptr, scratch);
    });
  }
  fault.raise(request.all_classes());
}

// Whether an operand, or a result that is not a gradient, is float64.
inline bool wants_float64_rows(const Pass& r) {
  const auto is_float64 = [](const auto& has) { return has.data && has.dtype == DType::Float64; };
  if (r.part.all_classes) return is_float64(r.input);  // the losses of a part are float64 for all logits
  return is_float64(r.input) || is_float64(r.target) || is_float64(r.selection.weight) || is_float64(r.third) ||
         is_float64(r.losses) || is_float64(r.reduction) || (is_float64(r.grad_output) && varies(r.inner, kGradOutput));
}

}  // namespace cudaloss::cpu
