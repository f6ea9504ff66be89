// The CPU engine of a Pass: each block through the loops of kernels.h, and what weights, selections and segments make
// of it through those of blocks.h. Included by engine_impl.h.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cpu/blocks.h"
#include "cpu/engine.h"
#include "cpu/gather.h"
#include "cpu/kernels.h"
#include "cpu/strips.h"
#include "cpu/tiles.h"

namespace cudaloss::cpu {

// Of fewer terms than these, a segment's or those that are kept of a block, fp32 arithmetic's rounding errors would not
// average out. A small request computes exactly anyway, where it costs nothing.
constexpr int64_t kFewTerms = 96;
constexpr int64_t kSmallRequest = 4096;

// What one thread works in. Only what a pass needs of it is ever touched.
template <class TV, class T, class F>
struct PassScratch {
  F input[kBlock], target[kBlock], weights[kBlock], grad_output[kBlock], gradient[kBlock], mirrored[kBlock];
  TV values[kBlock];
  T terms[kBlock], factors[kBlock];
  uint8_t mask[kBlock];
  Keep<F> keep[kBlock];
  double of_segments[kBlock];
};

// A block, as it is read.
template <class F>
struct PassBlock {
  const Block& block;
  Position at;
  int64_t count;
  const F *input, *target;
  const F* weights;     // null: 1
  const Keep<F>* keep;  // null: all
};

// TV is the arithmetic of the losses that are summed up, T that of single results, F the type read.
template <class TV, class T, class F, template <class> class Loss>
class PassRun {
 public:
  using Scratch = PassScratch<TV, T, F>;

  PassRun(const Pass& pass, const Strips& strips)
      : pass_(pass),
        strips_(strips),
        outgoing_({pass.segments}, {kGradOutput}),
        summed_loss_(pass.parameter),
        loss_(pass.parameter),
        divisor_(pass.summed_gradient && strips.inner() == 0 ? divisor_of(1.0) : pass.denominator.at(0)),
        wants_gradients_(pass.grad_input.data || pass.grad_target.data || pass.summed_gradient),
        elementwise_grad_output_(pass.grad_output.data && varies(pass.inner, kGradOutput)),
        one_factor_(!varies(pass.segments, kGradOutput) && !pass.denominator.counted_each) {}

  // Whether all the gradients wanted are there already.
  bool is_held() const {
    double grad_output = 0.0;
    if (!pass_.hold_unit_gradients || varies(pass_.segments, kGradOutput) || elementwise_grad_output_) return false;
    read_outgoing(0, 1, &grad_output);
    return grad_output == 1.0;
  }

  void operator()(const Strip& strip, Sums* sums, Scratch& scratch) const {
    double* factors = scratch.of_segments;
    if (!wants_gradients_) return visit(strip, factors, sums, scratch);
    const int64_t count = one_factor_ ? 1 : strip.segments;
    read_outgoing(strip.segment, count, factors);
    if (one_factor_ || !pass_.hold_unit_gradients) {
      make_factors(strip.segment, count, factors);
      return visit(strip, factors, sums, scratch);
    }
    for (int64_t from = 0, to = 0; from < count; from = to) {
      const bool held = factors[from] == 1.0;
      for (to = from; to < count && (factors[to] == 1.0) == held;) ++to;
      if (held) continue;
      make_factors(strip.segment + from, to - from, factors + from);
      visit({strip.segment + from, to - from, strip.begin, strip.end}, factors + from, sums, scratch);
    }
  }

  void finish_segments(int64_t segment, int64_t count, const Sums& sums) const {
    const bool each = pass_.denominator.counted_each;
    const double scale = pass_.summed_gradient < 0 ? -pass_.scale : pass_.scale;
    const Divisor* divisors = each ? pass_.denominator.counted + segment : &divisor_;
    double buffer[kBlock];
    double* out = writable(pass_.reduction, segment, buffer);
    finish(sums, count, {scale, divisors, each, pass_.summed_gradient != 0, pass_.reduction.dtype == DType::Float64},
           out);
    write(pass_.reduction, segment, count, out);
  }

 private:
  using Read = PassBlock<F>;
  static constexpr bool kCompensated = std::is_same_v<F, double>;

  // grad_output of each segment; 1 where there is none, or where it is read with the elements.
  void read_outgoing(int64_t segment, int64_t count, double* out) const {
    if (!pass_.grad_output.data || elementwise_grad_output_) return std::fill(out, out + count, 1.0);
    const double* values = read(pass_.grad_output, outgoing_, outgoing_.after(segment), kGradOutput, count, out);
    if (values != out) std::copy(values, values + count, out);
  }

