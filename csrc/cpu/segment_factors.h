// The factors of the segments' gradients: grad_output, scale and denominator.
#pragma once

#include <algorithm>

#include "cpu/gather.h"

namespace cudaloss::cpu {

// F is the type of the gradients.
template <class F>
class SegmentFactors {
 public:
  // A gradient that sums nothing is 0, not 0 / 0, so it reads no divisor.
  explicit SegmentFactors(const Pass& pass, bool sums_nothing = false)
      : pass_(pass),
        outgoing_({pass.segments}, {kGradOutput}),
        elementwise_(pass.grad_output.data && varies(pass.inner, kGradOutput)),
        one_(!varies(pass.segments, kGradOutput) && !pass.denominator.counted_each),
        divisor_(sums_nothing ? divisor_of(1.0) : pass.denominator.at(0)) {}

  // Whether grad_output varies within a segment and is read with the elements.
  bool elementwise() const { return elementwise_; }
  // Whether all segments have the same factor.
  bool one() const { return one_; }
  // The divisor of all segments, unless each has its own.
  const Divisor& divisor() const { return divisor_; }

  // Whether all the gradients wanted are already there.
  bool is_held() const {
    double grad_output = 0.0;
    if (!pass_.hold_unit_gradients || varies(pass_.segments, kGradOutput) || elementwise_) return false;
    read_outgoing(0, 1, &grad_output);
    return grad_output == 1.0;
  }

  // grad_output of each segment; 1 if there is none, or if it is read with the elements.
  void read_outgoing(int64_t segment, int64_t count, double* out) const {
    if (!pass_.grad_output.data || elementwise_) return std::fill(out, out + count, 1.0);
    const double* values = read(pass_.grad_output, outgoing_, outgoing_.after(segment), kGradOutput, count, out);
    if (values != out) std::copy(values, values + count, out);
  }

  // From grad_output to the factor of all gradients of a segment. With `rests` also the factor's rest, because fp64
  // shows each rounding.
  void make(int64_t segment, int64_t count, double* factors, double* rests = nullptr) const {
    const Denominator& denominator = pass_.denominator;
    for (int64_t s = 0; s < count; ++s) {
      const Divisor& divisor = denominator.counted_each ? denominator.counted[segment + s] : divisor_;
      const double outgoing = factors[s];
      if (rests) rests[s] = 0.0;
      if constexpr (sizeof(F) == sizeof(double)) {
        factors[s] = divisor.reciprocal == 0.0 ? 0.0 : outgoing * pass_.scale / divisor.value;
        if (rests) rests[s] = rest_of_quotient(factors[s], outgoing, divisor);
      } else {
        factors[s] *= factor_of<F>(pass_.scale, divisor);
      }
    }
  }

 private:
  // The rounding error of outgoing * scale / divisor; 0 if the rest is not a number.
  double rest_of_quotient(double factor, double outgoing, const Divisor& divisor) const {
    const double product = outgoing * pass_.scale, lost = fma(outgoing, pass_.scale, -product);
    const double rest = (fma(-factor, divisor.value, product) + lost) * divisor.reciprocal;
    return absolute(factor) > DBL_MIN && absolute(rest) < absolute(factor) ? rest : 0.0;
  }

  const Pass& pass_;
  const Walk outgoing_;
  const bool elementwise_, one_;
  const Divisor divisor_;
};

}  // namespace cudaloss::cpu
