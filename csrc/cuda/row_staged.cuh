// A row of few classes that have shares of their own, in shared memory. A thread has it, and goes through its classes
// in small loops: unrolled, with the row in registers, the code would be ten times as long.
#pragma once

#include "cuda/row_shares.cuh"
#include "cuda/row_single.cuh"

namespace cudaloss::cuda {

// `operand(j)` is the operand of class j's share, as its reader would read it.
template <class E, class GetOperand>
struct StagedRow {
  static constexpr bool kKeepsExp = sizeof(E) == sizeof(float);
  using N = RowNumber<E>;
  E* x;
  int32_t step, classes, first;  // from class to class; how many; the one to begin with
  const OperandReader<E>& reader;
  const GetOperand& operand;

  // Visits (class, its element).
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) const {
    int32_t j = first;
#pragma unroll 2
    for (int32_t visited = 0; visited < classes; ++visited) {
      visit(j, x[j * step]);
      j = j + 1 == classes ? 0 : j + 1;
    }
  }

  // The row's loss. put(j, gradient) gets the gradient of class j.
  template <class Loss, class Put>
  __device__ __forceinline__ double take(const RowParameters<double>& p, const Loss& loss, RowFactor<float>& of_rows,
                                         Task<float>& task, const Put& put) const {
    const bool wants_gradient = p.grad_input.data;
    if (!(loss.is_soft ? task.counts : task.target >= 0)) {
      const float unread = without_target(task.counts);
      if (wants_gradient) each([&](int32_t j, E&) { put(j, unread); });
      return unread;
    }
    const float target = task.target >= 0 ? widen<float>(x[task.target * step]) : 0.0f;
    float max = -INFINITY;
    int32_t largest = -1;  // the first visited class with the largest logit; -1 only if the row's result is NaN
    each([&](int32_t j, E& x) {
      const float logit = widen<float>(x);
      const bool is_larger = logit > max || logit != logit;
      max = select(is_larger, logit, max);
      largest = select(is_larger, j, largest);
    });
    PartWithShares<E> sums = {{-INFINITY, 0.0f, {}}, {}};
    add_shares(max, largest, sums);

    const Reference reference = reference_of(sums.part.max);
    const Elements<E> elements(reference.power);
    typename Elements<E>::Sum of_exp;
    each([&](int32_t j, E& x) {
      if (j == largest) return;
      const float e = of_exp.add_own(elements, widen<float>(x) - reference.shift);
      if constexpr (kKeepsExp) x = e;
    });
    sums.part.others = of_exp.total();

    read_factors(p, of_rows, task);
    const Constant<float> factor = wants_gradient ? task.factor : Constant<float>{1.0f, 0.0f};
    RowGradients of;
    double of_row = 0.0;
    if (!(loss.is_soft && loss.z_loss == 0.0f && take_near(sums, elements, max, factor, of, of_row))) {
      const RowWithShares<E> row(sums, loss, max, target, loss.is_soft ? 1.0f : task.class_weight, factor);
      if (p.sums || p.losses.data) of_row = row.loss(sums.shares.below);
      of.gain = row.gain();
      if (largest >= 0) of.largest = row.at_largest(reader.share_at(largest), largest == task.target);
      if (task.target >= 0) of.target = row.at_target(reader.share_at(task.target));
    }
    if (!wants_gradient) return of_row;
    const auto of_class = ShareGain<E>::of(of.gain, reader, factor);
    each([&](int32_t j, E& x) {
      if (j == largest || j == task.target) return;
      const float e = kKeepsExp ? widen<float>(x) : elements.exp(widen<float>(x) - reference.shift);
      const float share = reader.weight.data ? reader.weighted_at(j, factor).kept : operand(j);
      put(j, of_class.times_exp(e, share));
    });
    if (task.target >= 0) put(task.target, of.target);
    if (largest >= 0) put(largest, of.largest);
    return of_row;
  }

 private:
  struct RowGradients {
    Gain gain;
    float largest, target;  // of the class with the largest logit, and of the target index
  };

