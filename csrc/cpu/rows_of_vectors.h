// The CPU engine for losses of rows of vectors. Included by the source of each such loss, which setup.py writes.
#pragma once

#include <stdexcept>

#include "core/vectors.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

// For a loss of differences: writes u over x, v over z, and w over t, which is read last.
template <class F>
CUDALOSS_MULTIVERSION void make_differences(const F* x, const F* t, const F* z, F eps, int64_t count, F* u, F* v,
                                            F* w) {
  for (int64_t j = 0; j < count; ++j) {
    const F own = x[j], near = t[j], far = z[j];
    u[j] = own - near + eps;
    v[j] = own - far + eps;
    if (w) w[j] = near - far + eps;
  }
}

// The sum of a b, lane by lane: in the same order for every vector width.
template <class F>
CUDALOSS_MULTIVERSION double product_sum(const F* a, const F* b, int64_t count) {
  LaneSums sums = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t j = 0; j < whole; j += kLanes) {
    double terms[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      terms[lane] = static_cast<double>(a[j + lane]) * static_cast<double>(b[j + lane]);
    }
    sums.add<kIsCompensated<F>>(terms);
  }
  if (whole < count) {
    double terms[kLanes] = {};
    for (int64_t j = whole; j < count; ++j) terms[j - whole] = static_cast<double>(a[j]) * static_cast<double>(b[j]);
    sums.add<kIsCompensated<F>>(terms);
  }
  const Sum total = sums.total();
  return rounded(WithRest<double>{total.value, total.rest});
}

// A vector times a power of two, and the factor to multiply that by.
template <class F>
struct Multiple {
  const F* vector;
  F power;
  Constant<F> by;
};

// out = a sum of multiples
template <class F>
CUDALOSS_MULTIVERSION void combine(Multiple<F> a, Multiple<F> b, int64_t count, F* out) {
  for (int64_t j = 0; j < count; ++j) {
    const F u = a.vector[j] * a.power, v = b.vector[j] * b.power;
    out[j] = fused(a.by.hi, u, fused(b.by.hi, v, fused(a.by.lo, u, b.by.lo * v)));
  }
}

template <class F, class Loss>
class VectorGroups {
 public:
  explicit VectorGroups(const Pass& pass) : pass_(pass), loss_(pass.numbers), shape_{false, pass.rows.classes} {}

  int64_t batch() const { return kBlock; }

  void run(int64_t first, int64_t rows, RowScratch<F>& scratch) const {
    if (scratch.tiles.empty()) scratch.tiles.resize(kBuffers * shape_.size());
    for (int64_t row = first; row < first + rows; ++row) {
      VectorSums sums = {};
      VectorRow found = {};
      Vectors vectors = {};
      if (scratch.keep[row]) {
        vectors = vectors_of(row, scratch);
        sums = sums_of(vectors);
        found = loss_.finish(sums, label_of(row, scratch));
      }
      scratch.terms[row] = found.loss;
      const bool is_half = found.uses_w == UsesW::Half, all_w = found.uses_w == UsesW::Yes;
      // A row without a gradient gets no vectors, because 0 times a grad_output of NaN would be NaN.
      if (is_nothing(found)) vectors = {};
      const Part u = {vectors.u, sums.uu}, w = {vectors.w, sums.third}, v = all_w ? w : Part{vectors.v, sums.vv};
      const WithRest<double> factor = {scratch.factors[row], scratch.rests[row]};
      const auto write = [&](const Result& gradient, const Multiples& by, Part a, Part b, int64_t offset, Place place) {
        if (!gradient.data) return;
        write_gradient(gradient, {multiple(a, by.of_u, factor), multiple(b, by.of_v, factor)}, offset,
                       pass_.rows.class_stride[place], scratch);
      };
      write(pass_.grad_input, found.input, u, v, scratch.of_first[row], kResult);
      write(pass_.grad_target, found.target, u, is_half ? w : v, scratch.of_second[row], kSecondResult);
      write(pass_.grad_third, third_of(found), is_half ? w : u, v, scratch.of_last[row], kThirdResult);
    }
  }

