// Rows of any strides and dtypes, with all options of a loss of rows: probabilities as targets, class weights with
// label smoothing, a softcap, fp64. A thread, a warp or a block reads a row two or three times.
#pragma once

#include "cuda/row_lanes.cuh"
#include "cuda/row_softmax.cuh"

namespace cudaloss::cuda {

template <class F>
struct GeneralParameters {
  RowParameters<Partial<F>> rows;
  int lanes_shift;  // the log2 of a row's threads
  bool probabilities;
};

// A row's operands.
template <class F>
struct GeneralRow {
  using P = Partial<F>;
  const GeneralParameters<F>& g;
  const Task<F>& task;
  double smoothing;
  int64_t input, target, first, second;  // offsets

  __device__ __forceinline__ Capped<F> logit(int32_t j) const {
    const RowParameters<P>& p = g.rows;
    const F x = floating_at<F>(p.input, input + j * p.class_stride[kInput]);
    return p.softcap == 0.0 ? Capped<F>{x, F(0), F(1)} : capped(x, static_cast<F>(p.softcap));
  }
  __device__ __forceinline__ double class_weight(int32_t j) const {
    const RowParameters<P>& p = g.rows;
    return p.third.data ? floating_at<double>(p.third, j * p.class_stride[kThird]) : 1.0;
  }
  // A class's share in the sums, subtracted in its gradient. With an index it is the class weight, for the smoothing.
  __device__ __forceinline__ double share(int32_t j) const {
    if (!g.probabilities) return class_weight(j);
    const RowParameters<P>& p = g.rows;
    const double q = floating_at<double>(p.target, target + j * p.class_stride[kTarget]);
    return class_weight(j) * fused(1.0 - smoothing, q, smoothing / p.classes);
  }
  __device__ __forceinline__ double exp(const Capped<F>& x, F max, F floor) const {
    const F e = exp_below_max(x.value, max, floor);
    return static_cast<double>(fused(e, x.rest, e));
  }
};

template <class F, class Loss>
__device__ __forceinline__ void general_row(const GeneralParameters<F>& g, const Loss& loss, const Task<F>& task,
                                            int lane, int lanes, Partial<F>& sum) {
  using P = Partial<F>;
  const RowParameters<P>& p = g.rows;
  const bool reads = task.counts && task.is_class;
  const GeneralRow<F> row = {g,
                             task,
                             loss.smoothing,
                             offset(p, task.at, kInput),
                             offset(p, task.at, kTarget),
                             offset(p, task.at, kResult),
                             offset(p, task.at, kSecondResult)};
  const int32_t end = reads ? p.classes : 0;
  F max = F(-INFINITY);
  for (int32_t j = lane; j < end; j += lanes) {
    const F x = j == task.target ? F(-INFINITY) : row.logit(j).value;
    max = select(x > max || x != x, x, max);
  }
  max = together(max, lanes, [](F a, F b) { return a != a || a > b ? a : b; });
  double own = -INFINITY;
  if (reads && task.target >= 0) {
    const Capped<F> x = row.logit(task.target);
    own = static_cast<double>(x.value) + static_cast<double>(x.rest);
  }
  const double top = max != max || own != own ? NAN : select(own > max, own, static_cast<double>(max));
  const bool is_nan = !task.is_class || !(absolute(top) <= DBL_MAX || (Loss::kIsPart && top == -INFINITY));
  const bool sums_shares = g.probabilities || loss.smoothing != 0.0;
  const F floor = floor_below(max);
  P of_exp = {}, below = {}, shares = {}, largest = {};
  for (int32_t j = lane; j < end; j += lanes) {
    const Capped<F> x = row.logit(j);
    const bool is_largest = g.probabilities && x.value == max;  // its 1 would hide a tiny sum of the others
    if (is_largest) largest = largest + P{1.0};
    const double own_exp = is_largest ? kLifted<F> * static_cast<double>(x.rest) : row.exp(x, max, floor);
    if (j != task.target) of_exp = of_exp + P{own_exp};
    if (sums_shares) {
      const double share = row.share(j);
      shares = shares + P{share};
      below = below + P{share * ((top - static_cast<double>(x.value)) - static_cast<double>(x.rest))};
    }
  }
  const auto add = [](const P& a, const P& b) { return a + b; };
  of_exp = together(of_exp, lanes, add);
  ClassRow result = {};
  ClassShares shared = {};
  if (sums_shares) {
    shared = {value_in(together(below, lanes, add)), value_in(together(shares, lanes, add))};
  }
  if (reads) {
    const double bound = bounded(static_cast<double>(max));
    const WithRest<double> sum_of_exp = scaled(parts_of(of_exp), 1.0 / kLifted<F>);
    if (g.probabilities) {
      const double more = value_in(together(largest, lanes, add)) - 1.0;
      const WithRest<double> others = more > 0.0 ? sum_of({more, 0.0}, sum_of_exp) : sum_of_exp;
      result = loss.finish({bound, others}, bound, 0.0, shared);
    } else {
      const auto beside = static_cast<double>(Loss::kIsPart ? grad_target_of(p, task) : task.class_weight);
      result = loss.finish({bound, sum_of_exp}, own, beside, shared, p.classes);
    }
  }
  if (task.counts && (is_nan || !reads)) result = {NAN, {NAN, 0.0}, NAN, NAN, {NAN, 0.0}};
  if (lane == 0) add_loss(p, task.at, P{result.loss * static_cast<double>(task.weight)}, sum);
  if (Loss::kIsPart && lane == 0) store_target_logit(p, task.at, own);
  double factor = static_cast<double>(task.factor.hi) + static_cast<double>(task.factor.lo);
  if constexpr (Loss::kIsPart) {  // the target's gradient is given
    result.of_exp = result.of_exp * WithRest<double>{task.factor.hi, task.factor.lo};
    factor = 1.0;
  }
  const WithRest<double> of_hard = WithRest<double>{task.factor.hi, task.factor.lo} * one_less(loss.smoothing);
  const double unread = task.counts ? NAN : 0.0;
  for (int32_t j = lane; j < p.classes; j += lanes) {
    double gradient = unread, of_target = unread;
    if (reads) {
      const Capped<F> x = row.logit(j);
      const double share = sums_shares ? row.share(j) : 0.0;
      const double e = row.exp(x, max, floor), of_exp = fused(e, result.of_exp.value, e * result.of_exp.rest);
      gradient = j == task.target ? result.at_target : fused(of_exp, 1.0 / kLifted<F>, -result.of_share * share);
      gradient *= factor * static_cast<double>(x.slope);
      const WithRest<double> lower = difference_of(top, static_cast<double>(x.value)),
                             lowered = {lower.value, lower.rest - static_cast<double>(x.rest)},
                             above = difference_of(lowered, -result.log_all);
      of_target = rounded(of_hard * WithRest<double>{row.class_weight(j), 0.0} * above);
    }
    if (p.grad_input.data) store_scalar(p.grad_input, row.first + j * p.class_stride[kResult], gradient);
    if (p.grad_target.data) store_scalar(p.grad_target, row.second + j * p.class_stride[kSecondResult], of_target);
  }
}

template <class F, class Loss>
__global__ void __launch_bounds__(kGeneralThreads)
    rows_in_general(const __grid_constant__ GeneralParameters<F> g, const __grid_constant__ Loss loss) {
  const RowParameters<Partial<F>>& p = g.rows;
  release_next();
  wait_for_prior();
  if (all_held<F>(p)) return;
  const int lanes = 1 << g.lanes_shift, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const uint32_t rows = kGeneralThreads >> g.lanes_shift;
  Partial<F> sum = {};
  RowFactor<F> factor;
  const Divisor& counted = count_rows<kGeneralThreads>(p, factor);
#pragma unroll 1
  for (uint32_t first = blockIdx.x * rows; first < p.rows; first += gridDim.x * rows) {
    const uint32_t at = first + (threadIdx.x >> g.lanes_shift);
    const Task<F> task =
        g.probabilities ? task_of<F, false>(p, factor, at) : task_of<F, true, Loss::kIsPart>(p, factor, at);
    if (!task.held) general_row(g, loss, task, lane, lanes, sum);  // all of a row's threads, in whole warps
  }
  reduce_losses<kGeneralThreads, SumsOf::Block>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
