// The CPU engine. It splits a Pass into blocks and shares them out over threads. The loops of kernels.h compute each
// block, and those of blocks.h apply weights, selections and segments. Included by the source of each loss, which
// setup.py writes.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "cpu/blocks.h"
#include "cpu/engine.h"
#include "cpu/gather.h"
#include "cpu/kernels.h"
#include "cpu/segments.h"
#include "cpu/tiles.h"

namespace cudaloss::cpu {

// If a segment, or the selected part of a block, has fewer terms than this, the rounding errors of fp32 arithmetic
// would not average out. A small request computes exactly anyway, because that costs nothing there.
constexpr int64_t kFewTerms = 96;
constexpr int64_t kSmallRequest = 4096;

// The buffers of one thread, each aligned to a cache line. It touches only those that a pass needs.
template <class TV, class T, class F>
struct alignas(64) PassScratch {
  static constexpr bool kHasRests = false;
  F input[kBlock], target[kBlock], weights[kBlock], third[kBlock], grad_output[kBlock], gradient[kBlock];
  TV values[kBlock];
  T terms[kBlock], factors[kBlock];
  uint8_t mask[kBlock];
  Keep<F> keep[kBlock];
  double of_segments[kBlock];
};

// A block's operands as they were read.
template <class F>
struct PassBlock {
  const Block& block;
  Position at;
  int64_t count;
  const F *input, *target;
  const F* weights;       // null: 1
  const F* third;         // null: a number
  const Keep<F>* keep;    // null: all
  const double* factors;  // of the gradients of its segments, or the one of all segments
};

// TV is the arithmetic of the losses that are summed up, T the arithmetic of single results, F the type read.
template <class TV, class T, class F, template <class> class Loss>
class PassRun {
 public:
  using Scratch = PassScratch<TV, T, F>;

  PassRun(const Pass& pass, const Strips& strips, const Segments<F>& segments)
      : pass_(pass), strips_(strips), segments_(segments), summed_loss_(pass.numbers), loss_(pass.numbers) {}

  // `first` is the index of the strip's first segment in the array of factors.
  void operator()(const Strip& strip, int64_t first, Sums* sums, Scratch& scratch) const {
    strips_.for_each_block(strip, [&](const Block& block) {
      const int64_t count = block.count();
      const Position at = strips_.walk().after(block.before);
      const F* input = read_at(pass_.input, at, kInput, count, scratch.input);
      const F* target = read_at(pass_.target, at, kTarget, count, scratch.target);
      const F* weights = read_at(pass_.selection.weight, at, kWeight, count, scratch.weights);
      const F* third = read_at(pass_.third, at, kThird, count, scratch.third);
      const Keep<F>* keep = read_selection(pass_.selection, strips_.walk(), at, count, target, scratch);
      const double* factors = scratch.of_segments + (segments_.one() ? 0 : first + block.segment);
      const Read found = {block, at, count, input, target, weights, third, keep, factors};
      if constexpr (kSharesTerms) {
        if (shares_terms(found)) return add_and_write(found, *sums, scratch);
      }
      if (pass_.reduction.data && !segments_.sums_gradients()) add_losses(found, *sums, scratch);
      if (pass_.losses.data) write_losses(found, scratch);
      if (segments_.sums_gradients()) add_gradients(found, *sums, scratch);
      if (pass_.grad_input.data) write_gradients<Of::Input>(found, scratch);
      if (pass_.grad_target.data) write_gradients<Of::Target>(found, scratch);
    });
  }

 private:
  using Read = PassBlock<F>;
  static constexpr bool kCompensated = std::is_same_v<F, double>;
  static constexpr bool kSharesTerms = kIsOfOperands<Loss>;

  const F* read_at(const Operand& operand, const Position& at, Place place, int64_t count, F* buffer) const {
    return operand.data ? read(operand, strips_.walk(), at, place, count, buffer) : nullptr;
  }

  // Whether the pass makes only the losses and the input's gradients, with one factor for the block.
  bool shares_terms(const Read& found) const {
    return pass_.reduction.data && pass_.grad_input.data && !pass_.grad_target.data && !found.weights && !found.third &&
           !segments_.elementwise() && (segments_.one() || found.block.segments == 1);
  }

