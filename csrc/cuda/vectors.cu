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
  g.of_third = r.of_third;
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

// Whether `holds` says so of all vectors that are read or written.
template <class Holds>
bool all_vectors(const Pass& r, bool has_third, const Holds& holds) {
  return holds(r.input.data, r.input.dtype, kInput) && holds(r.target.data, r.target.dtype, kTarget) &&
         (!has_third || holds(r.third.data, r.third.dtype, kThird)) &&
         holds(r.grad_input.data, r.grad_input.dtype, kFirst) &&
         holds(r.grad_target.data, r.grad_target.dtype, kSecond);
}

// Whether all are of one dtype.
bool are_alike(const Pass& r, bool has_third) {
  return all_vectors(r, has_third,
                     [&](const void* data, DType dtype, Place) { return !data || dtype == r.input.dtype; });
}

// Whether all of them are whole vectors of 16 bytes, and aligned.
bool are_contiguous(const Pass& r, bool has_third) {
  const int64_t n = kVectorBytes / size_of(r.input.dtype);
  if (r.rows.classes % n != 0) return false;
  return all_vectors(r, has_third, [&](const void* data, DType, Place place) {
    if (!data) return true;
    if (r.rows.class_stride[place] != 1) return false;
    for (const Dims* dims : {&r.inner, &r.segments}) {
      for (int d = 0; d < dims->rank; ++d) {
        if (dims->stride[d][place] % n != 0) return false;
      }
    }
    return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0;
  });
}

template <class E, int kLanes, int kThreads, int kBlocks>
void contiguous(const Pass& r, const VectorParameters<double>& g, const Memory& memory, Stream stream) {
  constexpr int kVectors = 16 * sizeof(E) / kVectorBytes;  // 16 elements a thread
  const Spacing whole = {1, true};
  ContiguousVectors<E> of = {g,
                             {accessor_of<E>(r.input, whole), accessor_of<E>(r.target, whole),
                              accessor_of<E>({g.differences ? r.third.data : nullptr, r.input.dtype}, whole)},
                             accessor_of<E>({r.grad_input.data, r.input.dtype}, whole),
                             accessor_of<E>({r.grad_target.data, r.input.dtype}, whole)};
  start_rows(r, of.g.rows, kThreads / kLanes, memory, stream, [&](Start start, int64_t blocks) {
    launch(vectors_in_registers<E, kLanes, kVectors, kThreads, kBlocks>, start, blocks, kThreads, stream, of);
  });
}

template <class E>
void contiguous_rows(const Pass& r, const VectorParameters<double>& g, const Memory& memory, Stream stream) {
  if (r.rows.classes <= 128) return contiguous<E, 8, 128, 6>(r, g, memory, stream);
  if (r.rows.classes <= 512) return contiguous<E, 32, 128, 6>(r, g, memory, stream);
  if (r.rows.classes <= 2048) return contiguous<E, 128, 128, 6>(r, g, memory, stream);
  if (r.rows.classes <= 4096) return contiguous<E, 256, 256, 4>(r, g, memory, stream);
  contiguous<E, 512, 512, 2>(r, g, memory, stream);
}

}  // namespace

void any_vectors_pass(const Pass& r, VectorsOf vectors, bool needs_w, const Memory& memory, Stream stream) {
  const bool has_third = vectors == VectorsOf::Differences;
  if (wants_float64_rows(r)) return general<double, Any<double>>(r, vectors, needs_w, memory, stream);
  if (!are_alike(r, has_third)) return general<float, Any<float>>(r, vectors, needs_w, memory, stream);
  const bool is_float = r.input.dtype == DType::Float32;
  if (needs_w || !are_contiguous(r, has_third)) {
    if (is_float) return general<float, float>(r, vectors, needs_w, memory, stream);
    return general<float, Any<float>>(r, vectors, needs_w, memory, stream);
  }
  const auto g = vector_parameters<double>(r, vectors, needs_w);
  if (is_float) return contiguous_rows<float>(r, g, memory, stream);
  contiguous_rows<AnyHalf>(r, g, memory, stream);
}

}  // namespace cudaloss::cuda