  // Adds the classes' shares to the sums, and finds the largest of the other logits. Only one class counts as the
  // largest: beside an equal one the others' sum keeps its digits.
  __device__ __forceinline__ void add_shares(float max, int32_t largest, PartWithShares<E>& sums) const {
    ShareSums& shares = sums.shares;
    shares.at_max = largest >= 0;
    double distance = 0.0;  // the sum of (largest - x)
    each([&](int32_t j, E& x) {
      const float logit = widen<float>(x);
      float below = max - logit;
      const bool is_largest = j == largest;
      sums.part.max = select(is_largest, sums.part.max, max_or_nan(sums.part.max, logit));
      const RoundedShare share =
          reader.weight.data ? reader.weighted_at(j, {1.0f, 0.0f}) : RoundedShare{operand(j), 0.0f};
      const double summed = double{share.kept} + (reader.weight.data ? double{share.lost} : 0.0);
      shares.own += is_largest ? summed : 0.0;
      shares.shares += is_largest ? 0.0 : summed;
      if (reader.smooths()) {
        if (below == INFINITY) {  // beside a probability of 0, which alone would make it no number
          distance += double{fused(share.kept, reader.slope.hi, reader.each.hi) * below};
          below = 0.0f;
        }
        distance += double{below};
      }
      shares.below = fused(double{share.kept}, double{below}, shares.below);
    });
    shares.take_slope(reader, classes, distance);
  }
  // A usual row of probabilities, whose largest logit is near the others; false if it must be taken as any other.
  // H200, a step of (2^24, 2) fp32: 0.58 ms, as any other 0.74.
  __device__ __forceinline__ static bool take_near(const PartWithShares<E>& sums, const Elements<E>& elements,
                                                   float max, Constant<float> factor, RowGradients& of,
                                                   double& of_row) {
    using Near = NearRow<E>;
    if (!Near::is(sums.part.max, max)) return false;
    const Near near(elements, sums.part.others, max);
    const N all = number_in<N>(sums.shares.shares + sums.shares.own), others = number_in<N>(sums.shares.shares);
    if (!near.take_gain(number_of<N>(factor) * all, of.gain)) return false;
    const N of_exp = number_of<N>({of.gain.hi, of.gain.lo});
    of.largest = rounded(gap_between(number_of<N>(factor) * others, of_exp * near.others));
    of_row = as_double(all * near.loss()) + sums.shares.below;
    return true;
  }
};

// Rows of any strides: side by side their threads read neighbouring elements. Each is copied first, with its shares'
// operand.
template <class E, class Loss>
__global__ void __launch_bounds__(kSingleThreads)
    rows_of_strided_shares(const __grid_constant__ RowParameters<double> p,
                           const __grid_constant__ typename Loss::InFloat loss) {
  extern __shared__ __align__(16) char memory[];
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  float* const operands = reinterpret_cast<float*>(memory) + threadIdx.x;
  E* const x = reinterpret_cast<E*>(memory + p.classes * kSingleThreads * sizeof(float)) + threadIdx.x;
  double sum = 0.0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kSingleThreads>(p, factor);
  wait_for_prior();  // a count
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kSingleThreads; first < p.rows; first += gridDim.x * kSingleThreads) {
    Task<float> task = task_at<float>(p, first + threadIdx.x);
    if (task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, false);
    OperandReader<E> reader(p, loss, task.at);
#pragma unroll 4
    for (int32_t j = 0; j < p.classes; ++j) {
      x[j * kSingleThreads] = span.input[j * p.class_stride[kInput]];
      operands[j * kSingleThreads] = reader.operand_at(j);
    }
    reader.is_at({operands, DType::Float32}, kSingleThreads);
    if (loss.is_soft) {
      task.counts = is_selected(p, task);
    } else {
      take_target(p, task, index_of(p, task));
    }
    const auto operand = [&](int32_t j) { return operands[j * kSingleThreads]; };
    const auto put = [&](int32_t j, float gradient) {
      span.gradient[j * p.class_stride[kResult]] = narrow<E>(gradient);
    };
    const StagedRow<E, decltype(operand)> row = {x, kSingleThreads, p.classes, 0, reader, operand};
    add_row<false>(p, task, row.take(p, loss, factor, task, put), sum);
  }
  reduce_losses<kSingleThreads, SumsOf::Block>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
