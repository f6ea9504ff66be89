// The CUDA engine for losses that read all classes of a row: chooses the kernel for the sizes and strides of a Pass.
// Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/engine.h"
#include "cuda/rows_contiguous.cuh"
#include "cuda/rows_general.cuh"
#include "cuda/rows_single.cuh"

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

// ---- rows of fp32 and halves, an index each ------------------------------------------------------------------

template <class Kernel, class... Arguments>
void launch_rows(const Pass& r, Kernel kernel, int64_t rows_a_block, int threads, int shared_bytes,
                 const Memory& memory, Stream stream, const Arguments&... arguments) {
  auto p = row_parameters<double>(r);
  start_rows(r, p, rows_a_block, memory, stream, [&](Start start, int64_t blocks) {
    launch_with_shared(kernel, start, blocks, threads, shared_bytes, stream, p, arguments...);
  });
}

inline bool aligned_alike(const Dims& dims, int64_t elements, bool gradient) {
  for (int d = 0; d < dims.rank; ++d) {
    if (gradient && (dims.stride[d][kInput] - dims.stride[d][kFirst]) % elements != 0) return false;
  }
  return true;
}
inline bool all_aligned(const Dims& dims, int64_t elements) {
  for (int d = 0; d < dims.rank; ++d) {
    if (dims.stride[d][kInput] % elements != 0) return false;
  }
  return true;
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
  layout.vectors = r.rows.class_stride[kInput] == 1 && (!gradient || r.rows.class_stride[kFirst] == 1) &&
                   input % sizeof(E) == 0 && (!gradient || (input - first) % kVectorBytes == 0) &&
                   aligned_alike(r.segments, n, gradient) && aligned_alike(r.inner, n, gradient);
  layout.aligned = layout.vectors && input % kVectorBytes == 0 && all_aligned(r.segments, n) && all_aligned(r.inner, n);
  layout.dense =
      input % kVectorBytes == 0 && is_dense(kInput) && (!gradient || (first % kVectorBytes == 0 && is_dense(kFirst)));
  layout.across = r.inner.rank > 0 && r.inner.stride[0][kInput] == 1 && r.rows.class_stride[kInput] >= 32 &&
                  (!gradient || r.inner.stride[0][kFirst] == 1);
  return layout;
}

template <class E, int kClasses, class Loss>
bool single(const Pass& r, const typename Loss::InFloat& loss, bool dense, const Memory& memory, Stream stream) {
  if (r.rows.classes > kClasses) return false;
  if (dense) {
    launch_rows(r, rows_through_shared<E, kClasses, Loss>, kSingleThreads, kSingleThreads,
                static_cast<int>(kSingleThreads * r.rows.classes * sizeof(E)), memory, stream, loss);
  } else {
    launch_rows(r, rows_of_strided_classes<E, kClasses, Loss>, kSingleThreads, kSingleThreads, 0, memory, stream, loss);
  }
  return true;
}

template <class E, class Loss>
struct ContiguousLauncher {
  const Pass& r;
  const typename Loss::InFloat& loss;
  const RowLayout& layout;
  const Memory& memory;
  Stream stream;

  // Launches the kernel with one tile for each row, if rows fit in it.
  template <int kLanes, int kVectors, int kThreads, int kBlocks>
  bool fits() const {
    using Tile = RowTile<E, kLanes, kVectors>;
    if (r.rows.classes + (layout.aligned ? 0 : Tile::n - 1) > Tile::kSize) return false;
    launch_rows(r, rows_of_contiguous_classes<E, kLanes, kVectors, false, kThreads, kBlocks, Loss>, kThreads / kLanes,
                kThreads, 0, memory, stream, loss, ragged(), 0);
    return true;
  }
  template <int kVectors, int kThreads, int kBlocks>
  void in_tiles() const {
    using Tile = RowTile<E, kThreads, kVectors>;
    constexpr int kTileBytes = Tile::kSize * sizeof(E);
    const auto kernel = rows_of_contiguous_classes<E, kThreads, kVectors, true, kThreads, kBlocks, Loss>;
    const int64_t tiles = plan::ceil_div(r.rows.classes + (layout.aligned ? 0 : Tile::n - 1), Tile::kSize);
    const int kept = static_cast<int>(std::min<int64_t>(tiles - 1, shared_memory_of(kBlocks) / kTileBytes));
    launch_rows(r, kernel, 1, kThreads, kept * kTileBytes, memory, stream, loss, ragged(), kept);
  }
  bool ragged() const { return !layout.aligned || r.rows.classes % (kVectorBytes / sizeof(E)) != 0; }
};

