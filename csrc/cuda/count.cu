// The denominators of masked and weighted means, before the pass that needs them.
#include "cuda/accessor.cuh"
#include "cuda/fold.cuh"
#include "cuda/groups.cuh"
#include "cuda/launch.h"
#include "cuda/partition.h"
#include "cuda/pass_plan.h"

namespace cudaloss::cuda {
namespace {

// With only a mask the sum is a number of elements, which a double represents exactly.
template <bool kMaskAlone>
using CountSum = std::conditional_t<kMaskAlone, double, Sum>;

template <bool kMaskAlone>
struct CountParameters {
  Partition partition;
  OffsetCalculator segments, inner;
  Accessor<uint8_t> mask;
  bool linear;  // mask and weights, or only the indices, are dense, in whole vectors
  Weights<double> weight;
  Accessor<Any<double>> target;  // if its NaNs matter
  Operand indices;               // for rows; without data: none
  Operand class_weight;
  int64_t index_stride, class_stride, classes, ignore_index;
  Held held;
  Fold<CountSum<kMaskAlone>, SegmentDivisor> fold;
};

template <bool kMaskAlone>
__device__ __forceinline__ int64_t offset_in(const CountParameters<kMaskAlone>& p, uint32_t segment,
                                             const Coordinates<kMaxOffsetDims>& vector, Place place) {
  const int64_t within = offset(p.inner, vector, place);
  return p.partition.segments > 1 ? within + offset(p.segments, coordinates(p.segments, segment), place) : within;
}

// Adds the data of each whole vector below `end`, with kUnroll loads in flight. `vector` is then the first after them.
template <int kUnroll, bool kMaskAlone, class Load, class Add>
__device__ __forceinline__ void in_line(const CountParameters<kMaskAlone>& p, uint32_t segment, uint32_t& vector,
                                        uint32_t end, const Load& load, const Add& add) {
  const uint32_t lanes = p.partition.lanes;
  const int64_t base = int64_t{segment} * p.partition.vectors;
  for (; vector < end; vector += lanes * kUnroll) {
    decltype(load(base)) read[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) read[u] = load(base + min(vector + u * lanes, end - 1));
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (vector + u * lanes < end) add(read[u]);
    }
  }
  while (vector >= end + lanes) vector -= lanes;
}

// How many elements a dense mask selects.
template <int N>
__device__ __forceinline__ double sum_in_line(const CountParameters<true>& p, uint32_t segment, uint32_t& vector,
                                              uint32_t end) {
  uint64_t selected = 0;
  const auto load = [&](int64_t i) { return p.mask.template load_vector<N>(i * N); };
  in_line<8>(p, segment, vector, end, load, [&](const auto& bytes) {
    unsigned count = 0;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      unsigned four;
      memcpy(&four, &bytes.element[i], sizeof four);
      count = __dp4a(__vsetne4(four, 0u), 0x01010101u, count);
    }
    selected += count;
  });
  return static_cast<double>(selected);
}

// The sum of the dense weights, only those that a dense mask selects if there is one. One vector at a time, with new
// offsets for each, 2^22 weights took 20 us.
template <int N>
__device__ __forceinline__ Sum sum_in_line(const CountParameters<false>& p, uint32_t segment, uint32_t& vector,
                                           uint32_t end) {
  Sum sum = {};
  dispatch(p.weight.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    const Accessor<Element> weights = {const_cast<Element*>(static_cast<const Element*>(p.weight.data)), {1, true}};
    struct Read {
      Vector<Element, N> weight;
      Vector<uint8_t, N> mask;
    };
    const auto load = [&](int64_t i) -> Read {
      return {weights.template load_vector<N>(i * N),
              p.mask.data ? p.mask.template load_vector<N>(i * N) : Vector<uint8_t, N>{1, 1, 1, 1}};
    };
    in_line<4>(p, segment, vector, end, load, [&](const Read& read) {
      double part = 0.0;
#pragma unroll
      for (int i = 0; i < N; ++i) part += select(read.mask.element[i] != 0, widen<double>(read.weight.element[i]), 0.0);
      sum.add(part);
    });
  });
  return sum;
}

