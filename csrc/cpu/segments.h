// What a pass does for each of its segments: the factors of its gradients (grad_output, scale and denominator), and the
// result from its sum.
#pragma once

#include <algorithm>

#include "cpu/gather.h"
#include "cpu/strips.h"

namespace cudaloss::cpu {

// Which of a block's elements are selected; null: all. `target` is read only if its NaNs matter.
template <class F, class Scratch>
const Keep<F>* read_selection(const Selection& selection, const Walk& walk, const Position& at, int64_t count,
                              const F* target, Scratch& scratch) {
  if (!selection.mask.data && !selection.ignore_nan) return nullptr;
  const uint8_t* mask = nullptr;
  if (selection.mask.data) mask = read_mask(selection.mask, walk, at, count, scratch.mask);
  make_keep(mask, selection.ignore_nan ? target : nullptr, count, scratch.keep);
  return scratch.keep;
}

// Whether an operand, or a result that is not a gradient, is float64.
inline bool wants_float64(const Pass& r) {
  const auto is_float64 = [](const auto& has) { return has.data && has.dtype == DType::Float64; };
  if (r.part.all_classes) return is_float64(r.input);  // the losses of a part are float64 for all logits
  return is_float64(r.input) || is_float64(r.target) || is_float64(r.selection.weight) || is_float64(r.third) ||
         is_float64(r.losses) || is_float64(r.reduction) || (is_float64(r.grad_output) && varies(r.inner, kGradOutput));
}

// F is the type of the gradients.
template <class F>
class Segments {
 public:
  explicit Segments(const Pass& pass)
      : pass_(pass),
        outgoing_({pass.segments}, {kGradOutput}),
        elementwise_(pass.grad_output.data && varies(pass.inner, kGradOutput)),
        one_(!varies(pass.segments, kGradOutput) && !pass.denominator.counted_each),
        sums_gradients_(pass.summed != Summed::Losses),
        wants_gradients_(pass.wants_gradients() || sums_gradients_),
        // A gradient that sums nothing is 0, not 0 / 0, so it reads no divisor.
        divisor_(sums_gradients_ && pass.inner.count() == 0 ? divisor_of(1.0) : pass.denominator.at(0)) {}

  // Whether grad_output varies within a segment and is read with the elements.
  bool elementwise() const { return elementwise_; }
  // Whether all segments have the same factor.
  bool one() const { return one_; }
  bool sums_gradients() const { return sums_gradients_; }
  bool wants_gradients() const { return wants_gradients_; }

  // Calls visit(strip, first, sums, scratch) for all strips, without segments whose gradients are there already.
  // `scratch.of_segments` has the factors of the strip's segments from `first` on, and `rests` their rests. `sums` is
  // null if there is no reduction.
  template <class Scratch, class Visit>
  void run(const Strips& strips, ParallelFor parallel_for, const Visit& visit) const {
    if (pass_.reduction.data) {
      sum_strips<Scratch>(
          strips, parallel_for,
          [&](const Strip& strip, Sums& sums, Scratch& scratch) { visit_wanted(strip, &sums, scratch, visit); },
          [&](int64_t segment, int64_t count, const Sums& sums) { finish_segments(segment, count, sums); });
    } else if (strips.segments() * strips.inner() > 0 && !is_held()) {
      strips.share_out(parallel_for, [&](int64_t first, int64_t last) {
        Scratch scratch;
        for (int64_t index = first; index < last; ++index) visit_wanted(strips.strip(index), nullptr, scratch, visit);
      });
    }
  }

 private:
  // Whether all the gradients wanted are already there.
  bool is_held() const {
    double grad_output = 0.0;
    if (!pass_.hold_gradients || varies(pass_.segments, kGradOutput) || elementwise_) return false;
    read_outgoing(0, 1, &grad_output);
    return grad_output == 1.0;
  }

  // grad_output of each segment; 1 if there is none, or if it is read with the elements.
  void read_outgoing(int64_t segment, int64_t count, double* out) const {
    if (!pass_.grad_output.data || elementwise_) return std::fill(out, out + count, 1.0);
    read_into(pass_.grad_output, outgoing_, outgoing_.after(segment), kGradOutput, count, out);
  }

  template <class Scratch, class Visit>
  void visit_wanted(const Strip& strip, Sums* sums, Scratch& scratch, const Visit& visit) const {
    double* const factors = scratch.of_segments;
    if (!wants_gradients_) return visit(strip, 0, sums, scratch);
    const int64_t count = one_ ? 1 : strip.segments;
    read_outgoing(strip.segment, count, factors);
    if (one_ || !pass_.hold_gradients) {
      make(strip.segment, 0, count, scratch);
      return visit(strip, 0, sums, scratch);
    }
    for (int64_t from = 0, to = 0; from < count; from = to) {
      const bool held = factors[from] == 1.0;
      for (to = from; to < count && (factors[to] == 1.0) == held;) ++to;
      if (held) continue;
      make(strip.segment, from, to, scratch);
      visit({strip.segment + from, to - from, strip.begin, strip.end}, from, sums, scratch);
    }
  }

  // From grad_output to the factor of all gradients of a segment, for [from, to) behind `segment`. With rests also the
  // factor's rest, because fp64 shows each rounding.
  template <class Scratch>
  void make(int64_t segment, int64_t from, int64_t to, Scratch& scratch) const {
    const Denominator& denominator = pass_.denominator;
    for (int64_t s = from; !sums_gradients_ && s < to; ++s) {
      const Divisor& divisor = denominator.counted_each ? denominator.counted[segment + s] : divisor_;
      double& factor = scratch.of_segments[s];
      const double outgoing = factor;
      if constexpr (sizeof(F) == sizeof(double)) {
        factor = divisor.reciprocal == 0.0 ? 0.0 : outgoing * pass_.scale / divisor.value;
        if constexpr (Scratch::kHasRests) scratch.segment_rests[s] = rest_of_quotient(factor, outgoing, divisor);
      } else {
        factor *= factor_of<F>(pass_.scale, divisor);
        if constexpr (Scratch::kHasRests) scratch.segment_rests[s] = 0.0;
      }
    }
  }

  // The rounding error of outgoing * scale / divisor; 0 if the rest is not a number.
  double rest_of_quotient(double factor, double outgoing, const Divisor& divisor) const {
    const double product = outgoing * pass_.scale, lost = fma(outgoing, pass_.scale, -product);
    const double rest = (fma(-factor, divisor.value, product) + lost) * divisor.reciprocal;
    return absolute(factor) > DBL_MIN && absolute(rest) < absolute(factor) ? rest : 0.0;
  }

  void finish_segments(int64_t segment, int64_t count, const Sums& sums) const {
    const bool each = pass_.denominator.counted_each;
    const Divisor* divisors = each ? pass_.denominator.counted + segment : &divisor_;
    double buffer[kBlock];
    double* out = writable(pass_.reduction, segment, buffer);
    finish(sums, count, {pass_.scale, divisors, each, sums_gradients_, pass_.reduction.dtype == DType::Float64}, out);
    write(pass_.reduction, segment, count, out);
  }

  const Pass& pass_;
  const Walk outgoing_;
  const bool elementwise_, one_, sums_gradients_, wants_gradients_;
  const Divisor divisor_;
};

}  // namespace cudaloss::cpu
