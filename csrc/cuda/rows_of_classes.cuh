// The CUDA engine for losses that read all classes of a row: chooses the kernel for the sizes and strides of a Pass.
// Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/engine.h"
#include "cuda/rows_contiguous.cuh"
#include "cuda/rows_general.cuh"
#include "cuda/rows_single.cuh"
#include "cuda/rows_with_shares.cuh"

namespace cudaloss::cuda {

// ---- any row -----------------------------------------------------------------------------------------------

template <class F, class Loss>
void general_rows(const Pass& r, const Memory& memory, Stream stream) {
  GeneralParameters<F> g = {};
  auto p = row_parameters<Partial<F>>(r);
  g.lanes_shift = general_lanes_shift(r);
  g.probabilities = is_floating(r.target.dtype);
  start_rows(r, p, kGeneralThreads >> g.lanes_shift, memory, stream, [&](Start start, int64_t blocks) {
    g.rows = p;
    launch(rows_in_general<F, Loss>, start, blocks, kGeneralThreads, stream, g, Loss(r));
  });
}

// ---- rows of fp32 and halves ------------------------------------------------------------------

template <class Kernel, class... Arguments>
void launch_rows(const Pass& r, Kernel kernel, int64_t rows_a_block, int threads, int shared_bytes,
                 const Memory& memory, Stream stream, const Arguments&... arguments) {
  auto p = row_parameters<double>(r);
  start_rows(r, p, rows_a_block, memory, stream, [&](Start start, int64_t blocks) {
    launch_with_shared(kernel, start, blocks, threads, shared_bytes, stream, p, arguments...);
  });
}

// The memory layout of a pass's rows.
struct RowLayout {
  bool vectors;  // classes contiguous; each one at the same place in 16 bytes in input and gradient
  bool aligned;  // these 16 bytes begin with each row
  bool dense;    // no gaps between the rows, in order
  bool across;   // rows side by side, classes far apart
};
template <class E>
RowLayout layout_of(const Pass& r) {
  constexpr int64_t n = kVectorBytes / sizeof(E);
  const bool gradient = r.grad_input.data != nullptr;
  const auto input = reinterpret_cast<uintptr_t>(r.input.data), first = reinterpret_cast<uintptr_t>(r.grad_input.data);
  const auto is_dense = [&](Place place) {
    int64_t expected = r.rows.classes;
    for (const Dims* dims : {&r.inner, &r.segments}) {
      for (int d = 0; d < dims->rank; ++d) {
        if (dims->size[d] != 1 && dims->stride[d][place] != expected) return false;
        expected *= dims->size[d];
      }
    }
    return r.rows.class_stride[place] == 1 || r.rows.classes == 1;
  };
  RowLayout layout = {};
  layout.vectors =
      r.rows.class_stride[kInput] == 1 && input % sizeof(E) == 0 && lies_like_input(r, r.grad_input.data, kResult, n);
  layout.aligned = layout.vectors && lies_in_vectors(r, r.input.data, kInput, n);
  layout.dense =
      input % kVectorBytes == 0 && is_dense(kInput) && (!gradient || (first % kVectorBytes == 0 && is_dense(kResult)));
  layout.across = r.inner.rank > 0 && r.inner.stride[0][kInput] == 1 && r.rows.class_stride[kInput] >= 32 &&
                  (!gradient || r.inner.stride[0][kResult] == 1);
  return layout;
}

// A warp of rows_through_shared takes up to this many tiles, once so many warps have one. A tile has up to 8 rows a
// lane, in so many bytes: 26 KB for a block, so that 8 fit on a processor.
constexpr int64_t kWarpsWanted = 32 * plan::kPersistentBlocks, kTilesOfAWarp = 16, kBytesOfALane = 104;

// Whether nothing of a row is optional: a reduced loss without options, over dense int64 targets.
template <class Loss>
bool has_usual_rows(const Pass& r, const typename Loss::InFloat& loss) {
  return loss.is_plain && !r.selection.mask.data && !r.selection.weight.data && !r.third.data && !r.losses.data &&
         r.reduction.data && r.segments.count() == 1 && r.target.dtype == DType::Int64 &&
         is_linear(r.segments, r.inner, kTarget) && !varies(r.inner, kGradOutput);
}

template <class E, int kClasses, bool kUsual, class Loss>
void single(const Pass& r, const typename Loss::InFloat& loss, bool dense, const Memory& memory, Stream stream) {
  if (!dense) {
    return launch_rows(r, rows_of_strided_classes<E, kClasses, kUsual, Loss>, kSingleThreads, kSingleThreads, 0, memory,
                       stream, loss);
  }
  const int64_t all = r.inner.count() * r.segments.count();
  const int64_t row_bytes = r.rows.classes * sizeof(E) + (kUsual ? sizeof(int64_t) : 0);
  const int64_t fit = std::clamp<int64_t>(kBytesOfALane / std::max<int64_t>(row_bytes, 1), 1, 8);
  const int64_t of_a_lane = std::clamp<int64_t>(all / (32 * kWarpsWanted), 1, fit);
  const int64_t of_a_warp = std::clamp<int64_t>(all / (32 * of_a_lane * kWarpsWanted), 1, kTilesOfAWarp);
  launch_rows(r, rows_through_shared<E, kClasses, kUsual, Loss>, kSingleThreads * of_a_lane * of_a_warp, kSingleThreads,
              static_cast<int>(kStages * kSingleThreads * of_a_lane * row_bytes), memory, stream, loss,
              static_cast<int>(of_a_lane));
}
template <class E, int kClasses, class Loss>
bool single(const Pass& r, const typename Loss::InFloat& loss, bool dense, const Memory& memory, Stream stream) {
  if (r.rows.classes > kClasses) return false;
  if (has_usual_rows<Loss>(r, loss)) {
    single<E, kClasses, true, Loss>(r, loss, dense, memory, stream);
  } else {
    single<E, kClasses, false, Loss>(r, loss, dense, memory, stream);
  }
  return true;
}

// Rows of contiguous classes. A thread keeps 8 vectors of 16 bytes. A block has its rows once (up to 120 K blocks,
// except if it checks gradients that mostly stay unchanged): the next block's loads start while this one ends. Share of
// the floor (bytes that must move at the speed of torch.add), H200, fp32 steps of (2^21, 64), (524288, 256), (65536,
// 1024), (32768, 4096) in graphs: 0.72, 0.79, 0.76, 0.85. With the kernels for rows with options, which ask for each
// row what it has, 0.60, 0.72, 0.68, 0.75; with a number of lanes that only the host knows 0.62, 0.74, 0.71, 0.86; with
// the next row's loads in flight through shared memory, and 4,096 blocks, 0.52, 0.63, 0.60, 0.71.
template <class E, class Loss, RowKind kKind = RowKind::Plain>
struct ContiguousLauncher {
  const Pass& r;
  const typename Loss::InFloat& loss;
  const RowLayout& layout;
  const Memory& memory;
  Stream stream;

