// A row of few classes in the registers of a thread.
#pragma once

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

constexpr int kSingleThreads = 128;  // of a block; each has a row

// A row in x, in one thread; its exponentials replace it there. Classes are visited two at a time: each branch of two
// leaves the loop. Slot j has class (j + rotation) % classes.
template <class E, int kClasses>
struct SingleRow {
  float x[kClasses];

  template <class Visit>
  __device__ __forceinline__ void each(int32_t classes, const Visit& visit) {
#pragma unroll
    for (int j = 0; j < kClasses; j += 2) {
      if (j >= classes) break;
      visit(j, x[j]);
      visit(j + 1, x[j + 1]);
    }
  }
  __device__ __forceinline__ static bool has(int j, int32_t classes) { return j % 2 == 0 || j < classes; }

  // From the row's place in global memory, `step` from class to class.
  __device__ __forceinline__ void load(const E* row, int64_t step, int32_t classes) {
    each(classes, [&](int j, float& v) {
      v = -INFINITY;
      if (has(j, classes)) v = widen<float>(row[j * step]);
    });
  }
  template <class Make>
  __device__ __forceinline__ void store(E* row, int64_t step, int32_t classes, const Make& make) {
    each(classes, [&](int j, float& v) {
      if (has(j, classes)) row[j * step] = narrow<E>(make(v));
    });
  }
  // From shared memory; four classes at a time if they are whole vectors of four. Returns the largest logit.
  __device__ __forceinline__ static int32_t rotated(int32_t j, int32_t rotation, int32_t classes) {
    return j + rotation < classes ? j + rotation : j + rotation - classes;
  }
  __device__ __forceinline__ float load_shared(const E* row, int32_t rotation, int32_t classes) {
    float max = -INFINITY;
    if (classes % 4 == 0) {
#pragma unroll
      for (int j = 0; j < kClasses; j += 4) {
        if (j >= classes) break;
        const auto four = *reinterpret_cast<const Vector<E, 4>*>(row + rotated(j, rotation, classes));
#pragma unroll
        for (int k = 0; k < 4; ++k) max = max_or_nan(max, x[j + k] = widen<float>(four.element[k]));
      }
      return max;
    }
    each(classes, [&](int j, float& v) {
      v = -INFINITY;
      if (has(j, classes)) v = widen<float>(row[j]);
      max = max_or_nan(max, v);
    });
    return max;
  }
  template <class Make>
  __device__ __forceinline__ void store_shared(E* row, int32_t rotation, int32_t classes, const Make& make) {
    if (classes % 4 != 0) return store(row, 1, classes, make);
#pragma unroll
    for (int j = 0; j < kClasses; j += 4) {
      if (j >= classes) break;
      Vector<E, 4> four;
#pragma unroll
      for (int k = 0; k < 4; ++k) four.element[k] = narrow<E>(make(x[j + k]));
      *reinterpret_cast<Vector<E, 4>*>(row + rotated(j, rotation, classes)) = four;
    }
  }
  // Takes the target's logit out of the others. Returns the largest of these.
  __device__ __forceinline__ float hide(int32_t slot, int32_t classes, float& target) {
    float max = -INFINITY;
    each(classes, [&](int j, float& v) {
      target = select(j == slot, v, target);
      v = select(j == slot, -INFINITY, v);
      max = max_or_nan(max, v);
    });
    return max;
  }

  // The row's loss, and the factors of its gradients; its logits become exponentials. They are without the target's,
  // and `max` is the largest. slot: of the target, or -1 if the row is not read.
  template <class Loss>
  __device__ __forceinline__ double take(const RowParameters<double>& p, const Loss& loss, RowFactor<float>& factor,
                                         Task<float>& task, int32_t slot, float target, float max, Gain& gain) {
    if (slot < 0) return take_none(p.classes, task.counts, gain);
    RowSums<E> sums = {max, {}, 0.0f};
    if (loss.smooths) {
      const float base = select(target == -INFINITY, 0.0f, target);
      each(p.classes, [&](int j, float& v) { sums.below += select(j < p.classes && j != slot, base - v, 0.0f); });
      if (target == -INFINITY) sums.below = INFINITY;
    }
    const Reference reference = reference_of(max);
    if (reference.shift != 0.0f) each(p.classes, [&](int, float& v) { v -= reference.shift; });
    sums.others = to_exp(p.classes, Elements<E>(reference.power));
    read_factors(p, factor, task);
    const bool has_gradient = p.grad_input.data;
    const double of_row = finish_row<E>(loss, sums, target, task.class_weight, task.factor, true, has_gradient, gain);
    if (has_gradient && gain.before != 1.0f) each(p.classes, [&](int, float& e) { e *= gain.before; });
    return of_row;
  }
  // The same for a row without options; false if it must be taken as any other, from its logits.
  __device__ __forceinline__ bool take_near(int32_t classes, float target, float max, Constant<float> factor,
                                            bool has_gradient, double& of_row, Gain& gain) {
    using Near = NearRow<E>;
    if (!Near::is(max, target)) return false;
    const Elements<E> elements = Near::elements(max);
    const Near near(elements, to_exp(classes, elements), target);
    if (has_gradient && !near.take_gain(number_of<typename Near::N>(factor), gain)) return false;
    of_row = finite_in_double(near.loss());
    return true;
  }
  // A row that is not read.
  __device__ __forceinline__ double take_none(int32_t classes, bool counts, Gain& gain) {
    const float unread = without_target(counts);
    each(classes, [&](int, float& v) { v = 0.0f; });
    gain = {0.0f, 0.0f, -unread, unread, 1.0f};
    return unread;
  }
  __device__ __forceinline__ RowNumber<E> to_exp(int32_t classes, const Elements<E>& elements) {
    typename Elements<E>::Sum of_exp;
    each(classes, [&](int, float& v) { v = of_exp.add_own(elements, v); });
    return of_exp.total();
  }
};

}  // namespace cudaloss::cuda
