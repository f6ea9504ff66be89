// The groups of threads of a general pass: which share each has, and what becomes of its sum.
#pragma once

#include <type_traits>

#include "cuda/fold.cuh"
#include "cuda/grid.h"
#include "cuda/reduce.cuh"

namespace cudaloss::cuda {

struct Share {
  bool alive;  // the last block may have more groups than there are shares
  uint32_t segment, part;
};

// kLanes is the group's size where the kernel's template knows it, else 0.
template <int kLanes>
__device__ __forceinline__ int lanes_of(const Grid& grid) {
  return kLanes ? kLanes : grid.lanes;
}

__device__ __forceinline__ Share share_of(const Grid& grid, uint32_t group) {
  Share share = {group < grid.groups, group, 0};
  if (grid.parts == 1) return share;
  const uint32_t slow = (grid.across ? grid.by_segments : grid.by_parts).quotient(group);
  share.part = grid.across ? slow : group - slow * grid.parts;
  share.segment = grid.across ? group - slow * grid.segments : slow;
  return share;
}

// A group's sum, in its first lane.
template <class P>
__device__ __forceinline__ P sum_over_lanes(P sum, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    P other;
    if constexpr (std::is_same_v<P, Sum>) {
      other = {__shfl_down_sync(~0u, sum.value, distance), __shfl_down_sync(~0u, sum.rest, distance)};
    } else {
      other = __shfl_down_sync(~0u, sum, distance);
    }
    sum = AddPartials()(sum, other);
  }
  return sum;
}

// A thread's running sum as its block adds it.
template <class T>
__device__ __forceinline__ WarpSum<T> in_warp(const Sum& sum) {
  return sum;
}

// Hands in a thread's sum of its group's share.
template <int kLanes, class TV, class P, class Store>
__device__ __forceinline__ void hand_in(const P& sum, const Grid& grid, const Share& share,
                                        const Fold<P, Store>& fold) {
  constexpr int kThreads = plan::kPassThreads;
  const bool by_block = lanes_of<kLanes>(grid) == kThreads;
  P total = by_block ? block_sum<kThreads, P>(in_warp<TV>(sum)) : sum_over_lanes(sum, grid.lanes);
  const bool meets = by_block && grid.segments == 1;
  if (meets && !meet<kThreads>(total, fold)) return;
  if (!share.alive || (threadIdx.x & (lanes_of<kLanes>(grid) - 1)) != 0) return;
  if (meets || grid.parts == 1) {
    fold.store(total, share.segment);
  } else {
    fold.partials[int64_t{share.part} * grid.segments + share.segment] = total;
  }
}

// Runs `start(fold)` over `blocks` blocks, and what follows it.
template <class P, class Store, class Start>
void launch_folded(const Grid& grid, int64_t blocks, const Store& store, const Memory& memory, Stream stream,
                   const Start& start) {
  if (grid.segments == 1 && grid.lanes == plan::kPassThreads) {
    return folded<P>(blocks, store, memory, stream, start);
  }
  const bool one_launch = grid.segments != 1 && grid.parts == 1;
  const Workspace workspace = memory.of<P>(one_launch ? 1 : std::max<int64_t>(grid.groups, 1));
  start(Fold<P, Store>{static_cast<P*>(workspace.partials), nullptr, store});
  if (grid.parts > 1) fold_segments<P>(grid.segments, grid.parts, store, workspace, stream);
}

}  // namespace cudaloss::cuda