  void add_and_write(const Read& found, Sums& sums, Scratch& scratch) const {
    F* out = writable(pass_.grad_input, strips_.walk(), found.at, kResult, found.count, scratch.gradient);
    const Constant<T> scale = constant_of(found.factors[0], T());
    losses_and_gradients<T, F>(loss_, scale, found.input, found.target, found.count, scratch.terms, out);
    if (found.keep) select_out<F>(found.keep, found.count, scratch.terms);
    if (found.keep) select_out<F>(found.keep, found.count, out);
    write(pass_.grad_input, strips_.walk(), found.at, kResult, found.count, out);
    strips_.add_terms(found.block, scratch.terms, kCompensated, sums);
  }

  template <class LossA>
  static Sum sum_of_block(const LossA& loss, const Read& found) {
    using A = typename LossA::Arithmetic;
    const auto sum =
        found.weights
            ? (found.keep ? sum_of_losses<A, true, true, F, LossA> : sum_of_losses<A, true, false, F, LossA>)
            : (found.keep ? sum_of_losses<A, false, true, F, LossA> : sum_of_losses<A, false, false, F, LossA>);
    return sum(loss, found.input, found.target, found.weights, found.keep, found.count);
  }

  template <class LossA, class Out>
  static void fill_losses(const LossA& loss, const Read& found, Out* out) {
    if constexpr (LossA::kHasThird) {
      if (found.third) return losses<true>(loss, found.input, found.target, found.third, found.count, out);
    }
    losses<false, F>(loss, found.input, found.target, nullptr, found.count, out);
  }

  template <class LossA, class A>
  void add_losses(const LossA& loss, const Read& found, Sums& sums, A* terms) const {
    if constexpr (!kSharesTerms) {  // GCC 12 does not vectorise shared terms inside a sum
      if (found.block.segments == 1 && !found.third) return sums.add(found.block.segment, sum_of_block(loss, found));
    }
    fill_losses(loss, found, terms);
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
    F* out = writable(pass_.losses, strips_.walk(), found.at, kResult, found.count, scratch.gradient);
    if (!found.weights && pass_.scale == 1.0) {
      fill_losses(loss_, found, out);
    } else {
      fill_losses(loss_, found, scratch.terms);
      if (found.weights) multiply(found.weights, found.count, scratch.terms);
      scaled(scratch.terms, static_cast<T>(pass_.scale), found.count, out);
    }
    if (found.keep) select_out<F>(found.keep, found.count, out);
    write(pass_.losses, strips_.walk(), found.at, kResult, found.count, out);
  }

  // With a factor for each element, and with its own third operand if there is one.
  template <Of kOf, class Out>
  void fill_gradients(const Read& found, T scale, const T* factors, Out* out) const {
    if constexpr (decltype(loss_)::kHasThird) {
      if (found.third) {
        return gradients<kOf, true>(loss_, scale, factors, found.input, found.target, found.third, found.count, out);
      }
    }
    gradients<kOf, false, T, F>(loss_, scale, factors, found.input, found.target, nullptr, found.count, out);
  }

  // The factors of a block's elements, from weights, incoming gradients and segments, as far as there are any.
  const T* factors_of(const Read& found, const F* outgoing, const double* of_segments, Scratch& scratch) const {
    const F* single = found.weights ? found.weights : outgoing;
    if constexpr (std::is_same_v<T, F>) {
      if (single && !of_segments && !(found.weights && outgoing)) return single;
    }
    if (single) {
      convert(single, found.count, scratch.factors);
    } else {
      std::fill(scratch.factors, scratch.factors + found.count, T(1));
    }
    if (found.weights && outgoing) multiply(outgoing, found.count, scratch.factors);
    if (of_segments) multiply_segments(of_segments, strips_.grid(found.block), scratch.factors);
    return scratch.factors;
  }

