#include "cuda/vectors.h"
#include "cuda/vectors_contiguous.cuh"
#include "cuda/vectors_general.cuh"

namespace cudaloss::cuda {

namespace {

template <class P>
VectorParameters<P> vector_parameters(const Pass& r, VectorsOf vectors, bool needs_w) {
  VectorParameters<P> g = {};
  g.rows = row_parameters<P>(r);
  g.loss = {static_cast<int>(r.loss), r.numbers};
  g.eps = r.numbers.second;
  g.differences = vectors == VectorsOf::Differences;
  g.needs_w = needs_w;
  return g;
}

template <class F, class E>
void general(const Pass& r, VectorsOf vectors, bool needs_w, const Memory& memory, Stream stream) {
  auto g = vector_parameters<Partial<F>>(r, vectors, needs_w);
  g.lanes_shift = general_lanes_shift(r);
  start_rows(r, g.rows, kGeneralThreads >> g.lanes_shift, memory, stream, [&](Start start, int64_t blocks) {
    launch(vectors_in_general<F, E>, start, blocks, kGeneralThreads, stream, g);
  });
}

// Whether `holds` is true for all vectors that are read or written.
template <class Holds>
bool all_vectors(const Pass& r, bool has_third, const Holds& holds) {
  return holds(r.input.data, r.input.dtype, kInput) && holds(r.target.data, r.target.dtype, kTarget) &&
         (!has_third || holds(r.third.data, r.third.dtype, kThird)) &&
         holds(r.grad_input.data, r.grad_input.dtype, kResult) &&
         holds(r.grad_target.data, r.grad_target.dtype, kSecondResult) &&
         holds(r.grad_third.data, r.grad_third.dtype, kThirdResult);
}

// Whether all have one dtype.
bool are_alike(const Pass& r, bool has_third) {
  return all_vectors(r, has_third,
                     [&](const void* data, DType dtype, Place) { return !data || dtype == r.input.dtype; });
}

int64_t elements_of_vector(const Pass& r) { return kVectorBytes / size_of(r.input.dtype); }

// Whether all are contiguous, and their elements at the same place in 16 bytes.
bool lie_alike(const Pass& r, bool has_third) {
  return all_vectors(r, has_third, [&](const void* data, DType, Place place) {
    return lies_like_input(r, data, place, elements_of_vector(r));
  });
}
// Whether 16 bytes can have elements of two rows.
bool are_ragged(const Pass& r) {
  const int64_t n = elements_of_vector(r);
  return r.rows.classes % n != 0 || !lies_in_vectors(r, r.input.data, kInput, n);
}

// kEach: the elements of a thread.
template <class E, int kEach, int kLanes, int kBlocks, bool kGradients = true, bool kRagged = false>
void contiguous(const Pass& r, const VectorParameters<double>& g, const Memory& memory, Stream stream) {
  constexpr int kThreads = 128, kVectors = kEach * sizeof(E) / kVectorBytes;
  const auto at = [&](const void* data) { return accessor_of<E>({data, r.input.dtype}, Spacing{1, true}); };
  ContiguousVectors<E> of = {g,
                             {at(r.input.data), at(r.target.data), at(g.differences ? r.third.data : nullptr)},
                             {at(r.grad_input.data), at(r.grad_target.data), at(r.grad_third.data)}};
  start_rows(r, of.g.rows, kThreads / kLanes, memory, stream, [&](Start start, int64_t blocks) {
    launch(vectors_in_registers<E, kLanes, kVectors, kThreads, kBlocks, kGradients, kRagged>, start, blocks, kThreads,
           stream, of);
  });
}

// Step of cosine_similarity_loss (2^18, 301) and of triplet_margin_loss (2^16, 2047), fp32, one gradient, H100: 0.47
// and 1.09 ms; in the kernel for rows of any strides 0.57 and 2.31. Cosine's of (131072, 1001): 0.58 ms with 32
// elements a thread in a warp, 0.91 in a block; of (32768, 4099): 0.62 with 16 a thread in a block, 0.71 with 32.
template <class E>
void ragged_rows(const Pass& r, const VectorParameters<double>& g, const Memory& memory, Stream stream) {
  const int64_t elements = r.rows.classes + elements_of_vector(r) - 1;
  if (elements <= 512) return contiguous<E, 16, 32, 6, true, true>(r, g, memory, stream);
  if (elements <= 1024) return contiguous<E, 32, 32, 4, true, true>(r, g, memory, stream);
  contiguous<E, 16, 128, 5, true, true>(r, g, memory, stream);
}

// H200, fp32, TB/s of the data that must move, forward and backward of triplet_margin_loss and cosine_similarity_loss.
// 8,192 elements: 4.34 and 4.26 with 64 elements a thread, 3.69 and 3.62 with 16 and 512 threads; 4,096: 4.17 and 4.07
// with 32, 3.12 and 2.87 with 64; 2,048: 4.21 and 4.14 with 16 and 5 blocks a processor, 3.81 and 3.24 with 32. Only
// forward: 4.4 with 16 elements, from 2,048 on. bfloat16, 8,192: 3.16 and 3.10 with 32, 2.48 and 2.21 with 64.
template <class E>
void contiguous_rows(const Pass& r, const VectorParameters<double>& g, const Memory& memory, Stream stream) {
  if (are_ragged(r)) return ragged_rows<E>(r, g, memory, stream);
  const int64_t elements = r.rows.classes;
  if (elements <= 128) return contiguous<E, 16, 8, 6>(r, g, memory, stream);
  if (elements <= 512) return contiguous<E, 16, 32, 6>(r, g, memory, stream);
  if (elements <= 1024) return contiguous<E, 32, 32, 4>(r, g, memory, stream);
  if (!r.wants_gradients()) return contiguous<E, 16, 128, 6, false>(r, g, memory, stream);
  if (elements <= 2048) return contiguous<E, 16, 128, 5>(r, g, memory, stream);
  if constexpr (sizeof(E) == sizeof(float)) {
    if (elements > 4096) return contiguous<E, 64, 128, 2>(r, g, memory, stream);
  }
  contiguous<E, 32, 128, 4>(r, g, memory, stream);
}
}  // namespace

void any_vectors_pass(const Pass& r, VectorsOf vectors, bool needs_w, const Memory& memory, Stream stream) {
  const bool has_third = vectors == VectorsOf::Differences;
  if (wants_float64_rows(r)) return general<double, Any<double>>(r, vectors, needs_w, memory, stream);
  if (!are_alike(r, has_third)) return general<float, Any<float>>(r, vectors, needs_w, memory, stream);
  const bool is_float = r.input.dtype == DType::Float32;
  // The shortest ragged rows: the general kernel has a thread for each (`general_lanes_shift`), not a warp.
  const bool are_short = are_ragged(r) && r.rows.classes <= 8;
  if (needs_w || are_short || !lie_alike(r, has_third)) {
    if (is_float) return general<float, float>(r, vectors, needs_w, memory, stream);
    return general<float, Any<float>>(r, vectors, needs_w, memory, stream);
  }
  const auto g = vector_parameters<double>(r, vectors, needs_w);
  if (is_float) return contiguous_rows<float>(r, g, memory, stream);
  contiguous_rows<AnyHalf>(r, g, memory, stream);
}

}  // namespace cudaloss::cuda