 private:
  static constexpr bool kOfDifferences = Loss::kVectors == VectorsOf::Differences;
  static constexpr int kBuffers = 4;  // for input, target, third and a gradient

  struct Vectors {
    const F *u, *v, *w;
  };

  F* buffer(int which, RowScratch<F>& scratch) const { return scratch.tiles.data() + which * shape_.size(); }

  // A row as F: in place if possible, otherwise in `buffer`.
  const F* read(const Operand& operand, int64_t offset, Place place, F* buffer) const {
    const int64_t stride = pass_.rows.class_stride[place], keep = -1;
    if (holds<F>(operand.dtype) && stride == 1) return static_cast<const F*>(operand.data) + offset;
    read_rows(operand, &offset, stride, shape_, 1, &keep, buffer);
    return buffer;
  }

  Vectors vectors_of(int64_t row, RowScratch<F>& scratch) const {
    F *own = buffer(0, scratch), *other = buffer(1, scratch), *third = buffer(2, scratch);
    const F* x = read(pass_.input, scratch.of_input[row], kInput, own);
    const F* t = read(pass_.target, scratch.of_target[row], kTarget, other);
    if constexpr (!kOfDifferences) return {x, t, nullptr};
    const F* z = read(pass_.third, scratch.of_third[row], kThird, third);
    F* const w = loss_.needs_w() ? other : nullptr;
    make_differences(x, t, z, static_cast<F>(pass_.numbers.second), shape_.classes, own, third, w);
    return {own, third, w};
  }

  VectorSums sums_of(const Vectors& vectors) const {
    const int64_t count = shape_.classes;
    VectorSums sums = {product_sum(vectors.u, vectors.u, count), product_sum(vectors.v, vectors.v, count), 0.0};
    if constexpr (!kOfDifferences) sums.third = product_sum(vectors.u, vectors.v, count);
    if (vectors.w) sums.third = product_sum(vectors.w, vectors.w, count);
    return sums;
  }

  double label_of(int64_t row, const RowScratch<F>& scratch) const {
    return !kOfDifferences && Loss::kHasThird ? number_at<double>(pass_.third, scratch.of_third[row]) : 0.0;
  }

  // u, v or w, with the sum of its squares.
  struct Part {
    const F* vector;
    double square;
  };
  Multiple<F> multiple(const Part& part, double by, WithRest<double> factor) const {
    const NormPower of = norm_power(part.square);
    const double product = fused(by, factor.value, by * factor.rest);
    return {part.vector, static_cast<F>(of.power), constant_of(product * of.back, F())};
  }

  void write_gradient(const Result& gradient, const Multiple<F> (&sum)[2], int64_t offset, int64_t stride,
                      RowScratch<F>& scratch) const {
    const bool in_place = holds<F>(gradient.dtype) && stride == 1;
    F* const out = in_place ? static_cast<F*>(gradient.data) + offset : buffer(3, scratch);
    if (!sum[0].vector || (sum[0].by.hi == F(0) && sum[1].by.hi == F(0))) {
      std::fill(out, out + shape_.classes, F(0));
    } else {
      combine(sum[0], sum[1], shape_.classes, out);
    }
    if (!in_place) write_rows(gradient, &offset, stride, shape_, 1, out);
  }

  const Pass& pass_;
  const Loss loss_;
  const TileShape shape_;
};

template <class Loss>
void vectors_pass(const Pass& r, ParallelFor parallel_for) {
  if (r.segments.count() * r.inner.count() > 0 && Loss::kHasThird != (r.third.data != nullptr))
    throw std::logic_error(kOtherThird);
  if (wants_float64(r)) {
    return run_rows<double>(r, VectorGroups<double, Loss>(r), r.rows.classes, parallel_for);
  }
  run_rows<float>(r, VectorGroups<float, Loss>(r), r.rows.classes, parallel_for);
}

}  // namespace cudaloss::cpu
