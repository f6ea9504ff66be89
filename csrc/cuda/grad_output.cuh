// The incoming gradient of a pass: the one that a backward got, or in a forward the one that it expects.
#pragma once

#include "core/pass.h"
#include "cuda/fold.cuh"

namespace cudaloss::cuda {

// A forward writes its record. A backward writes its grad_output (the first segment's, if there are several) into the
// slot, for the next forward. Both wait first, because the record's memory may still have partial sums of the count
// before it. A slot can be read without a wait: only a count can overlap a forward, and a count starts when all kernels
// before it have ended. Not inlined: that would make rows of 4,096 classes spill 30 to 240 bytes more.
static __device__ __noinline__ void note_once(Prediction prediction, Operand grad_output, bool is_backward) {
  wait_for_prior();
  if (is_backward) {
    prediction.write_slot(number_at<double>(grad_output, 0));
  } else {
    prediction.write_record();
  }
}

// Of any floating dtype: one element for all, or one for each.
struct GradOutput {
  Operand operand;
  bool scalar;
  bool hold_gradients;  // the gradients already hold those for the prediction's record
  Prediction prediction;

  GradOutput() = default;
  // Host code.
  GradOutput(const Pass& r, bool scalar)
      : operand(r.grad_output), scalar(scalar), hold_gradients(r.hold_gradients), prediction(r.prediction) {
    if (is_expected()) operand = {prediction.slots + prediction.first, DType::Float64};
  }

  // Whether this is a forward's, and its number that of a slot.
  CUDALOSS_INLINE bool is_expected() const { return prediction.record && prediction.slots && !hold_gradients; }

  // Element i of the gradient, or the only one.
  template <class F>
  __device__ __forceinline__ Constant<F> at(int64_t i, F) const {
    Constant<F> value[1];
    each(scalar ? 0 : i, 0, 1, value);
    return value[0];
  }

  // `length` elements from `begin` along a stride. Branches on their dtype once: a branch for each element would be
  // most of a kernel.
  template <int N, class F>
  __device__ __forceinline__ void each(int64_t begin, int64_t stride, int length, Constant<F> (&value)[N]) const {
    dispatch(operand.dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      // A narrower number is not widened through double, which is slow on many GPUs.
      using Wide = std::conditional_t<std::is_same_v<Element, double>, double, F>;
      const auto* const data = static_cast<const Element*>(operand.data) + begin;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        value[i] = i < length ? constant_of(widen<Wide>(data[i * stride]), F()) : Constant<F>{F(0), F(0)};
      }
    });
  }

  // Whether the gradients are already right for this number, to the bit, as count_kernel compares it: both must decide
  // alike.
  template <class F>
  __device__ __forceinline__ bool holds(Constant<F> value) const {
    const double hi = value.hi;
    return hold_gradients &&
           prediction.is_for(value.lo == F(0) ? hi : hi + static_cast<double>(value.lo));  // -0 stays so
  }

  // Every kernel that makes gradients calls it, or note_once.
  __device__ __forceinline__ void note() const {
    if (prediction.record && blockIdx.x == 0 && threadIdx.x == 0) note_once(prediction, operand, hold_gradients);
  }
};

}  // namespace cudaloss::cuda
