// The CUDA engine for losses that read all classes of a row: chooses the kernel for the sizes and strides of a Pass.
// Included by the source of each such loss, which setup.py writes.
#pragma once

#include "cuda/rows_general.cuh"
#include "cuda/rows_launch_shares.cuh"

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
