// Launch plans: pure functions of the sizes. So the order of every sum, and with it every bit of a result, depends only
// on the element count, never on the device, the stream or the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/platform.h"

namespace cudaloss::plan {

// Up to this many elements a reduction computes each term exactly rounded (see core/arith.h), because the fp32 rounding
// errors of so few terms do not average out far below half an ulp. 4,096 would take a GPU 0.7 us longer.
constexpr int64_t kExactCount = 1024;

// ---- CPU ---------------------------------------------------------------------------------------------------
// One partial sum a chunk. 32,768 elements are also the fewest for which at::parallel_for starts another thread.
constexpr int64_t kChunk = 32768;

constexpr int64_t chunks(int64_t count) { return (count + kChunk - 1) / kChunk; }

// ---- CUDA --------------------------------------------------------------------------------------------------
// All figures: H200, fp32 if not said otherwise, compared in the same run with torch.sum (reads only) and torch.add
// (two reads, a write).

// The elements of the narrower operand in a 16-byte load.
constexpr int vector_elements(int input_size, int target_size) { return 16 / std::min(input_size, target_size); }

// How a kernel's threads share its work: a block has a tile, and each of its threads some vectors of the tile.
struct LaunchPolicy {
  int threads, vectors;

  CUDALOSS_INLINE constexpr int64_t tile(int vector) const { return int64_t{threads} * vectors * vector; }
};

// Reads only, with all loads of a thread in flight. At 2^30 elements 4.64 TB/s, where sum reads 4.39; a persistent grid
// of the same tiles 4.57, bulk copies into shared memory 4.59. 256 to 1,024 threads and 4 to 16 loads stay within 0.2
// %; loads that allocate in the L1 cost 0.4 %. Blocks of 1,024 threads would take 4 % longer for 2^28 halves, and 0.7
// us longer for 2^15 elements.
constexpr LaunchPolicy kSum = {512, 4};

// Reads and writes. With 512 threads, fp32 gradients of 2^28 elements move 4.38 TB/s, where add moves 4.38; with
// streaming loads 4.06.
constexpr LaunchPolicy kMap = {512, 1};

// The same with a sum: two vectors share a block's end. At 2^28 elements of fp32, bf16, bf16 with fp32, and fp64: 4.32,
// 4.25, 4.36, 4.38 TB/s, where add moves 4.37. One vector a thread: 4.31, 3.76, 4.31, 4.35; 256 threads and four
// vectors: 4.30, 4.23, 4.14, 4.29; persistent blocks fed by bulk copies: 4.15 in fp32.
constexpr LaunchPolicy kTrain = {512, 2};

// The same for a loss of two operands, whose arithmetic is nearly as long as its loads: many small blocks, so that some
// load while others compute. The smaller blocks are for halves and heavy losses. BCE with logits of 2^28 fp32 elements
// takes 750 us with 128 threads and 12 blocks a processor, 766 with 256 threads and four vectors, 839 with 512 and two;
// bf16 427 with 64 threads, 447 with 128, 539 with 512.
constexpr LaunchPolicy kTrainOperands = {128, 1}, kTrainSmallBlocks = {64, 1};

// The general pass: any strides, masks and weights.
constexpr int kPassThreads = 512;
constexpr int kPassThreadsOfOperands = 128;  // for losses of two operands
constexpr int kStridedThreads = 128;         // for any loss
constexpr int kPassUnroll = 2;               // a thread's vectors whose loads are in flight together
// Vectors a thread. A thread's start and end are as much work as one vector, but few elements need many threads. At
// 2^28 fp32 elements a masked training pass takes 0.92 ms with two, 0.82 with four, 0.81 with eight; without a mask
// 0.79, 0.75, 0.77; with strided operands 1.41, 1.28, 1.21.
constexpr int64_t kFewVectors = 4, kManyVectors = 8;
constexpr int64_t pass_vectors_per_thread(int64_t vectors, int64_t least, int64_t most) {
  if (vectors <= 1024) return 2;  // one block, which need not find out whether it is the last
  // One until all processors have blocks: with two, 2^16 elements take 5 % longer, and 2^20 a fourth less.
  const int64_t fewest = std::clamp<int64_t>(vectors >> 17, 1, least);
  return std::clamp<int64_t>(vectors >> 21, fewest, most);
}
// A segment with more turns than this for each lane of a warp has its own blocks, or one block if it has up to
// kBlockVectors whole vectors.
constexpr int64_t kWarpVectors = 8, kBlockVectors = 512;

// With more blocks than this, each block takes several tiles, so that the partial sums stay under 1 MB. Two tiles a
// block slow a pass that writes by 1 %, four by 2 %, and a pass that only reads not at all.
constexpr int64_t kMaxBlocks = 120 * 1024;

// Up to this many rows of indices each block counts the valid rows itself, which saves a launch.
constexpr int64_t kFewRows = 1024;

// Up to this many blocks count themselves, and the last one folds the partial sums: one launch. With more, the counting
// costs more than the second launch (10 to 30 % of a pass with 2^18 blocks).
constexpr int64_t kCountedBlocks = 1024;

// The second launch. One such block folds 4,096 partial sums in 2 us.
constexpr int kFoldThreads = 512;
constexpr int64_t kFoldTile = 4096;
constexpr int kSegmentFoldThreads = 128;  // for the partial sums of one segment of many

// A pass that mostly has nothing to do has few blocks: 65,536 blocks that return at once take 64 us, 264 take 1.2 us.
constexpr int64_t kPersistentBlocks = 264;

// Sums by columns: the threads that a GPU should have at least (768 on each of 132 processors, with 36 KB of loads in
// flight), and the fewest rows of each.
constexpr int64_t kColumnThreads = 3 * kPersistentBlocks * kStridedThreads, kLeastColumnRows = 8;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The fewest blocks that take the same number of tiles each, or one less: block b takes the tiles b, b + blocks, ...
constexpr int64_t blocks_for(int64_t tiles, int64_t most = kMaxBlocks) {
  const int64_t tiles_a_block = std::max<int64_t>(1, ceil_div(tiles, most));
  return std::max<int64_t>(1, ceil_div(tiles, tiles_a_block));
}

constexpr int64_t sum_blocks(int64_t count, int vector) {
  const int64_t tiles = ceil_div(count, kSum.tile(vector));
  return tiles == 2 ? 1 : blocks_for(tiles);  // 2.8 us; two blocks that find out which is the last: 3.2 us
}

constexpr int64_t train_blocks(int64_t count, int vector, LaunchPolicy policy = kTrain) {
  return blocks_for(ceil_div(count, policy.tile(vector)));
}

// A single block has no more threads than vectors, in whole warps: 1,024 elements take 0.2 us less.
constexpr int train_threads(int64_t count, int vector, LaunchPolicy policy = kTrain) {
  const int64_t vectors = std::max<int64_t>(1, ceil_div(count, vector));
  return static_cast<int>(std::min<int64_t>(policy.threads, ceil_div(vectors, 32) * 32));
}

constexpr int64_t fold_blocks(int64_t partials) { return ceil_div(partials, kFoldTile); }

}  // namespace cudaloss::plan