  // From grad_output to what all gradients of a segment are multiplied by. Of summed ones their sum is, at the end.
  void make_factors(int64_t segment, int64_t count, double* factors) const {
    if (pass_.summed_gradient) return;
    const Denominator& denominator = pass_.denominator;
    for (int64_t s = 0; s < count; ++s) {
      const Divisor& divisor = denominator.counted_each ? denominator.counted[segment + s] : divisor_;
      factors[s] *= factor_of<F>(pass_.scale, divisor);
    }
  }

  const F* read_at(const Operand& operand, const Position& at, Place place, int64_t count, F* buffer) const {
    return operand.data ? read(operand, strips_.walk(), at, place, count, buffer) : nullptr;
  }

  const Keep<F>* read_selection(const Position& at, int64_t count, const F* target, Scratch& scratch) const {
    const Selection& selection = pass_.selection;
    if (!selection.mask.data && !selection.ignore_nan) return nullptr;
    const uint8_t* mask = nullptr;
    if (selection.mask.data) mask = read_mask(selection.mask, strips_.walk(), at, count, scratch.mask);
    make_keep(mask, selection.ignore_nan ? target : nullptr, count, scratch.keep);
    return scratch.keep;
  }

  void visit(const Strip& strip, const double* segment_factors, Sums* sums, Scratch& scratch) const {
    strips_.for_each_block(strip, [&](const Block& block) {
      const int64_t count = block.count();
      const Position at = strips_.walk().after(block.before);
      const F* input = read_at(pass_.input, at, kInput, count, scratch.input);
      const F* target = read_at(pass_.target, at, kTarget, count, scratch.target);
      const F* weights = read_at(pass_.selection.weight, at, kWeight, count, scratch.weights);
      const Read found = {block, at, count, input, target, weights, read_selection(at, count, target, scratch)};
      if (pass_.reduction.data && !pass_.summed_gradient) add_losses(found, *sums, scratch);
      if (pass_.losses.data) write_losses(found, scratch);
      if (pass_.summed_gradient) add_gradients(found, segment_factors, *sums, scratch);
      if (pass_.grad_input.data || pass_.grad_target.data) write_gradients(found, segment_factors, scratch);
    });
  }

  template <class A>
  static Sum sum_of_block(const Loss<A>& loss, const Read& found) {
    const auto sum =
        found.weights
            ? (found.keep ? sum_of_losses<A, true, true, F, Loss<A>> : sum_of_losses<A, true, false, F, Loss<A>>)
            : (found.keep ? sum_of_losses<A, false, true, F, Loss<A>> : sum_of_losses<A, false, false, F, Loss<A>>);
    return sum(loss, found.input, found.target, found.weights, found.keep, found.count);
  }

  template <class A>
  void add_losses(const Loss<A>& loss, const Read& found, Sums& sums, A* terms) const {
    if (found.block.segments == 1) return sums.add(found.block.segment, sum_of_block(loss, found));
    losses<A>(loss, found.input, found.target, found.count, terms);
    if (found.weights) multiply(found.weights, found.count, terms);
    if (found.keep) select_out<F>(found.keep, found.count, terms);
    strips_.add_terms(found.block, terms, kCompensated, sums);
  }

  void add_losses(const Read& found, Sums& sums, Scratch& scratch) const {
    const bool may_be_few = found.keep && sizeof(TV) < sizeof(T);
    if (may_be_few && (found.block.segments > 1 || count_kept<F>(found.keep, found.count) < kFewTerms)) {
      add_losses(loss_, found, sums, scratch.terms);
    } else {
      add_losses(summed_loss_, found, sums, scratch.values);
    }
  }

  void write_losses(const Read& found, Scratch& scratch) const {
    F* out = writable(pass_.losses, strips_.walk(), found.at, kFirst, found.count, scratch.gradient);
    if (!found.weights && pass_.scale == 1.0) {
      losses<T>(loss_, found.input, found.target, found.count, out);
    } else {
      losses<T>(loss_, found.input, found.target, found.count, scratch.terms);
      if (found.weights) multiply(found.weights, found.count, scratch.terms);
      scaled(scratch.terms, static_cast<T>(pass_.scale), found.count, out);
    }
    if (found.keep) select_out<F>(found.keep, found.count, out);
    write(pass_.losses, strips_.walk(), found.at, kFirst, found.count, out);
  }