// Rows of a part have one kernel for each dtype, to keep the binary small: short ones go to the general kernel.
template <class E, class Loss>
bool fast_parts(const Pass& r, const Memory& memory, Stream stream) {
  const RowLayout layout = layout_of<E>(r);
  if (!layout.vectors || r.rows.classes <= 1024) return false;
  const typename Loss::InFloat loss(Loss(r), static_cast<double>(r.rows.classes));
  const ContiguousLauncher<E, Loss> rows = {r, loss, layout, memory, stream};
  rows.template in_tiles<8, 512, sizeof(E) == sizeof(float) ? 1 : 2>();
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
  const ContiguousLauncher<E, Loss> rows = {r, loss, layout, memory, stream};
  constexpr bool kHalf = sizeof(E) != sizeof(float);
  constexpr int kShort = kHalf ? 4 : 8;
  // Few rows have a block each: a step of (64, 1000) fp32 then takes 6.4 us, with 16 lanes for each row 9.0.
  const bool are_few = r.inner.count() * r.segments.count() <= plan::kFewRows && r.rows.classes > 128;
  if (are_few && rows.template fits<128, kShort / 4, 128, 8>()) return true;
  // H200, ms of forward and backward, only the kernels. (2^20, 128) fp32: 0.315, with 2 lanes for each row 0.340.
  // (65536, 1024) fp32: 0.154, with 8 lanes 0.181.
  if (rows.template fits<4, kShort, 128, 6>() || rows.template fits<16, kShort, 128, 6>()) return true;
  if constexpr (kHalf) {
    if (rows.template fits<32, 8, 128, 6>() || rows.template fits<128, 8, 128, 8>()) return true;
    // (8192, 16384): 0.146, in tiles of 512 threads 0.231.
    if (rows.template fits<128, 16, 128, 4>()) return true;
    // (4096, 131072): 0.570, with 512 threads 0.685; (8192, 32768): 0.270 with 512 threads, with 1,024 0.602.
    if (r.rows.classes > 65536) {
      rows.template in_tiles<8, 1024, 1>();
    } else {
      rows.template in_tiles<8, 512, 2>();
    }
  } else {
    // (32768, 3072): 0.232, with 128 threads for each row 0.280. (32768, 4096): 0.290, with 64 threads for each row
    // 0.291 to 0.335, with 32 0.345. (32768, 4099): 0.472, with 16 vectors a thread 0.549. (16384, 8192) and (8192,
    // 16384): 0.288 and 0.294, in tiles of 512 threads 0.679 and 0.402.
    const bool fits = rows.template fits<16, 16, 128, 4>() || rows.template fits<64, 12, 64, 10>() ||
                      rows.template fits<128, 8, 128, 7>() || rows.template fits<128, 12, 128, 5>() ||
                      rows.template fits<128, 16, 128, 4>() || rows.template fits<256, 16, 256, 2>();
    if (!fits) rows.template in_tiles<8, 512, 1>();
  }
  return true;
}

template <class E, class Loss>
bool fast_pass(const Pass& r, const Memory& memory, Stream stream) {
  if constexpr (Loss::kIsPart) {
    return fast_parts<E, Loss>(r, memory, stream);
  } else {
    return fast_rows<E, Loss>(r, memory, stream);
  }
}

template <class Loss>
bool is_fast(const Pass& r) {
  return !is_floating(r.target.dtype) && r.rows.softcap == 0.0 && !r.grad_target.data &&
         !(r.third.data && Loss(r).smoothing != 0.0) && (!r.grad_input.data || r.grad_input.dtype == r.input.dtype);
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