// The number of dense int64 indices that count. One vector at a time, 2^24 of them took 60 us.
template <int N>
__device__ __forceinline__ Sum count_in_line(const CountParameters<false>& p, uint32_t segment, uint32_t& vector,
                                             uint32_t end) {
  uint32_t counted = 0;
  const int64_t* const indices = static_cast<const int64_t*>(p.indices.data);
  const auto load = [&](int64_t i) { return *reinterpret_cast<const Vector<int64_t, N>*>(indices + i * N); };
  in_line<4>(p, segment, vector, end, load, [&](const Vector<int64_t, N>& read) {
#pragma unroll
    for (int i = 0; i < N; ++i) counted += read.element[i] != p.ignore_index;
  });
  return Sum{static_cast<double>(counted)};
}

template <int N>
__device__ __forceinline__ void read_indices(const CountParameters<false>& p, int64_t offset, int length,
                                             int64_t (&index)[N]) {
  dispatch_any(p.indices.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    const auto read = each_of<N>(static_cast<const Element*>(p.indices.data) + offset, p.index_stride, length);
#pragma unroll
    for (int i = 0; i < N; ++i) index[i] = widen<int64_t>(read.element[i]);
  });
}

// The term of a row with this index: its class's weight, or nothing.
__device__ __forceinline__ double of_index(const CountParameters<false>& p, int64_t index) {
  if (index == p.ignore_index) return 0.0;
  if (!p.class_weight.data) return 1.0;
  if (index < 0 || index >= p.classes) return 0.0;
  return number_at<double>(p.class_weight, index * p.class_stride);
}

// The term of a vector in the denominator.
template <int N, bool kMaskAlone>
__device__ __forceinline__ double in_play(const CountParameters<kMaskAlone>& p, uint32_t segment,
                                          const Coordinates<kMaxOffsetDims>& vector, int length) {
  unsigned selected = (1u << length) - 1;
  if (p.mask.data) {
    selected = selected_by<N>(p.mask, load_mask<N>(p.mask, offset_in(p, segment, vector, kMask), length), length);
  }
  if constexpr (kMaskAlone) return __popc(selected);
  double weight[N];
  Vector<double, N> target = {};
  if (p.weight.data) p.weight.load(offset_in(p, segment, vector, kWeight), length, weight);
  if (p.target.data) target = p.target.template load<N>(offset_in(p, segment, vector, kTarget), length);
  int64_t index[N];
  if constexpr (!kMaskAlone) {
    if (p.indices.data) read_indices<N>(p, offset_in(p, segment, vector, kTarget), length, index);
  }
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool counts = (selected >> i & 1) != 0 && target.element[i] == target.element[i];
    double own = p.weight.data ? p.weight.of(i, weight) : 1.0;
    if constexpr (!kMaskAlone) {
      if (counts && p.indices.data) own *= of_index(p, index[i]);
    }
    sum += select(counts, own, 0.0);
  }
  return sum;
}

template <bool kMaskAlone, int N>
__global__ void __launch_bounds__(plan::kPassThreads, 2)
    count_kernel(const __grid_constant__ CountParameters<kMaskAlone> p) {
  release_next();
  const Operand& grad_output = p.held.grad_output;
  if (grad_output.data && p.held.prediction.is_for(number_at<double>(grad_output, 0))) return;
  const Partition& partition = p.partition;
  const uint32_t lane = threadIdx.x & (partition.lanes - 1);
  const uint32_t groups_a_block = plan::kPassThreads >> partition.lanes_shift;
  const Share share = share_of(partition, blockIdx.x * groups_a_block + (threadIdx.x >> partition.lanes_shift));
  CountSum<kMaskAlone> sum = {};
  if (share.alive) {
    const uint32_t begin = share.part * partition.part_vectors;
    const uint32_t end = min(partition.vectors, begin + partition.part_vectors);
    uint32_t vector = begin + lane;
    if (p.linear) {
      const uint32_t whole = min(end, p.inner.whole_end);
      if constexpr (kMaskAlone) {
        sum = sum_in_line<N>(p, share.segment, vector, whole);
      } else {
        sum = p.indices.data ? count_in_line<N>(p, share.segment, vector, whole)
                             : sum_in_line<N>(p, share.segment, vector, whole);
      }
    }
    for (; vector < end; vector += partition.lanes) {
      const auto at = coordinates(p.inner, vector);
      const int length = static_cast<int>(min(uint32_t{N}, p.inner.vector_size - vector_index(p.inner, at) * N));
      sum = sum + CountSum<kMaskAlone>{in_play<N>(p, share.segment, at, length)};
    }
  }
  reduce_share<0, std::conditional_t<kMaskAlone, FloatFloat, double>>(sum, partition, share, p.fold);
}