  // Fills `out` with the input's gradients times `sign`.
  template <class Out>
  void fill_gradients(const Read& found, const double* segment_factors, double sign, Scratch& scratch, Out* out) const {
    const bool each = found.block.segments > 1 && !one_factor_;
    const double* own_factors = segment_factors + (one_factor_ ? 0 : found.block.segment);
    const T scale = static_cast<T>(each ? sign : sign * own_factors[0]);
    const F* outgoing = nullptr;
    if (elementwise_grad_output_) {
      outgoing = read_at(pass_.grad_output, found.at, kGradOutput, found.count, scratch.grad_output);
    }
    const F* single = found.weights ? found.weights : outgoing;
    if (each || (found.weights && outgoing)) {
      if (single) {
        convert(single, found.count, scratch.factors);
      } else {
        std::fill(scratch.factors, scratch.factors + found.count, T(1));
      }
      if (found.weights && outgoing) multiply(outgoing, found.count, scratch.factors);
      if (each) multiply_segments(own_factors, strips_.grid(found.block), scratch.factors);
      gradients<T>(loss_, scale, scratch.factors, found.input, found.target, found.count, out);
    } else if (single) {
      gradients<T>(loss_, scale, single, found.input, found.target, found.count, out);
    } else {
      gradients<T>(loss_, scale, found.input, found.target, found.count, out);
    }
    if (found.keep) select_out<F>(found.keep, found.count, out);
  }

  void add_gradients(const Read& found, const double* segment_factors, Sums& sums, Scratch& scratch) const {
    fill_gradients(found, segment_factors, 1.0, scratch, scratch.terms);
    strips_.add_terms(found.block, scratch.terms, kCompensated, sums);
  }

  void write_gradients(const Read& found, const double* segment_factors, Scratch& scratch) const {
    const Walk& walk = strips_.walk();
    const bool of_input = pass_.grad_input.data;
    const Result& first = of_input ? pass_.grad_input : pass_.grad_target;
    const Place place = of_input ? kFirst : kSecond;
    F* out = writable(first, walk, found.at, place, found.count, scratch.gradient);
    fill_gradients(found, segment_factors, of_input ? 1.0 : -1.0, scratch, out);
    write(first, walk, found.at, place, found.count, out);
    if (!of_input || !pass_.grad_target.data) return;
    F* mirrored = writable(pass_.grad_target, walk, found.at, kSecond, found.count, scratch.mirrored);
    negate(out, found.count, mirrored);
    if (found.keep) select_out<F>(found.keep, found.count, mirrored);  // 0, not -0
    write(pass_.grad_target, walk, found.at, kSecond, found.count, mirrored);
  }

  const Pass& pass_;
  const Strips& strips_;
  const Walk outgoing_;
  const Loss<TV> summed_loss_;
  const Loss<T> loss_;
  const Divisor divisor_;  // of all segments, unless each has its own; a gradient that sums nothing is 0, not 0 / 0
  const bool wants_gradients_, elementwise_grad_output_;
  const bool one_factor_;  // of the gradients of all segments
};

template <class TV, class T, class F, template <class> class Loss>
void pass_as(const Pass& request, ParallelFor parallel_for) {
  const Strips strips(request.segments, tiled(request.inner), kInput, kTarget,
                      {kInput, kTarget, kWeight, kMask, kGradOutput, kFirst, kSecond});
  const PassRun<TV, T, F, Loss> run(request, strips);
  using Scratch = PassScratch<TV, T, F>;
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
}

template <template <class> class Loss>
void pass(const Pass& r, ParallelFor parallel_for) {
  const auto is = [](const auto& has, DType dtype) { return has.data && has.dtype == dtype; };
  const auto any = [&](DType dtype) {
    return is(r.input, dtype) || is(r.target, dtype) || is(r.selection.weight, dtype) || is(r.losses, dtype);
  };
  const bool float64 = any(DType::Float64) || is(r.reduction, DType::Float64) ||
                       (is(r.grad_output, DType::Float64) && varies(r.inner, kGradOutput));
  const bool many = distinct_terms(r.inner) > kFewTerms && r.inner.count() * r.segments.count() > kSmallRequest;
  with_types(float64, !any(DType::Float32), [&](auto types) {
    using T = typename decltype(types)::T;
    using F = typename decltype(types)::F;
    if (many || (!any(DType::Float32) && !is(r.reduction, DType::Float32)))
      return pass_as<F, T, F, Loss>(r, parallel_for);
    pass_as<double, T, F, Loss>(r, parallel_for);
  });
}

}  // namespace cudaloss::cpu
