// What the classes of a row have as their own shares of its loss: how a thread keeps their operand (probabilities or
// class weights), their sums, and a row's results from these.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/rows_contiguous.cuh"

namespace cudaloss::cuda {

constexpr int kShareClasses = 32;  // of a thread in a tile

// The operand of a thread's classes, in shared memory. K: its dtype there.
template <class E, class K, int kThreads>
struct OperandTile {
  static constexpr int n = RowSpan<E>::kVector, kVectors = kShareClasses / n;
  static constexpr int kOfPiece = kVectorBytes / sizeof(K), kPieces = n / kOfPiece;
  static constexpr int kBytes = kThreads * kVectors * kPieces * kVectorBytes;
  using Piece = Vector<K, kOfPiece>;
  Piece* const of_thread;  // kThreads apart

  __device__ __forceinline__ Piece& piece(int i) const { return of_thread[i * kThreads]; }
  __device__ __forceinline__ K& at(int i) const { return piece(i / kOfPiece).element[i % kOfPiece]; }
  // Of vector i.
  __device__ __forceinline__ void get(int i, float (&x)[n]) const {
#pragma unroll
    for (int m = 0; m < kPieces; ++m) {
      const Piece found = piece(i * kPieces + m);
#pragma unroll
      for (int k = 0; k < kOfPiece; ++k) x[m * kOfPiece + k] = widen<float>(found.element[k]);
    }
  }
};

// A class's share as a float, and what its rounding lost.
struct RoundedShare {
  float kept, lost;
};

// Reads the operand of a row's shares. It is fp32 or of the logits' dtype, and so is the weight.
template <class E>
struct OperandReader {
  using N = RowNumber<E>;
  Operand operand;
  int64_t first, stride;  // of the row's elements
  Operand weight;         // of classes, beside probabilities; no data: none
  int64_t weight_stride;
  // A class's share: (1 - s) q + s / C of a probability q, s / C w of a class weight w beside an index.
  Constant<float> slope, each;

  template <class P, class Loss>
  __device__ __forceinline__ OperandReader(const P& p, const Loss& loss, const RowPlace& at)
      : operand(loss.is_soft ? p.target : p.third),
        first(loss.is_soft ? offset(p, at, kTarget) : 0),
        stride(p.class_stride[loss.is_soft ? kTarget : kThird]),
        weight(loss.is_soft ? p.third : Operand()),
        weight_stride(p.class_stride[kThird]),
        slope(loss.is_soft ? loss.share.of_target : loss.share.each),
        each(loss.is_soft ? loss.share.each : Constant<float>{0.0f, 0.0f}) {}