  // Fills `out` with one operand's gradients; the third operand's can be in the place of the input's. If they mirror
  // the other's, the other's loops make them, with a negative factor.
  template <Of kWanted, class Out>
  void fill_gradients(const Read& found, Scratch& scratch, Out* out) const {
    if constexpr (kWanted == Of::Input && kHasGradThird<decltype(loss_)>) {
      if (pass_.of_third) return fill_gradients<Of::Third>(found, scratch, out);
    }
    constexpr Of kOf = decltype(loss_)::kMirrors && kWanted == Of::Target ? Of::Input : kWanted;
    const bool each = found.block.segments > 1 && !segments_.one();
    const Constant<T> scale = constant_of((kOf == kWanted ? 1.0 : -1.0) * (each ? 1.0 : found.factors[0]), T());
    const F* outgoing = nullptr;
    if (segments_.elementwise()) {
      outgoing = read_at(pass_.grad_output, found.at, kGradOutput, found.count, scratch.grad_output);
    }
    if (each || found.weights || outgoing || found.third) {
      fill_gradients<kOf>(found, scale.hi, factors_of(found, outgoing, each ? found.factors : nullptr, scratch), out);
    } else {
      gradients<kOf, T, F>(loss_, scale, found.input, found.target, found.count, out);
    }
    if (found.keep) select_out<F>(found.keep, found.count, out);
  }

  void add_gradients(const Read& found, Sums& sums, Scratch& scratch) const {
    if (pass_.summed == Summed::GradInput) {
      fill_gradients<Of::Input>(found, scratch, scratch.terms);
    } else {
      fill_gradients<Of::Target>(found, scratch, scratch.terms);
    }
    strips_.add_terms(found.block, scratch.terms, kCompensated, sums);
  }

  template <Of kOf>
  void write_gradients(const Read& found, Scratch& scratch) const {
    const Result& result = kOf == Of::Input ? pass_.grad_input : pass_.grad_target;
    constexpr Place kPlace = kOf == Of::Input ? kResult : kSecondResult;
    F* out = writable(result, strips_.walk(), found.at, kPlace, found.count, scratch.gradient);
    fill_gradients<kOf>(found, scratch, out);
    write(result, strips_.walk(), found.at, kPlace, found.count, out);
  }

  const Pass& pass_;
  const Strips& strips_;
  const Segments<F>& segments_;
  const SingleFunctor<Loss, TV, F> summed_loss_;
  const SingleFunctor<Loss, T, F> loss_;
};

template <class TV, class T, class F, template <class> class Loss>
void pass_as(const Pass& request, ParallelFor parallel_for) {
  const Strips strips(request.segments, tiled(request.inner), kInput, kTarget,
                      {kInput, kTarget, kWeight, kMask, kThird, kGradOutput, kResult, kSecondResult});
  const Segments<F> segments(request);
  const PassRun<TV, T, F, Loss> run(request, strips, segments);
  segments.template run<PassScratch<TV, T, F>>(strips, parallel_for, run);
}

// The arithmetic of single results over fp32 data: fp64 costs no time at memory speed. Exception: a loss with
// exponentials keeps what float would lose in its terms, because fp64 would take four times as long.
template <template <class> class Loss, class F>
using Single = std::conditional_t<kIsOfOperands<Loss> && !kHasRests<Loss>, F, double>;

template <template <class> class Loss>
void pass_in_form(const Pass& r, ParallelFor parallel_for) {
  if (wants_float64(r)) return pass_as<double, double, double, Loss>(r, parallel_for);
  const auto is_float = [](const auto& has) { return has.data && has.dtype == DType::Float32; };
  const bool has_float = is_float(r.input) || is_float(r.target) || is_float(r.selection.weight) || is_float(r.third) ||
                         is_float(r.losses);
  const bool many = distinct_terms(r.inner) > kFewTerms && r.inner.count() * r.segments.count() > kSmallRequest;
  const bool are_halves = !has_float && (many || !is_float(r.reduction));
  using Exact = Single<Loss, float>;
  // A form that is not the usual one has only the exact loops: the others would be a tenth of the binary.
  if constexpr (!kHasUsual<Loss<float>>) {
    if (are_halves) return pass_as<float, float, float, Loss>(r, parallel_for);
    if (many) return pass_as<float, Exact, float, Loss>(r, parallel_for);
  }
  pass_as<Exact, Exact, float, Loss>(r, parallel_for);
}

template <template <class> class Loss>
void pass(const Pass& r, ParallelFor parallel_for) {
  if (r.of_third && !kHasGradThird<Loss<float>>) throw std::logic_error(kNoGradThird);
  with_form<Loss>(r.numbers, [&](auto form) { pass_in_form<decltype(form)::template Of>(r, parallel_for); });
}

}  // namespace cudaloss::cpu
