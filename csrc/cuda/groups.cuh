// The groups of threads of a general pass: the share of each, and the reduction of its sum.
#pragma once

#include <type_traits>

#include "cuda/fold.cuh"
#include "cuda/partition.h"

namespace cudaloss::cuda {

struct Share {
  bool alive;  // the last block can have more groups than there are shares
  uint32_t segment, part;
};

// kLanes is the group's size if the kernel's template knows it, otherwise 0.
template <int kLanes>
__device__ __forceinline__ int lanes_of(const Partition& partition) {
  return kLanes ? kLanes : partition.lanes;
}

__device__ __forceinline__ Share share_of(const Partition& partition, uint32_t group) {
  Share share = {group < partition.groups, group, 0};
  if (partition.parts == 1) return share;
  const uint32_t slow = (partition.across ? partition.by_segments : partition.by_parts).quotient(group);
  share.part = partition.across ? slow : group - slow * partition.parts;
  share.segment = partition.across ? group - slow * partition.segments : slow;
  return share;
}

// A group's sum, in its first lane.
template <class P>
__device__ __forceinline__ P sum_over_lanes(P sum, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    sum = sum + cub::ShuffleDown<32>(sum, distance, 31, ~0u);
  }
  return sum;
}

// Adds a thread's sum to that of its group's share.
template <int kLanes, class TV, int kThreads = plan::kPassThreads, class P, class Store>
__device__ __forceinline__ void reduce_share(const P& sum, const Partition& partition, const Share& share,
                                             const Fold<P, Store>& fold) {
  const bool by_block = lanes_of<kLanes>(partition) == kThreads;
  P total = by_block ? block_sum<kThreads, P>(in_warp<TV>(sum)) : sum_over_lanes(sum, partition.lanes);
  const bool is_grid_reduced = by_block && partition.segments == 1;
  if (is_grid_reduced && !grid_reduce<kThreads>(total, fold)) return;
  if (!share.alive || (threadIdx.x & (lanes_of<kLanes>(partition) - 1)) != 0) return;
  if (is_grid_reduced || partition.parts == 1) {
    fold.store(total, share.segment);
  } else {
    fold.partials[int64_t{share.part} * partition.segments + share.segment] = total;
  }
}

// Runs `start(fold)` over `blocks` blocks, and the fold that follows.
template <class P, class Store, class Start>
void launch_folded(const Partition& partition, int64_t blocks, const Store& store, const Memory& memory, Stream stream,
                   const Start& start, int threads = plan::kPassThreads) {
  if (partition.segments == 1 && partition.lanes == threads) {
    return folded<P>(blocks, store, memory, stream, start);
  }
  const bool one_launch = partition.segments != 1 && partition.parts == 1;
  const Workspace workspace = memory.of<P>(one_launch ? 1 : std::max<int64_t>(partition.groups, 1));
  start(Fold<P, Store>{static_cast<P*>(workspace.partials), nullptr, store});
  if (partition.parts > 1) fold_segments<P>(partition.segments, partition.parts, store, workspace, stream);
}

}  // namespace cudaloss::cuda
