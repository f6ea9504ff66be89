#include <stdexcept>

#include "cuda/pass_parameters.cuh"
#include "cuda/strided.h"
#include "cuda/strided_pass.cuh"
#include "cuda/summed_pass.cuh"

namespace cudaloss::cuda {

namespace {

// T is the arithmetic of the losses and the gradients, A the way operands are read.
template <PassKernel kKernel, class T, class A>
void start(const Pass& r, int form, const PassPlan& plan, const Memory& memory, Stream stream) {
  constexpr int N = pass_vector(kKernel);
  launch_pass<T, A, A, N>(r, plan, plan::kStridedThreads, memory, stream, strided_pass_kernel<Partial<T>, A, N, T>,
                          AnyLoss<T>(r.loss, form, r.numbers));
}

// E: the elements of the operand that is not broadcast.
template <PassKernel kKernel, class E>
void start_summed(const Pass& r, int form, const PassPlan& plan, const Memory& memory, Stream stream) {
  launch_pass<FloatFloat, Stored, Stored, pass_vector(kKernel)>(r, plan, plan::kStridedThreads, memory, stream,
                                                                summed_pass_kernel<is_by_columns(kKernel), E>,
                                                                AnyLoss<FloatFloat>(r.loss, form, r.numbers));
}

}  // namespace

void strided_pass(const Pass& r, int form, const PassPlan& plan, const Memory& memory, Stream stream) {
  using K = PassKernel;
  switch (plan.kernel) {
    case K::SummedRows:
      return start_summed<K::SummedRows, float>(r, form, plan, memory, stream);
    case K::SummedRowsOfHalves:
      return start_summed<K::SummedRowsOfHalves, AnyHalf>(r, form, plan, memory, stream);
    case K::SummedColumns:
      return start_summed<K::SummedColumns, float>(r, form, plan, memory, stream);
    case K::SummedColumnsOfHalves:
      return start_summed<K::SummedColumnsOfHalves, AnyHalf>(r, form, plan, memory, stream);
    case K::StridedFloats:
      return start<K::StridedFloats, FloatFloat, float>(r, form, plan, memory, stream);
    case K::StridedAny:
      return start<K::StridedAny, FloatFloat, Any<float>>(r, form, plan, memory, stream);
    case K::StridedDoubles:
      return start<K::StridedDoubles, double, Any<double>>(r, form, plan, memory, stream);
    default:
      throw std::logic_error("cudaloss: no strided kernel is of whole vectors");
  }
}

}  // namespace cudaloss::cuda
