// How rows of fp32 and halves lie in memory, and the launches of the kernels for few and for contiguous classes. Host
// code.
#pragma once

#include "cuda/engine.h"
#include "cuda/rows_contiguous.cuh"
#include "cuda/rows_single.cuh"

namespace cudaloss::cuda {

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
inline bool is_at_vector(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }
template <class E>
RowLayout layout_of(const Pass& r) {
  constexpr int64_t n = kVectorBytes / sizeof(E);
  const bool gradient = r.grad_input.data != nullptr;
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
  layout.vectors = r.rows.class_stride[kInput] == 1 && reinterpret_cast<uintptr_t>(r.input.data) % sizeof(E) == 0 &&
                   lies_like_input(r, r.grad_input.data, kResult, n);
  layout.aligned = layout.vectors && lies_in_vectors(r, r.input.data, kInput, n);
  const bool is_soft = is_floating(r.target.dtype);
  layout.dense = is_at_vector(r.input.data) && is_dense(kInput) &&
                 (!gradient || (is_at_vector(r.grad_input.data) && is_dense(kResult))) &&
                 (!is_soft || (is_at_vector(r.target.data) && is_dense(kTarget)));
  layout.across = r.inner.rank > 0 && r.inner.stride[0][kInput] == 1 && r.rows.class_stride[kInput] >= 32 &&
                  (!gradient || r.inner.stride[0][kResult] == 1);
  return layout;
}

// A warp of rows_through_shared takes up to this many tiles, once so many warps have one. A tile has up to 8 rows a
// lane, in so many bytes (26 KB for a block, so that 8 fit on a processor), or one row, if that has more.
constexpr int64_t kWarpsWanted = 32 * plan::kPersistentBlocks, kTilesOfAWarp = 16, kBytesOfALane = 104;

// Whether nothing of a row is optional: a reduced loss without options, over dense int64 targets.
template <class Loss>
bool has_usual_rows(const Pass& r, const typename Loss::InFloat& loss) {
  return loss.is_plain && !r.selection.mask.data && !r.selection.weight.data && !r.third.data && !r.losses.data &&
         r.reduction.data && r.segments.count() == 1 && r.target.dtype == DType::Int64 &&
         is_linear(r.segments, r.inner, kTarget) && !varies(r.inner, kGradOutput);
}

// beside_bytes: what comes beside a row's logits.
template <class E, int kClasses, RowKind kKind, class Loss>
void single_dense(const Pass& r, const typename Loss::InFloat& loss, int64_t beside_bytes, const Memory& memory,
                  Stream stream) {
  const int64_t all = r.inner.count() * r.segments.count();
  const int64_t row_bytes = r.rows.classes * sizeof(E) + beside_bytes;
  const int64_t fit = std::clamp<int64_t>(kBytesOfALane / std::max<int64_t>(row_bytes, 1), 1, 8);
  const int64_t of_a_lane = std::clamp<int64_t>(all / (32 * kWarpsWanted), 1, fit);
  const int64_t of_a_warp = std::clamp<int64_t>(all / (32 * of_a_lane * kWarpsWanted), 1, kTilesOfAWarp);
  launch_rows(r, rows_through_shared<E, kClasses, kKind, Loss>, kSingleThreads * of_a_lane * of_a_warp, kSingleThreads,
              static_cast<int>(kStages * kSingleThreads * of_a_lane * row_bytes), memory, stream, loss,
              static_cast<int>(of_a_lane));
}
template <class E, int kClasses, RowKind kKind, class Loss>
void single(const Pass& r, const typename Loss::InFloat& loss, bool dense, const Memory& memory, Stream stream) {
  constexpr bool kUsual = kKind == RowKind::Usual;
  if (dense) {
    return single_dense<E, kClasses, kKind, Loss>(r, loss, kUsual ? sizeof(int64_t) : 0, memory, stream);
  }
  launch_rows(r, rows_of_strided_classes<E, kClasses, kUsual, Loss>, kSingleThreads, kSingleThreads, 0, memory, stream,
              loss);
}
template <class E, int kClasses, class Loss>
bool single(const Pass& r, const typename Loss::InFloat& loss, bool dense, const Memory& memory, Stream stream) {
  if (r.rows.classes > kClasses) return false;
  if (has_usual_rows<Loss>(r, loss)) {
    single<E, kClasses, RowKind::Usual, Loss>(r, loss, dense, memory, stream);
  } else {
    single<E, kClasses, RowKind::Plain, Loss>(r, loss, dense, memory, stream);
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

}  // namespace cudaloss::cuda
