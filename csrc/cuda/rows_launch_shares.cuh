// The launches of the kernels for rows of fp32 and halves whose classes have shares of their own in the loss:
// probabilities as targets, or class weights with label smoothing. Host code.
#pragma once

#include "cuda/rows_launch.cuh"
#include "cuda/rows_with_shares.cuh"

namespace cudaloss::cuda {

// Few classes with shares of their own, of any strides. H200, steps with probabilities of (16, 19, 512, 512) fp32 and
// bf16: 0.53 and 0.45 ms, in the kernel for any row 2.51 and 2.34 (eager 1.13 and 0.82). More classes with the rows
// side by side too, while they fit on the chip: (4, 150, 256, 256) fp32 1.0 ms, there 1.5 (eager 0.68).
constexpr int kFewShares = 32;
template <class E>
int64_t staged_bytes(const Pass& r) {
  return kSingleThreads * r.rows.classes * (sizeof(E) + sizeof(float));
}
template <class E, class Loss>
void single_with_shares(const Pass& r, const typename Loss::InFloat& loss, bool dense, const Memory& memory,
                        Stream stream) {
  const int64_t beside_bytes = loss.is_soft ? r.rows.classes * size_of(r.target.dtype) : 0;
  const int64_t row_bytes = r.rows.classes * sizeof(E) + beside_bytes;
  if (dense && kStages * kSingleThreads * row_bytes <= shared_memory_of(1)) {  // otherwise too much for capability 7.5
    return single_dense<E, kFewShares, RowKind::WithShares, Loss>(r, loss, beside_bytes, memory, stream);
  }
  launch_rows(r, rows_of_strided_shares<E, Loss>, kSingleThreads, kSingleThreads, static_cast<int>(staged_bytes<E>(r)),
              memory, stream, loss);
}

// Rows of whole vectors of halves, with shares of their own, that fit in the registers of 128 threads. H200, bf16 steps
// with probabilities of (16384, 8192) and (131072, 1000): 0.37 and 0.43 ms, in rows_with_shares 0.36 and 0.55; with
// class weights and label smoothing 0.27 and 0.28, there 0.38 and 0.58.
template <class E, class Loss>
bool half_rows_with_shares(const Pass& r, const typename Loss::InFloat& loss, const RowLayout& layout,
                           const Memory& memory, Stream stream) {
  constexpr int64_t n = kVectorBytes / sizeof(E);
  if (!layout.aligned || r.rows.classes % n != 0) return false;
  if (loss.is_soft && (r.target.dtype != r.input.dtype || !lies_in_vectors(r, r.target.data, kTarget, n))) return false;
  if (r.third.data && (r.third.dtype != DType::Float32 || !lies_in_vectors(r, r.third.data, kThird, n))) return false;
  const ContiguousLauncher<E, Loss, RowKind::WithShares> rows = {r, loss, layout, memory, stream};
  if (rows.vectors() > 32 * kRowVectors) return rows.template fits<128, 5>();
  rows.template in_warps<5>();
  return true;
}

// Rows of contiguous classes that have shares of their own, whose operand has the dtype K. H200, steps with
// probabilities: (32768, 4096) fp32 takes 0.57 ms, in the kernel for halves 0.89. In the kernel for any row, and here:
// (131072, 1001) fp32 3.99 and 0.87 ms, (1024, 128256) 4.9 and 0.8, (2048, 128256) bf16 10.1 and 0.8. (131072, 1001)
// bf16: 0.73, with a block for each row 3.37.
template <class E, class K, class Loss>
void contiguous_with_shares(const ContiguousLauncher<E, Loss>& to, bool are_vectors) {
  constexpr bool kIsFloat = sizeof(E) == sizeof(float);
  constexpr int kVectors = kShareClasses / ContiguousLauncher<E, Loss>::n;
  const int64_t vectors = to.vectors();
  const auto launch = [&](auto kernel, auto lanes, int rows_a_block, int threads, int bytes) {
    launch_rows(to.r, kernel, rows_a_block, threads, bytes, to.memory, to.stream, to.loss, lanes, to.ragged(),
                are_vectors);
  };
  if (vectors <= 32 * kVectors) {
    int shift = 1;
    while (vectors > kVectors << shift) ++shift;
    launch(rows_with_shares<E, K, 0, false, 128, 4, Loss>, RowLanes<0>{shift}, 128 >> shift, 128,
           OperandTile<E, K, 128>::kBytes);
    return;
  }
  if constexpr (kIsFloat) {
    if (vectors <= 128 * kVectors) {
      return launch(rows_with_shares<E, K, 128, false, 128, 5, Loss>, RowLanes<128>(), 1, 128,
                    OperandTile<E, K, 128>::kBytes);
    }
  }
  constexpr int kBlocks = kIsFloat ? 2 : 3;
  launch(rows_with_shares<E, K, 256, true, 256, kBlocks, Loss>, RowLanes<256>(), 1, 256,
         OperandTile<E, K, 256>::kBytes);
}

template <class E, class Loss>
bool fast_rows_with_shares(const Pass& r, const Memory& memory, Stream stream) {
  constexpr int n = kVectorBytes / sizeof(E);
  const RowLayout layout = layout_of<E>(r);
  const bool is_soft = is_floating(r.target.dtype), weighs = is_soft && r.third.data;
  const auto is_readable = [&](const Operand& x) {
    return !x.data || !is_floating(x.dtype) || x.dtype == DType::Float32 || x.dtype == r.input.dtype;
  };
  if (!is_readable(r.target) || !is_readable(r.third)) return false;
  const typename Loss::InFloat loss(Loss(r), static_cast<double>(r.rows.classes), is_soft);
  if constexpr (n > 4) {
    // A step of bf16 (2^20, 32) takes 0.17 ms so, with a thread a row 0.22; (2^21, 16) 0.26 and 0.24.
    if (r.rows.classes > 16 && half_rows_with_shares<E, Loss>(r, loss, layout, memory, stream)) return true;
  }
  // As in general_lanes_shift, a thread a row needs many rows, if they are not short.
  const bool are_many = layout.across && r.inner.count() * r.segments.count() >= 4096;
  if (r.rows.classes <= kFewShares || (are_many && staged_bytes<E>(r) <= shared_memory_of(1))) {
    single_with_shares<E, Loss>(r, loss, layout.dense, memory, stream);
    return true;
  }
  if (!layout.vectors) return false;
  const ContiguousLauncher<E, Loss> to = {r, loss, layout, memory, stream};
  const Operand& operand = is_soft ? r.target : r.third;
  const Place place = is_soft ? kTarget : kThird;
  const bool is_float = operand.dtype == DType::Float32;
  const bool is_aligned = operand.dtype == r.input.dtype || is_at_vector(operand.data);
  const bool are_vectors = (!to.ragged() && lies_in_vectors(r, operand.data, place, n)) ||
                           (is_soft && is_aligned && lies_like_input(r, operand.data, place, n));
  // In shared memory probabilities are as they came; class weights, and what comes from these, are fp32.
  if (is_float || weighs) {
    contiguous_with_shares<E, float>(to, are_vectors && is_float);
  } else {
    contiguous_with_shares<E, E>(to, are_vectors);
  }
  return true;
}

}  // namespace cudaloss::cuda