  static constexpr int n = kVectorBytes / sizeof(E);
  int64_t vectors() const { return plan::ceil_div(r.rows.classes + (layout.aligned ? 0 : n - 1), n); }
  bool ragged() const { return !layout.aligned || r.rows.classes % n != 0; }

  // Some lanes of a warp for each row.
  template <int kBlocks>
  void in_warps() const {
    int shift = 1;
    while (vectors() > kRowVectors << shift) ++shift;
    const auto start = [&](auto lanes) {
      constexpr int kLanes = decltype(lanes)::value;
      launch_rows(r, rows_of_contiguous_classes<E, kLanes, kRowVectors, kKind, 128, kBlocks, Loss>, 128 >> shift, 128,
                  0, memory, stream, loss, RowLanes<kLanes>{shift}, ragged(), 0);
    };
    if constexpr (kKind == RowKind::Usual) {
      switch (shift) {
        case 1:
          return start(std::integral_constant<int, 2>());
        case 2:
          return start(std::integral_constant<int, 4>());
        case 3:
          return start(std::integral_constant<int, 8>());
        case 4:
          return start(std::integral_constant<int, 16>());
        default:
          return start(std::integral_constant<int, 32>());
      }
    } else {
      start(std::integral_constant<int, 0>());
    }
  }
  template <int kThreads, int kBlocks>
  bool fits() const {
    if (vectors() > kRowVectors * kThreads) return false;
    launch_rows(r, rows_of_contiguous_classes<E, kThreads, kRowVectors, kKind, kThreads, kBlocks, Loss>, 1, kThreads, 0,
                memory, stream, loss, RowLanes<kThreads>(), ragged(), 0);
    return true;
  }
  // False: a row does not fit in the registers of a block. Few rows have a block each: a step of (64, 1000) fp32 then
  // takes 6.4 us, with 16 lanes for each row 9.0.
  bool in_registers() const {
    const bool are_few = r.inner.count() * r.segments.count() <= plan::kFewRows && r.rows.classes > 128;
    if (vectors() > 32 * kRowVectors || are_few) return fits<128, 7>() || fits<256, 3>() || fits<512, 2>();
    in_warps<6>();
    return true;
  }
  // Tiles of 4 vectors a thread: those that do not fit in shared memory are read twice.
  template <int kThreads, int kBlocks, RowKind kTiledKind = RowKind::Tiled>
  void in_tiles() const {
    constexpr int kTileVectors = 4, kTileBytes = kTileVectors * kThreads * kVectorBytes;
    const int64_t tiles = plan::ceil_div(vectors() * kVectorBytes, kTileBytes);
    const int64_t fit = r.grad_input.data ? shared_memory_of(kBlocks) / kTileBytes : 0;
    const int kept = static_cast<int>(std::min(tiles - 1, fit));
    launch_rows(r, rows_of_contiguous_classes<E, kThreads, kTileVectors, kTiledKind, kThreads, kBlocks, Loss>, 1,
                kThreads, kept * kTileBytes, memory, stream, loss, RowLanes<kThreads>(), ragged(), kept);
  }
};

// Rows of a part have one kernel for each dtype, to keep the binary small: short ones go to the general kernel.
template <class E, class Loss>
bool fast_parts(const Pass& r, const Memory& memory, Stream stream) {
  const RowLayout layout = layout_of<E>(r);
  if (!layout.vectors || r.rows.classes <= 1024) return false;
  const typename Loss::InFloat loss(Loss(r), static_cast<double>(r.rows.classes));
  ContiguousLauncher<E, Loss>{r, loss, layout, memory, stream}.template in_tiles<512, 2>();
  return true;
}

template <class E, class Loss>
bool fast_rows(const Pass& r, const Memory& memory, Stream stream) {
  const RowLayout layout = layout_of<E>(r);
  const typename Loss::InFloat loss(Loss(r), static_cast<double>(r.rows.classes));
  if (layout.dense || layout.across) {
    if (single<E, 16, Loss>(r, loss, layout.dense, memory, stream)) return true;
    if (single<E, 32, Loss>(r, loss, layout.dense, memory, stream)) return true;
  }
  if (!layout.vectors) return false;
  const ContiguousLauncher<E, Loss, RowKind::Usual> usual = {r, loss, layout, memory, stream};
  const bool is_usual = has_usual_rows<Loss>(r, loss) && !usual.ragged();
  if (is_usual && usual.in_registers()) return true;
  const ContiguousLauncher<E, Loss> rows = {r, loss, layout, memory, stream};
  if (!is_usual && rows.in_registers()) return true;
  // With two blocks on a processor a row of 128 KB fits on the chip, with one a row of 256 KB.
  if (rows.vectors() * kVectorBytes <= 128 * 1024) {
    rows.template in_tiles<512, 2>();
  } else {
    rows.template in_tiles<1024, 1>();
  }
  return true;
}

// Rows of whole vectors of halves, with shares of their own, that fit in the registers of 128 threads. H200, bf16 steps
// with probabilities of (16384, 8192) and (131072, 1000): 0.37 and 0.43 ms, in rows_with_shares 0.36 and 0.54; with
// class weights and label smoothing 0.27 and 0.28, there 0.38 and 0.59.
template <class E, class Loss>
bool half_rows_with_shares(const Pass& r, const typename Loss::InFloat& loss, const RowLayout& layout,
                           const Memory& memory, Stream stream) {
  constexpr int64_t n = kVectorBytes / sizeof(E);
  if (!layout.aligned || r.rows.classes % n != 0) return false;
  if (loss.is_soft && !lies_in_vectors(r, r.target.data, kTarget, n)) return false;
  if (r.third.data && !lies_in_vectors(r, r.third.data, kThird, n)) return false;
  const ContiguousLauncher<E, Loss, RowKind::WithShares> rows = {r, loss, layout, memory, stream};
  if (rows.vectors() > 32 * kRowVectors) return rows.template fits<128, 5>();
  rows.template in_warps<5>();
  return true;
}

// Rows of contiguous classes that have shares of their own. H200, steps with probabilities: (32768, 4096) fp32 takes
// 0.58 ms, in the kernel for halves 0.89. In the kernel for any row, and here: (131072, 1001) fp32 3.99 and 0.83 ms,
// (2^22, 10) 10.7 and 1.2, (1024, 128256) 4.9 and 0.8, (2048, 128256) bf16 10.1 and 0.8.
template <class E, class Loss>
bool fast_rows_with_shares(const Pass& r, const Memory& memory, Stream stream) {
  constexpr int n = kVectorBytes / sizeof(E), kVectors = kShareClasses / n;
  const RowLayout layout = layout_of<E>(r);
  const bool is_soft = is_floating(r.target.dtype), weighs = is_soft && r.third.data;
  if (!layout.vectors || (r.third.data && r.third.dtype != DType::Float32)) return false;
  const bool is_mixed = is_soft && r.target.dtype != r.input.dtype;
  if (is_mixed && (n == 4 || r.target.dtype != DType::Float32)) return false;
  const typename Loss::InFloat loss(Loss(r), static_cast<double>(r.rows.classes), is_soft);
  if constexpr (n > 4) {
    if (!is_mixed && half_rows_with_shares<E, Loss>(r, loss, layout, memory, stream)) return true;
  }
  const ContiguousLauncher<E, Loss> rows = {r, loss, layout, memory, stream};
  const bool are_whole = !rows.ragged() && (is_soft ? lies_in_vectors(r, r.target.data, kTarget, n)
                                                    : lies_in_vectors(r, r.third.data, kThird, n));
  const bool is_aligned = reinterpret_cast<uintptr_t>(r.target.data) % kVectorBytes == 0;
  const bool are_like_input = is_soft && (!is_mixed || is_aligned) && lies_like_input(r, r.target.data, kTarget, n);
  const auto launch = [&](auto kernel, auto lanes, int rows_a_block, int threads, int bytes, bool vectors) {
    launch_rows(r, kernel, rows_a_block, threads, bytes, memory, stream, loss, lanes, rows.ragged(), vectors);
  };
  const bool vectors = are_whole || are_like_input;
  if constexpr (n > 4) {
    // A block takes 9 us for a row of up to 8,192 halves: (131072, 1000) with fp32 probabilities 2.98 ms. Up to 512
    // classes, which half_rows_with_shares has not taken, are faster in the kernel for any row.
    if (rows.vectors() <= 64) return false;
    // In shared memory probabilities are as they came; class weights, and what comes from these, are fp32.
    if (is_soft && !weighs && !is_mixed) {
      launch(rows_with_shares<E, E, 256, true, 256, 3, Loss>, RowLanes<256>(), 1, 256, OperandTile<E, E, 256>::kBytes,
             vectors);
    } else {
      launch(rows_with_shares<E, float, 256, true, 256, 3, Loss>, RowLanes<256>(), 1, 256,
             OperandTile<E, float, 256>::kBytes, vectors && (is_mixed || !is_soft));
    }
  } else if (rows.vectors() <= 32 * kVectors) {
    int shift = 1;
    while (rows.vectors() > kVectors << shift) ++shift;
    launch(rows_with_shares<E, E, 0, false, 128, 4, Loss>, RowLanes<0>{shift}, 128 >> shift, 128,
           OperandTile<E, E, 128>::kBytes, vectors);
  } else if (rows.vectors() <= 128 * kVectors) {
    launch(rows_with_shares<E, E, 128, false, 128, 5, Loss>, RowLanes<128>(), 1, 128, OperandTile<E, E, 128>::kBytes,
           vectors);
  } else {
    launch(rows_with_shares<E, E, 256, true, 256, 2, Loss>, RowLanes<256>(), 1, 256, OperandTile<E, E, 256>::kBytes,
           vectors);
  }
  return true;
}

// Rows with a softcap. H100, step of (32768, 4096) fp32 and (16384, 8192) bf16: 0.48 and 0.28 ms (0.39 and 0.20 without
// a softcap; 5.4 ms in fp32 in the general kernel).
template <class E, class Loss>
bool fast_rows_with_softcap(const Pass& r, const Memory& memory, Stream stream) {
  const RowLayout layout = layout_of<E>(r);
  if (!layout.vectors || r.rows.softcap < kLeastCap || r.rows.softcap > kMostCap) return false;
  const typename Loss::InFloat loss(Loss(r), static_cast<double>(r.rows.classes));
  const ContiguousLauncher<E, Loss, RowKind::Capped> rows = {r, loss, layout, memory, stream};
  if (rows.vectors() <= 32 * kRowVectors) {
    rows.template in_warps<6>();
  } else if (!rows.template fits<128, 6>()) {
    rows.template in_tiles<1024, 1, RowKind::CappedTiled>();
  }
  return true;
}

// Whether each class has a share of its own in a row's loss.
template <class Loss>
bool has_shares(const Pass& r) {
  return is_floating(r.target.dtype) || (r.third.data && Loss(r).smoothing != 0.0);
}

template <class E, class Loss>
bool fast_pass(const Pass& r, const Memory& memory, Stream stream) {
  if constexpr (Loss::kIsPart) {
    return r.rows.softcap == 0.0 && fast_parts<E, Loss>(r, memory, stream);
  } else {
    if (r.rows.softcap == 0.0) {
      return has_shares<Loss>(r) ? fast_rows_with_shares<E, Loss>(r, memory, stream)
                                 : fast_rows<E, Loss>(r, memory, stream);
    }
    return !has_shares<Loss>(r) && fast_rows_with_softcap<E, Loss>(r, memory, stream);
  }
}

template <class Loss>
bool is_fast(const Pass& r) {
  return !r.grad_target.data && (!r.grad_input.data || r.grad_input.dtype == r.input.dtype);
}

template <class Loss>
void classes_pass(const Pass& r, const Memory& memory, Stream stream) {
  if (wants_float64_rows(r)) return general_rows<double, Loss>(r, memory, stream);
  if (is_fast<Loss>(r)) {
    bool done = false;
    switch (r.input.dtype) {
      case DType::Float32:
        done = fast_pass<float, Loss>(r, memory, stream);
        break;
      case DType::Float16:
        done = fast_pass<Half, Loss>(r, memory, stream);
        break;
      case DType::BFloat16:
        done = fast_pass<BFloat16, Loss>(r, memory, stream);
        break;
      default:
        break;
    }
    if (done) return;
  }
  general_rows<float, Loss>(r, memory, stream);
}

}  // namespace cudaloss::cuda
