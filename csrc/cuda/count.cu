// The denominators of masked and weighted means, before the pass that needs them.
#include "cuda/accessor.cuh"
#include "cuda/fold.cuh"
#include "cuda/groups.cuh"
#include "cuda/launch.h"
#include "cuda/partition.h"
#include "cuda/pass_plan.h"

namespace cudaloss::cuda {
namespace {

// Of a mask alone the sum is a number of elements, which a double holds as it is.
template <bool kMaskAlone>
using CountSum = std::conditional_t<kMaskAlone, double, Sum>;

template <bool kMaskAlone>
struct CountParameters {
  Partition partition;
  OffsetCalculator segments, inner;
  Accessor<uint8_t> mask;
  bool linear;  // the mask is dense, in whole vectors
  Weights<double> weight;
  Accessor<Any<double>> target;  // where NaN there matters
  Fold<CountSum<kMaskAlone>, SegmentDivisor> fold;
};

template <bool kMaskAlone>
__device__ __forceinline__ int64_t offset_in(const CountParameters<kMaskAlone>& p, uint32_t segment,
                                             const Coordinates<kMaxOffsetDims>& vector, Place place) {
  const int64_t within = offset(p.inner, vector, place);
  return p.partition.segments > 1 ? within + offset(p.segments, coordinates(p.segments, segment), place) : within;
}

// How many elements a dense mask selects of the whole vectors below `end`; `vector` is then the first behind them.
template <int N>
__device__ __forceinline__ uint64_t selected_in_line(const CountParameters<true>& p, uint32_t segment, uint32_t& vector,
                                                     uint32_t end) {
  constexpr int kUnroll = 8;  // loads in flight
  const uint32_t lanes = p.partition.lanes;
  const int64_t base = int64_t{segment} * p.partition.vectors;
  uint64_t selected = 0;
  for (; vector < end; vector += lanes * kUnroll) {
    Vector<uint8_t, N> bytes[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      bytes[u] = p.mask.template load_vector<N>((base + min(vector + u * lanes, end - 1)) * N);
    }
    unsigned count = 0;
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (vector + u * lanes >= end) continue;
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        unsigned four;
        memcpy(&four, &bytes[u].element[i], sizeof four);
        count = __dp4a(__vsetne4(four, 0u), 0x01010101u, count);
      }
    }
    selected += count;
  }
  while (vector >= end + lanes) vector -= lanes;
  return selected;
}

// What a vector adds to the denominator, where there is more than a mask.
template <int N>
__device__ __forceinline__ double in_play(const CountParameters<false>& p, uint32_t segment,
                                          const Coordinates<kMaxOffsetDims>& vector, int length) {
  unsigned selected = (1u << length) - 1;
  double weight[N];
  Vector<double, N> target = {};
  if (p.mask.data) {
    selected = selected_by<N>(p.mask, load_mask<N>(p.mask, offset_in(p, segment, vector, kMask), length), length);
  }
  if (p.weight.data) p.weight.load(offset_in(p, segment, vector, kWeight), length, weight);
  if (p.target.data) target = p.target.template load<N>(offset_in(p, segment, vector, kTarget), length);
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool counts = (selected >> i & 1) != 0 && target.element[i] == target.element[i];
    sum += select(counts, p.weight.data ? (p.weight.stride == 0 ? weight[0] : weight[i]) : 1.0, 0.0);
  }
  return sum;
}

template <bool kMaskAlone, int N>
__global__ void __launch_bounds__(plan::kPassThreads, 2)
    count_kernel(const __grid_constant__ CountParameters<kMaskAlone> p) {
  release_next();
  const Partition& partition = p.partition;
  const uint32_t lane = threadIdx.x & (partition.lanes - 1);
  const uint32_t groups_a_block = plan::kPassThreads >> partition.lanes_shift;
  const Share share = share_of(partition, blockIdx.x * groups_a_block + (threadIdx.x >> partition.lanes_shift));
  CountSum<kMaskAlone> sum = {};
  if (share.alive) {
    const uint32_t begin = share.part * partition.part_vectors;
    const uint32_t end = min(partition.vectors, begin + partition.part_vectors);
    uint64_t selected = 0;
    uint32_t vector = begin + lane;
    if constexpr (kMaskAlone) {
      if (p.linear) selected = selected_in_line<N>(p, share.segment, vector, min(end, p.inner.whole_end));
    }
    for (; vector < end; vector += partition.lanes) {
      const auto at = coordinates(p.inner, vector);
      const int length = static_cast<int>(min(uint32_t{N}, p.inner.vector_size - vector_index(p.inner, at) * N));
      if constexpr (kMaskAlone) {
        const auto mask = load_mask<N>(p.mask, offset_in(p, share.segment, at, kMask), length);
        selected += __popc(selected_by<N>(p.mask, mask, length));
      } else {
        sum.add(in_play<N>(p, share.segment, at, length));
      }
    }
    if constexpr (kMaskAlone) sum = static_cast<double>(selected);
  }
  reduce_share<0, std::conditional_t<kMaskAlone, FloatFloat, double>>(sum, partition, share, p.fold);
}

// Whether there is a mask and nothing else to look at.
bool is_mask_alone(const Count& r) {
  return r.selection.mask.data && !r.selection.weight.data && !r.selection.ignore_nan;
}
constexpr int kMaskVector = 16, kVector = 4;

// As many blocks as count themselves: one launch.
Partition count_partition(const Count& r) {
  return partition_of(r.segments, r.inner, is_mask_alone(r) ? kMaskVector : kVector,
                      VectorsPerThread{1, plan::kManyVectors}, plan::kCountedBlocks);
}

template <bool kMaskAlone, int N>
void launch_count(const Count& r, const Memory& memory, Stream stream) {
  CountParameters<kMaskAlone> p = {};
  p.partition = count_partition(r);
  p.segments = offsets_of(r.segments);
  p.inner = vector_offsets(r.inner, N);
  p.mask = {static_cast<uint8_t*>(const_cast<void*>(r.selection.mask.data)),
            spacing(r.segments, r.inner, kMask, {r.selection.mask.data, DType::Bool}, N)};
  p.linear = p.mask.spacing.vectorized && is_linear(r.segments, r.inner, kMask) &&
             (r.inner.size[0] % N == 0 || r.segments.rank == 0);
  p.weight = {r.selection.weight.data, p.inner.stride[kWeight], r.selection.weight.dtype};
  if (r.selection.ignore_nan) {
    p.target = {const_cast<void*>(r.target.data), {p.inner.stride[kTarget], false}, r.target.dtype};
  }
  const SegmentDivisor store = {r.multiplicity, r.output};
  const int64_t blocks = p.partition.blocks(plan::kPassThreads);
  launch_folded<CountSum<kMaskAlone>>(p.partition, blocks, store, memory, stream, [&](const auto& fold) {
    p.fold = fold;
    launch(count_kernel<kMaskAlone, N>, blocks, plan::kPassThreads, stream, p);
  });
}

}  // namespace

void count(const Count& request, const Memory& memory, Stream stream) {
  if (is_mask_alone(request)) return launch_count<true, kMaskVector>(request, memory, stream);
  launch_count<false, kVector>(request, memory, stream);
}

}  // namespace cudaloss::cuda