  template <class T>
  __device__ __forceinline__ const T* data() const {
    return static_cast<const T*>(operand.data) + first;
  }
  __device__ __forceinline__ static float number(const Operand& of, int64_t i) {
    const bool is_float = of.dtype == DType::Float32;
    return is_float ? static_cast<const float*>(of.data)[i] : widen<float>(static_cast<const E*>(of.data)[i]);
  }
  __device__ __forceinline__ float operand_at(int32_t j) const { return number(operand, first + j * stride); }
  __device__ __forceinline__ N share_of(float x, int32_t j) const {
    const N product = number_of<N>(slope) * number_of<N>({x, 0.0f});
    const N share = each.hi == 0.0f ? product : gap_between(product, -number_of<N>(each));
    return weight.data ? share * number_of<N>({number(weight, j * weight_stride), 0.0f}) : share;
  }
  __device__ __forceinline__ float share_at(int32_t j) const { return rounded_finite(share_of(operand_at(j), j)); }
  __device__ __forceinline__ RoundedShare weighted_at(int32_t j, Constant<float> factor) const {
    const N exact = share_of(operand_at(j), j) * number_of<N>(factor);
    const float kept = rounded_finite(exact);
    return {kept, (value_of(exact) - kept) + rest_of(exact)};
  }
  // Whether the sum of (largest - x) has a part in the loss.
  __device__ __forceinline__ bool smooths() const { return !weight.data && each.hi != 0.0f; }
  // The row's operand was copied.
  __device__ __forceinline__ void is_at(const Operand& copy, int64_t copy_stride) {
    operand = copy;
    first = 0;
    stride = copy_stride;
  }
  // Starts to load a tile, with 0 outside the row; wait() ends it. vectors: whole ones lie as in the tile.
  template <class Tile>
  __device__ __forceinline__ void load(const RowSpan<E>& span, int32_t from, int shift, bool vectors, bool is_soft,
                                       const Tile& tile) const {
    using K = std::decay_t<decltype(tile.at(0))>;
    const auto is_whole = [&](int32_t j) { return vectors && j >= 0 && span.room(j) >= 0; };
    bool has_more = false;
#pragma unroll
    for (int i = 0; i < Tile::kVectors; ++i) {
      const int32_t j = from + (i << shift);
      has_more |= !is_whole(j);
      if (!is_whole(j)) continue;
#pragma unroll
      for (int m = 0; m < Tile::kPieces; ++m) {
        const K* const piece = data<K>() + j + m * Tile::kOfPiece;
        if (is_soft) {
          __pipeline_memcpy_async(&tile.piece(i * Tile::kPieces + m), piece, kVectorBytes);
        } else {  // Class weights. H200, (2^20, 64) fp32: 0.36 ms; by copies of one address for many threads 3.0.
          tile.piece(i * Tile::kPieces + m) =
              bit_cast<typename Tile::Piece>(__ldca(reinterpret_cast<const uint4*>(piece)));
        }
      }
    }
#pragma unroll 1
    for (int i = 0; has_more && i < Tile::kVectors; ++i) {
      const int32_t j = from + (i << shift);
      if (is_whole(j)) continue;
#pragma unroll 1
      for (int k = 0; k < Tile::n; ++k) {
        tile.at(i * Tile::n + k) = narrow<K>(span.has(j + k) ? operand_at(j + k) : 0.0f);
      }
    }
    __pipeline_commit();
  }
  __device__ __forceinline__ static void wait() { __pipeline_wait_prior(0); }
  // Probabilities with class weights become shares times a factor, rounded; visit(j, lost): what rounding took from
  // class j. All other shares are `slope` times the operand and `each`, which the sums take at their end.
  template <class Tile, class Visit>
  __device__ __forceinline__ void weigh(const RowSpan<E>& span, int32_t from, int shift, Constant<float> factor,
                                        const Tile& tile, const Visit& visit) const {
    if (!weight.data) return;
    using K = std::decay_t<decltype(tile.at(0))>;
#pragma unroll 1
    for (int m = 0; m < Tile::kVectors * Tile::kPieces; ++m) {
      const int32_t begin = m * Tile::kOfPiece, at = from + (begin / Tile::n << shift) + begin % Tile::n;
      typename Tile::Piece piece = {};
#pragma unroll
      for (int k = 0; k < Tile::kOfPiece; ++k) {
        const int32_t j = at + k;
        if (!span.has(j)) continue;
        const RoundedShare share = weighted_at(j, factor);
        piece.element[k] = narrow<K>(share.kept);
        visit(j, share.lost);
      }
      tile.piece(m) = piece;
    }
  }
};

// Over the classes below the largest logit: the sums of their shares, and of share (largest - x). Of the classes with
// the largest logit (in row_staged.cuh only the first of equal ones): the sum of their shares, and their number. In
// fp64 a class needs two operations, in pairs of fp32 nine; and sums of halves' distances do not overflow.
struct ShareSums {
  double shares, below, own;
  int32_t at_max;

  __device__ __forceinline__ ShareSums operator+(const ShareSums& b) const {
    return {shares + b.shares, below + b.below, own + b.own, at_max + b.at_max};
  }
  // From the sums of operands to those of the shares of `classes`; `distance`: the sum of (largest - x).
  template <class Reader>
  __device__ __forceinline__ void take_slope(const Reader& reader, int classes, double distance) {
    if (reader.weight.data) return;
    const auto in_double = [](Constant<float> c) { return double{c.hi} + double{c.lo}; };
    const double slope = in_double(reader.slope), each = in_double(reader.each);
    shares = fused(slope, shares, each * (classes - at_max));
    below = fused(slope, below, each * distance);
    own = fused(slope, own, each * at_max);
  }
};
template <class N>
__device__ __forceinline__ N number_in(double x) {
  return number_of<N>(constant_of(x, float()));
}

// What the threads of a row join.
template <class E>
struct PartWithShares {
  PartSums<E> part;
  ShareSums shares;

  __device__ __forceinline__ PartWithShares joined(Reference own, int lanes) const {
    const auto add = [](const ShareSums& a, const ShareSums& b) { return a + b; };
    return {joined_part<E>(part, own, lanes, false), joined_in_warp(shares, lanes, add)};
  }
};

// The results of a row.
template <class E>
struct RowWithShares {
  using N = RowNumber<E>;
  N hard;          // what a target index adds to the share of its class
  N shares, own;   // of the other classes, and of those with the largest logit
  N all;           // the sum of these
  int32_t at_max;  // how many have the largest logit
  float max, target, z_loss;
  RowSoftmax<E> softmax;
  float ratio;  // from the reference of the others' maximum to the row's
  Constant<float> factor;
  float twice_lse = 0.0f;
  N of_exp;