bool has_indices(const Count& r) { return r.rows.classes > 0 && !is_floating(r.target.dtype); }

// Whether there is a mask and no other selection.
bool is_mask_alone(const Count& r) {
  return r.selection.mask.data && !r.selection.weight.data && !r.selection.ignore_nan && !has_indices(r);
}

template <bool kMaskAlone, int N>
void launch_count(const Count& r, const Memory& memory, Stream stream) {
  CountParameters<kMaskAlone> p = {};
  // Limits the blocks to as many as count themselves: one launch.
  p.partition = partition_of(r.segments, r.inner, N, {1, plan::kManyVectors}, plan::kCountedBlocks);
  p.segments = offsets_of(r.segments);
  p.inner = vector_offsets(r.inner, N);
  p.mask = {static_cast<uint8_t*>(const_cast<void*>(r.selection.mask.data)),
            spacing(r.segments, r.inner, kMask, {r.selection.mask.data, DType::Bool}, N)};
  const auto is_line = [&](Place place, const Operand& operand) {
    return !operand.data ||
           (spacing(r.segments, r.inner, place, operand, N).vectorized && is_linear(r.segments, r.inner, place));
  };
  const bool is_weighted = r.selection.weight.data || r.third.data;
  const bool of_indices = has_indices(r) && r.target.dtype == DType::Int64 && !r.selection.mask.data && !is_weighted;
  const bool of_others = !has_indices(r) && !r.selection.ignore_nan && (r.selection.weight.data || kMaskAlone) &&
                         is_line(kMask, {r.selection.mask.data, DType::Bool}) && is_line(kWeight, r.selection.weight);
  p.linear = r.inner.rank > 0 && has_whole_vectors(r.segments, r.inner, N) &&
             (of_others || (of_indices && is_line(kTarget, r.target)));
  const Operand& weight = r.selection.weight;
  p.weight = {weight.data, spacing(r.segments, r.inner, kWeight, weight, N), weight.dtype};
  if (r.selection.ignore_nan) {
    p.target = {const_cast<void*>(r.target.data), {p.inner.stride[kTarget], false}, r.target.dtype};
  }
  if (has_indices(r)) {
    p.indices = r.target;
    p.class_weight = r.third;
    p.index_stride = p.inner.stride[kTarget];
    p.class_stride = r.rows.class_stride[kThird];
    p.classes = r.rows.classes;
    p.ignore_index = r.rows.ignore_index;
  }
  p.held = r.held;
  const SegmentDivisor store = {r.multiplicity, r.output};
  const int64_t blocks = p.partition.blocks(plan::kPassThreads);
  launch_folded<CountSum<kMaskAlone>>(p.partition, blocks, store, memory, stream, [&](const auto& fold) {
    p.fold = fold;
    launch(count_kernel<kMaskAlone, N>, Start::Alone, blocks, plan::kPassThreads, stream, p);
  });
}

}  // namespace

void count(const Count& request, const Memory& memory, Stream stream) {
  if (is_mask_alone(request)) return launch_count<true, 16>(request, memory, stream);  // 16 bytes at a time; 4 weights
  launch_count<false, 4>(request, memory, stream);
}

}  // namespace cudaloss::cuda
