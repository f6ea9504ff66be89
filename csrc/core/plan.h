// Launch plans: pure functions of the sizes, so that the order of every sum, and with it every bit of a result,
// depends on the element count alone, never on the device, the stream or the number of threads.
#pragma once

#include <algorithm>
#include <cstdint>

namespace cudaloss::plan {

// Up to this many elements a reduction computes each term exactly rounded (see core/arith.h): too few terms for
// their fp32 rounding errors to average out below half an ulp, and too few for the arithmetic to cost time.
constexpr int64_t kExactCount = 4096;

// ---- CPU ---------------------------------------------------------------------------------------------------
// One partial a chunk. 32,768 elements are also the least that at::parallel_for hands to a thread of its own.
constexpr int64_t kChunk = 32768;

constexpr int64_t chunks(int64_t count) { return (count + kChunk - 1) / kChunk; }

// ---- CUDA --------------------------------------------------------------------------------------------------
// Reads only: a persistent grid, each thread with `kReduceUnroll` 16-byte loads of each operand in flight. On an H200
// 4.56 TB/s in fp32 at 2^30 elements, where torch.sum reads 4.39. Flat around it: 256 to 1,024 threads and grids of 1
// to 8 waves stay within 1 %; 2 loads or 3 blocks a processor cost a mixed bf16/fp32 pair 10 to 14 %.
constexpr int kReduceThreads = 512;
constexpr int kReduceUnroll = 4;
constexpr int kReduceBlocksAProcessor = 2;
constexpr int kReduceMaxBlocks = 132 * kReduceBlocksAProcessor;  // every block resident at once on an H100 or H200

constexpr int kFoldThreads = 256;

// Reads and writes: one tile a block, one 16-byte vector a thread. On an H200 the gradient moves 4.42 TB/s at 2^28
// elements with 1,024 threads, 4.38 with 512, where torch.add moves 4.38.
constexpr int kElementwiseThreads = 1024;

// Elements that a 16-byte load brings of the narrower operand.
constexpr int vector_elements(int input_size, int target_size) { return 16 / std::min(input_size, target_size); }

constexpr int64_t reduce_tile(int vector) { return int64_t{kReduceThreads} * kReduceUnroll * vector; }

constexpr int reduce_blocks(int64_t count, int vector) {
  const int64_t tiles = (count + reduce_tile(vector) - 1) / reduce_tile(vector);
  return static_cast<int>(std::clamp<int64_t>(tiles, 1, kReduceMaxBlocks));
}

constexpr int64_t elementwise_blocks(int64_t count, int vector) {
  const int64_t tile = int64_t{kElementwiseThreads} * vector;
  return (count + tile - 1) / tile;
}

}  // namespace cudaloss::plan