  template <class Loss>
  __device__ __forceinline__ RowWithShares(const PartWithShares<E>& sums, const Loss& loss, float max, float target,
                                           float class_weight, Constant<float> factor)
      : hard(number_of<N>(loss.hard) * number_of<N>({class_weight, 0.0f})),
        shares(number_in<N>(sums.shares.shares)),
        own(number_in<N>(sums.shares.own)),
        all(plus(plus(shares, own), hard)),
        at_max(sums.shares.at_max),
        max(max),
        target(target),
        z_loss(loss.z_loss),
        softmax(beside_one(sums, max), max),
        ratio(ratio_of(reference_of(sums.part.max), softmax.reference)),
        factor(factor) {
    if (z_loss != 0.0f) {
      N plain;
      float log_all;
      softmax.take_logarithms(plain, log_all);
      twice_lse = 2.0f * z_loss * log_all;
    }
    of_exp = quotient_of(number_of<N>(factor) * loss.sum_with(all, twice_lse), softmax.all, softmax.inverse);
  }
  // The sums beside one class with the largest logit.
  __device__ __forceinline__ static RowSums<E> beside_one(const PartWithShares<E>& sums, float max) {
    RowSums<E> found = {sums.part.max, sums.part.others, 0.0f};
    if (sums.shares.at_max > 1) {
      const Reference reference = reference_of(max);
      const N one = Elements<E>(reference.power).own_exp(max - reference.shift);
      const float more = static_cast<float>(sums.shares.at_max - 1);
      found.others = plus(one * number_of<N>({more, 0.0f}),
                          times_power(found.others, ratio_of(reference_of(found.max), reference)));
      found.max = max;
    }
    return found;
  }
  __device__ __forceinline__ double loss(double below_max) const {
    N plain;
    float log_all;
    softmax.take_logarithms(plain, log_all);
    const N below = plus(number_in<N>(below_max), hard * number_of<N>({max - target, 0.0f}));
    const N both = gap_between(all * plain, -below), z = number_of<N>({-z_loss * log_all * log_all, 0.0f});
    return softmax.is_nan ? double{NAN} : as_double(gap_between(both, z));
  }
  // For exp(x) in the reference of the others' maximum.
  __device__ __forceinline__ Gain gain() const {
    const Gain gain = gain_of<E>(of_exp, 0.0f, 0.0f), not_a_number = {NAN, 0.0f, 0.0f, NAN, 1.0f};
    return softmax.is_nan ? not_a_number : gain.in_reference(ratio);
  }
  // The gradient at a class with the largest logit, from its share,
  __device__ __forceinline__ float at_largest(float share, bool is_target) const {
    N others = shares;
    if (at_max > 1) others = plus(others, plus(own, number_of<N>({-share, 0.0f})));
    if (!is_target) others = plus(others, hard);
    const N raised = gap_between(others, number_of<N>({-twice_lse, 0.0f}));
    return softmax.is_nan ? NAN : rounded(gap_between(number_of<N>(factor) * raised, of_exp * softmax.others));
  }
  // and at the target index if it has another logit.
  __device__ __forceinline__ float at_target(float share) const {
    const N e = Elements<E>(softmax.reference.power).own_exp(target - softmax.reference.shift);
    const N given = plus(hard, number_of<N>({share, 0.0f}));
    return softmax.is_nan ? NAN : rounded(gap_between(of_exp * e, number_of<N>(factor) * given));
  }
};

// The gradient of a class that has not the largest logit, from its exp(x) and what OperandReader read: its operand, or
// with a weight its share times the row's factor.
template <class E>
struct ShareGain {
  Gain gain;
  Constant<float> slope;
  float each;

  __device__ __forceinline__ static ShareGain of(const Gain& gain, const OperandReader<E>& reader,
                                                 Constant<float> factor) {
    if (reader.weight.data) return {gain, {1.0f, 0.0f}, 0.0f};
    return {gain, times(factor, reader.slope), factor.hi * reader.each.hi};
  }
  __device__ __forceinline__ float times_exp(float e, float share) const {
    Gain of_class = gain;
    const bool is_half = sizeof(E) < sizeof(float);
    of_class.share = fused(share, slope.hi, is_half ? each : fused(share, slope.lo, each));
    return of_class.template times<E>(e * gain.before);
  }
};

}  // namespace cudaloss::cuda
