// Launch plans: pure functions of the sizes, so that the order of every sum, and with it every bit of a result,
// depends on the element count alone, never on the device, the stream or the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cudaloss::plan {

// Up to this many elements a reduction computes each term exactly rounded (see core/arith.h): too few terms for
// their fp32 rounding errors to average out far below half an ulp. 4,096 of them would take a GPU 0.7 us longer.
constexpr int64_t kExactCount = 1024;

// ---- CPU ---------------------------------------------------------------------------------------------------
// One partial a chunk. 32,768 elements are also the least that at::parallel_for hands to a thread of its own.
constexpr int64_t kChunk = 32768;

constexpr int64_t chunks(int64_t count) { return (count + kChunk - 1) / kChunk; }

// ---- CUDA --------------------------------------------------------------------------------------------------
// All figures: H200, fp32 unless said, beside torch.sum (reads only) and torch.add (two reads, a write) of the same
// run.

// Elements that a 16-byte load brings of the narrower operand.
constexpr int vector_elements(int input_size, int target_size) { return 16 / std::min(input_size, target_size); }

// How a kernel's threads share its work: a tile a block, of which each thread has some vectors.
struct LaunchPolicy {
  int threads, vectors;

  constexpr int64_t tile(int vector) const { return int64_t{threads} * vectors * vector; }
};

// Reads only, with all loads of a thread in flight. At 2^30 elements 4.64 TB/s, where sum reads 4.39; a persistent grid
// of the same tiles 4.57, bulk copies into shared memory 4.59. 256 to 1,024 threads and 4 to 16 loads stay within 0.2
// %; loads that allocate in the L1 cost 0.4 %. Of 1,024 threads the blocks of 2^28 elements' halves would take 4 %
// longer, and 2^15 elements 0.7 us.
constexpr LaunchPolicy kSum = {512, 4};

// Reads and writes. fp32 gradients of 2^28 elements from 512 threads move 4.38 TB/s, where add moves 4.38; streaming
// loads 4.06.
constexpr LaunchPolicy kMap = {512, 1};

// The same with a sum: two vectors share a block's end. At 2^28 elements of fp32, bf16, bf16 with fp32, and fp64: 4.32,
// 4.25, 4.36, 4.38 TB/s, where add moves 4.37. One vector a thread: 4.31, 3.76, 4.31, 4.35; 256 threads and four
// vectors: 4.30, 4.23, 4.14, 4.29; persistent blocks fed by bulk copies: 4.15 in fp32.
constexpr LaunchPolicy kTrain = {512, 2};

// The same for a loss of two operands, whose arithmetic is nearly as long as its loads: many small blocks, so that some
// load while others compute; the smaller ones are of halves and of heavy losses. BCE with logits of 2^28 fp32 elements
// takes 750 us of 128 threads and 12 blocks a processor, 766 of 256 threads and four vectors, 839 of 512 and two; bf16
// 427 of 64 threads, 447 of 128, 539 of 512.
constexpr LaunchPolicy kTrainOperands = {128, 1}, kTrainSmallBlocks = {64, 1};

// The general pass: any strides, masks and weights.
constexpr int kPassThreads = 512;
constexpr int kPassThreadsOfOperands = 128;  // likewise
constexpr int kStridedThreads = 128;         // of any loss
constexpr int kPassUnroll = 2;               // vectors of a thread whose loads are in flight together
// Vectors a thread: its start and its end are as much work as one vector, but few elements need many threads. At 2^28
// fp32 elements a masked training pass takes 0.92 ms of two, 0.82 of four, 0.81 of eight; of no mask 0.79, 0.75, 0.77;
// where strides are followed 1.41, 1.28, 1.21.
constexpr int64_t kFewVectors = 4, kManyVectors = 8;
constexpr int64_t pass_vectors_per_thread(int64_t vectors, int64_t least, int64_t most) {
  if (vectors <= 1024) return 2;  // one block, which need not find out whether it is the last
  // One until there are blocks for all processors: of two, 2^16 elements take 5 % longer, and 2^20 a fourth less.
  const int64_t fewest = std::clamp<int64_t>(vectors >> 17, 1, least);
  return std::clamp<int64_t>(vectors >> 21, fewest, most);
}
// A segment of more turns than this for each lane of a warp has blocks of its own, or one of as many whole vectors.
constexpr int64_t kWarpVectors = 8, kBlockVectors = 512;

// A block beyond this many takes several tiles, so that their partials stay under 1 MB. Two tiles a block cost a
// pass that writes 1 %, four 2 %, and one that only reads nothing.
constexpr int64_t kMaxBlocks = 120 * 1024;

// Likewise of rows, of which a block looks up once what their gradients have in common.
constexpr int64_t kMaxRowBlocks = 8192;

// Of so many rows of indices each block counts for itself how many have a class: a launch less.
constexpr int64_t kFewRows = 1024;

// Up to this many blocks count themselves and the last one folds the partials: one launch. Beyond, the counting costs
// more than the second launch (10 to 30 % of a pass with 2^18 blocks).
constexpr int64_t kCountedBlocks = 1024;

// The second launch. One block of these folds 4,096 partials in 2 us.
constexpr int kFoldThreads = 512;
constexpr int64_t kFoldTile = 4096;
constexpr int kSegmentFoldThreads = 128;  // of the partials of one segment of many

// A pass that mostly has nothing to do: few blocks, because 65,536 that return at once take 64 us, and 264 1.2 us.
constexpr int64_t kPersistentBlocks = 264;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// As few blocks as take the same number of tiles each, or one less: block b takes the tiles b, b + blocks, ...
constexpr int64_t blocks_for(int64_t tiles, int64_t most = kMaxBlocks) {
  const int64_t tiles_a_block = std::max<int64_t>(1, ceil_div(tiles, most));
  return std::max<int64_t>(1, ceil_div(tiles, tiles_a_block));
}

constexpr int64_t sum_blocks(int64_t count, int vector) {
  const int64_t tiles = ceil_div(count, kSum.tile(vector));
  return tiles == 2 ? 1 : blocks_for(tiles);  // 2.8 us; two blocks, and which of them is the last, 3.2
}

constexpr int64_t train_blocks(int64_t count, int vector, LaunchPolicy policy = kTrain) {
  return blocks_for(ceil_div(count, policy.tile(vector)));
}

// One block has no more threads than it has vectors, in whole warps: 1,024 elements take 0.2 us less.
constexpr int train_threads(int64_t count, int vector, LaunchPolicy policy = kTrain) {
  const int64_t vectors = std::max<int64_t>(1, ceil_div(count, vector));
  return static_cast<int>(std::min<int64_t>(policy.threads, ceil_div(vectors, 32) * 32));
}

constexpr int64_t fold_blocks(int64_t partials) { return ceil_div(partials, kFoldTile); }

}  // namespace cudaloss::plan
