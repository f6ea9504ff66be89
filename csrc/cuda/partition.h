// How the work of a general pass is shared out: which threads take which vectors of which segment. Host code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>

#include "core/pass.h"
#include "core/plan.h"
#include "cuda/offsets.cuh"

namespace cudaloss::cuda {

// Threads are in groups of `lanes`, a power of two up to a warp, or a whole block. A group takes one part of one
// segment, and its lanes take turns with the vectors.
struct Partition {
  int lanes, lanes_shift;  // lanes_shift: log2 of lanes
  bool across;             // groups have one lane, so that neighbouring threads are at neighbouring segments
  uint32_t segments, parts;
  uint32_t groups;   // segments * parts
  uint32_t vectors;  // of each segment
  uint32_t part_vectors;
  FastDivmod by_parts, by_segments;

  int64_t blocks(int threads) const { return plan::ceil_div(int64_t{groups}, threads / lanes); }
};

// Whether the next vector of a segment is further away than the next segment.
inline bool lies_across(const Dims& segments, const Dims& inner) {
  if (segments.rank == 0 || inner.rank == 0) return segments.rank > 0;
  const auto pace = [](const Dims& dims) {
    const int64_t* stride = dims.stride[0];
    return std::max({stride[kInput], stride[kTarget], stride[kWeight], stride[kMask]});
  };
  return pace(segments) < pace(inner);
}

inline int64_t vectors_of(const Dims& inner, int vector) {
  return inner.rank == 0
             ? 1
             : plan::ceil_div(inner.size[0], vector) * (inner.count() / std::max<int64_t>(inner.size[0], 1));
}

// The least and the most vectors of a thread.
struct VectorsPerThread {
  int64_t least, most;
};

inline int64_t threads_for(int64_t segments, int64_t vectors, VectorsPerThread each) {
  return plan::ceil_div(vectors, plan::pass_vectors_per_thread(segments * vectors, each.least, each.most));
}

// Whether a segment has one or more blocks of its own; short segments do not.
inline bool has_blocks(int64_t segments, int64_t threads) { return segments <= 1 || threads > plan::kWarpVectors * 32; }

// Each segment in `parts`, rounded up to whole rounds of all lanes.
inline Partition partition_into(int64_t parts, int lanes, int64_t segments, int64_t vectors) {
  const int64_t part_vectors = std::max<int64_t>(1, plan::ceil_div(plan::ceil_div(vectors, parts), lanes)) * lanes;
  parts = std::max<int64_t>(1, plan::ceil_div(vectors, part_vectors));
  if (std::max(segments * parts, vectors + part_vectors) >= int64_t{1} << 31) {
    throw std::runtime_error(
        "cudaloss: too many elements for a pass with options, or over operands that are not dense");
  }
  Partition partition = {};
  partition.lanes = lanes;
  while (1 << partition.lanes_shift < lanes) ++partition.lanes_shift;
  partition.segments = static_cast<uint32_t>(segments);
  partition.parts = static_cast<uint32_t>(parts);
  partition.groups = static_cast<uint32_t>(segments * parts);
  partition.vectors = static_cast<uint32_t>(vectors);
  partition.part_vectors = static_cast<uint32_t>(part_vectors);
  partition.by_parts = FastDivmod::by(parts);
  partition.by_segments = FastDivmod::by(std::max<int64_t>(segments, 1));
  return partition;
}

// A thread for each segment; up to `most` for each if there would be fewer than `threads` in all.
inline Partition partition_across(int64_t segments, int64_t vectors, int64_t threads, int64_t most) {
  const int64_t wanted = plan::ceil_div(threads, std::max<int64_t>(segments, 1));
  Partition partition = partition_into(std::max<int64_t>(1, std::min(wanted, most)), 1, segments, vectors);
  partition.across = true;
  return partition;
}

// `threads`: of a block. `whole`: for a kernel that reads whole vectors.
inline Partition partition_of(const Dims& segments_dims, const Dims& inner, int vector, VectorsPerThread of_a_thread,
                              int64_t most_blocks, int threads = plan::kPassThreads, bool whole = false) {
  const int64_t segments = segments_dims.count(), vectors = vectors_of(inner, vector);
  const int64_t wanted_threads = threads_for(segments, vectors, of_a_thread);
  if (lies_across(segments_dims, inner)) {
    return partition_across(segments, vectors, plan::kPersistentBlocks * threads, wanted_threads / 4);
  }
  if (!whole && !has_blocks(segments, wanted_threads)) {
    int lanes = 1;
    while (lanes < 32 && lanes < wanted_threads) lanes *= 2;
    return partition_into(1, lanes, segments, vectors);
  }
  const int64_t most_parts = std::max<int64_t>(1, most_blocks / std::max<int64_t>(segments, 1));
  const int64_t tiles = std::max<int64_t>(1, plan::ceil_div(wanted_threads, threads));
  return partition_into(plan::ceil_div(tiles, plan::ceil_div(tiles, most_parts)), threads, segments, vectors);
}

// The dimension along which a warp's threads should be: the target's fastest, if it is not the input's.
inline int lanes_dim(const Dims& inner) {
  if (inner.rank < 2 || inner.stride[0][kTarget] <= 1) return 0;
  for (int dim = 1; dim < inner.rank; ++dim) {
    if (inner.stride[dim][kTarget] == 1 && inner.size[dim] >= 32) return dim;
  }
  return 0;
}

inline void push(OffsetCalculator& offsets, int64_t size, const int64_t* stride, int64_t factor) {
  offsets.size[offsets.rank] = FastDivmod::by(std::max<int64_t>(size, 1));
  for (int place = 0; place < kPlaces; ++place) offsets.step[offsets.rank][place] = stride[place] * factor;
  ++offsets.rank;
}

// An OffsetCalculator without dimensions: every dimension that is not pushed has size 1.
inline OffsetCalculator no_offsets() {
  OffsetCalculator offsets = {};
  for (FastDivmod& size : offsets.size) size = FastDivmod::by(1);
  return offsets;
}

inline void finish(OffsetCalculator& offsets) {
  int64_t reach[kPlaces] = {};
  for (int d = 0; d < offsets.rank; ++d) {
    for (int place = 0; place < kPlaces; ++place) reach[place] += offsets.size[d].divisor * offsets.step[d][place];
  }
  offsets.narrow = *std::max_element(reach, reach + kPlaces) < int64_t{1} << 31;
}

// The offsets of single elements.
inline OffsetCalculator offsets_of(const Dims& dims) {
  OffsetCalculator offsets = no_offsets();
  for (int d = 0; d < dims.rank; ++d) push(offsets, dims.size[d], dims.stride[d], 1);
  offsets.vector_dim = -1;
  finish(offsets);
  return offsets;
}

// The offsets of vectors of N elements along the first dimension. If the target's layout differs from the input's, 32
// neighbouring threads are neighbours in the target, while their vectors are along the input; the next warps take the
// rest of the data that the cache then holds.
inline OffsetCalculator vector_offsets(const Dims& inner, int vector) {
  if (inner.rank == 0) {
    OffsetCalculator offsets = offsets_of(inner);
    offsets.vector_dim = 0;
    offsets.vector_size = 1;
    return offsets;
  }
  constexpr int64_t kWarp = 32;
  OffsetCalculator offsets = no_offsets();
  const int64_t vectors = plan::ceil_div(inner.size[0], vector);
  const int lanes = lanes_dim(inner);
  const bool splits = lanes > 0 && inner.size[lanes] % kWarp == 0;
  if (lanes > 0) push(offsets, splits ? kWarp : inner.size[lanes], inner.stride[lanes], 1);
  offsets.vector_dim = offsets.rank;
  push(offsets, vectors, inner.stride[0], vector);
  if (splits && inner.size[lanes] > kWarp) push(offsets, inner.size[lanes] / kWarp, inner.stride[lanes], kWarp);
  for (int d = 1; d < inner.rank; ++d) {
    if (d != lanes) push(offsets, inner.size[d], inner.stride[d], 1);
  }
  offsets.vector_size = static_cast<uint32_t>(inner.size[0]);
  offsets.whole_end = inner.rank == 1 ? offsets.vector_size / vector : ~0u;
  std::copy(inner.stride[0], inner.stride[0] + kPlaces, offsets.stride);
  finish(offsets);
  return offsets;
}

// The distance of a vector's consecutive elements.
struct Spacing {
  int64_t stride;
  bool vectorized;  // side by side, and every vector is one or more aligned accesses
};

inline bool is_vectorized(const Dims& segments, const Dims& inner, Place place, const void* data, int element_size,
                          int n) {
  if (inner.rank == 0 || inner.stride[0][place] != 1) return false;
  const int64_t bytes = std::min<int64_t>(16, int64_t{element_size} * n);
  const auto keeps = [&](int64_t stride) { return stride * element_size % bytes == 0; };
  for (int d = 1; d < inner.rank; ++d) {
    if (!keeps(inner.stride[d][place])) return false;
  }
  for (int d = 0; d < segments.rank; ++d) {
    if (!keeps(segments.stride[d][place])) return false;
  }
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

inline Spacing spacing(const Dims& segments, const Dims& inner, Place place, const Operand& operand, int n) {
  int bytes = 1;
  dispatch_any(operand.dtype, [&](auto type) { bytes = sizeof(typename decltype(type)::type); });
  const int64_t stride = inner.rank == 0 ? 0 : inner.stride[0][place];
  return {stride, operand.data && is_vectorized(segments, inner, place, operand.data, bytes, n)};
}

// Whether memory order is the pass's own order.
inline bool is_linear(const Dims& segments, const Dims& inner, Place place) {
  int64_t expected = 1;
  for (const Dims* dims : {&inner, &segments}) {
    for (int d = 0; d < dims->rank; ++d) {
      if (dims->stride[d][place] != expected) return false;
      expected *= dims->size[d];
    }
  }
  return true;
}

// Whether each row ends with a whole vector of n, or there is only one row.
inline bool has_whole_vectors(const Dims& segments, const Dims& inner, int n) {
  return inner.size[0] % n == 0 || (inner.rank == 1 && segments.rank == 0);
}

inline bool same_strides(const Dims& segments, const Dims& inner, Place a, Place b) {
  for (const Dims* dims : {&inner, &segments}) {
    for (int d = 0; d < dims->rank; ++d) {
      if (dims->stride[d][a] != dims->stride[d][b]) return false;
    }
  }
  return true;
}

}  // namespace cudaloss::cuda
