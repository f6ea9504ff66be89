// Sums of overlap and their gradients. A block has some tiles of one sample's voxels, or of one class's. A thread adds
// a few voxels in float, so that no rounding of a long float sum remains; then the sums are double.
#include "core/exp_log.h"
#include "core/log.h"
#include "cuda/launch.h"
#include "cuda/overlap.h"
#include "cuda/rows_single.cuh"

namespace cudaloss::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kVoxels = 8;  // of a thread in a tile
constexpr int kTile = kThreads * kVoxels;
constexpr int64_t kAllBlocks = 1024;  // for all samples, if they have so many tiles
constexpr int kFoldThreads = 512;

template <class F>
struct ScalarBeside {
  using type = float;
};
template <>
struct ScalarBeside<double> {
  using type = double;
};
template <class E>
using Beside = typename ScalarBeside<E>::type;

// The pass in the form for its kernels.
struct OverlapTask {
  Overlap of;
  FastDivmod by_inner;
  uint32_t voxels, blocks;  // of a sample, or of one class of it
  double* partials;
};

// A voxel of a sample, with its place in each tensor.
struct Voxel {
  int64_t input, target, gradient;
  int32_t index;  // of its class; -1: not one of them
  bool counts;
};
__device__ __forceinline__ Voxel voxel_at(const OverlapTask& task, int64_t sample, uint32_t v) {
  const Overlap& p = task.of;
  const uint32_t outer = p.outer > 1 ? task.by_inner.quotient(v) : 0;
  const uint32_t inner = v - outer * static_cast<uint32_t>(p.inner);
  Voxel found = {overlap_offset(p.input_stride, sample, outer, inner),
                 overlap_offset(p.target_stride, sample, outer, inner),
                 overlap_offset(p.gradient_stride, sample, outer, inner), -1, true};
  if (p.mask) found.counts = p.mask[overlap_offset(p.mask_stride, sample, outer, inner)] != 0;
  if (p.has_indices) {
    const int64_t index = index_at(p.target, found.target);
    found.counts = found.counts && index != p.ignore_index;
    if (static_cast<uint64_t>(index) < static_cast<uint64_t>(p.classes)) found.index = static_cast<int32_t>(index);
  }
  return found;
}
// A voxel of a sample whose strides fit in 32 bits, with pointers of its own. They are hidden from the compiler, which
// would add each class's offset to the voxel's before it multiplies by the element's size: seven instructions a load
// in the place of three.
template <class E>
struct NearVoxel {
  const char* logits;
  char* gradient;
  int32_t index;
  bool counts;

  __device__ __forceinline__ float logit(int32_t j, int32_t step) const { return widen<float>(read(j, step)); }
  __device__ __forceinline__ E read(int32_t j, int32_t step) const {
    return *reinterpret_cast<const E*>(logits + int64_t{j} * (step * static_cast<int32_t>(sizeof(E))));
  }
  __device__ __forceinline__ void write(int32_t j, int32_t step, E value) const {
    *reinterpret_cast<E*>(gradient + int64_t{j} * (step * static_cast<int32_t>(sizeof(E)))) = value;
  }
};
template <class E, bool kHasGradient>
struct NearVoxels {
  const OverlapTask& task;
  int64_t input, target, mask, gradient;  // where the sample begins

  __device__ __forceinline__ NearVoxels(const OverlapTask& task, int64_t sample)
      : task(task),
        input(sample * task.of.input_stride[kSample]),
        target(sample * task.of.target_stride[kSample]),
        mask(sample * task.of.mask_stride[kSample]),
        gradient(sample * task.of.gradient_stride[kSample]) {}

  __device__ __forceinline__ NearVoxel<E> at(uint32_t v) const {
    const Overlap& p = task.of;
    const int32_t outer = p.outer > 1 ? static_cast<int32_t>(task.by_inner.quotient(v)) : 0;
    const int32_t inner = static_cast<int32_t>(v) - outer * static_cast<int32_t>(p.inner);
    const auto place = [&](int64_t begin, const int64_t (&stride)[kOverlapDims]) {
      const int64_t found = begin + int64_t{inner} * static_cast<int32_t>(stride[kInner]);
      return p.outer > 1 ? found + int64_t{outer} * static_cast<int32_t>(stride[kOuter]) : found;
    };
    NearVoxel<E> voxel = {};
    const E* const logits = static_cast<const E*>(p.input.data) + place(input, p.input_stride);
    voxel.logits = reinterpret_cast<const char*>(anew(reinterpret_cast<uintptr_t>(logits)));
    if constexpr (kHasGradient) {
      E* const to = static_cast<E*>(p.gradient.data) + place(gradient, p.gradient_stride);
      voxel.gradient = reinterpret_cast<char*>(anew(reinterpret_cast<uintptr_t>(to)));
    }
    const int64_t index = index_at(p.target, place(target, p.target_stride));
    voxel.counts = index != p.ignore_index && (!p.mask || p.mask[place(mask, p.mask_stride)] != 0);
    const bool is_class = static_cast<uint64_t>(index) < static_cast<uint64_t>(p.classes);
    voxel.index = is_class ? static_cast<int32_t>(index) : -1;
    return voxel;
  }
};

template <class F>
__device__ __forceinline__ F target_of(const Overlap& p, const Voxel& voxel, int32_t j) {
  if (p.has_indices) return F(voxel.index == j);
  return number_at<F>(p.target, voxel.target + j * p.target_stride[kClass]);
}
template <class E>
__device__ __forceinline__ const E* logits_at(const Overlap& p, const Voxel& voxel) {
  return static_cast<const E*>(p.input.data) + voxel.input;
}
// A target that is not a class makes all sums NaN, as a row's in cross_entropy.
__device__ __forceinline__ bool is_wrong(const Overlap& p, const Voxel& voxel) {
  return p.has_indices && voxel.index < 0;
}

// ---- sums over a warp and a block ----

// Sums each of n values over a warp, n a power of two up to 16: a lane has the sum of value lane % n. Lanes first share
// out the values, each half of them for half of the lanes; each step is a function of its own, with arrays in
// registers.
template <int kAll, int n, class F>
__device__ __forceinline__ F sum_of_each(const F (&value)[n]) {
  if constexpr (n == 1) {
    F sum = value[0];
#pragma unroll
    for (int distance = kAll; distance < 32; distance *= 2) sum += __shfl_xor_sync(~0u, sum, distance);
    return sum;
  } else {
    constexpr int kHalf = n / 2;
    const bool is_upper = threadIdx.x & kHalf;
    F half[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const F sent = select(is_upper, value[i], value[i + kHalf]);
      half[i] = select(is_upper, value[i + kHalf], value[i]) + __shfl_xor_sync(~0u, sent, kHalf);
    }
    return sum_of_each<kAll>(half);
  }
}

// The sums of a block's samples: kOverlapSums for each of `values` classes, in the order of its warps.
__device__ __forceinline__ void store_partials(const OverlapTask& task, const double* of_warps, int64_t values) {
  __syncthreads();
  for (int64_t i = threadIdx.x; i < values; i += kThreads) {
    double sum = of_warps[i];
    for (int warp = 1; warp < kWarps; ++warp) sum += of_warps[warp * values + i];
    task.partials[blockIdx.x * values + i] = sum;
  }
}

// sums[sample][value]: of all its blocks, in an order that depends on their number alone.
__global__ void __launch_bounds__(kFoldThreads)
    fold_overlap(const double* partials, int blocks, int values, double* sums) {
  __shared__ double of_slices[kFoldThreads];
  const double* const own = partials + int64_t{blockIdx.x} * blocks * values;
  const int width = min(values, kFoldThreads), slices = kFoldThreads / width;
  const int slice = threadIdx.x / width, place = threadIdx.x % width;
  for (int first = 0; first < values; first += width) {
    const int value = first + place;
    const bool has = slice < slices && value < values;
    double sum = 0.0;
#pragma unroll 8
    for (int block = slice; has && block < blocks; block += slices) sum += own[int64_t{block} * values + value];
    of_slices[threadIdx.x] = sum;
    __syncthreads();
    if (has && slice == 0) {
      for (int i = 1; i < slices; ++i) sum += of_slices[i * width + place];
      sums[int64_t{blockIdx.x} * values + value] = sum;
    }
    __syncthreads();
  }
}

// ---- softmax of up to 32 classes, indices: a voxel's probabilities in a thread's registers ----

// Loops over all kClasses, without a branch: those beyond the last class have a logit of -inf, and are not written.
// With an exit after each two classes, (4, 14, 128^3) fp32 took twice the instructions for the sums: each exit moved
// all of their registers.
template <class E, int kClasses>
struct Probabilities {
  float e[kClasses];
  Reference reference;
  float max, sum;  // of exp, in the reference of the maximum

  // Reads exponentials; `scale` makes probabilities of them.
  __device__ __forceinline__ void load(const NearVoxel<E>& voxel, int32_t step, int32_t classes) {
    E read[kClasses];  // the last class again in the place of those beyond, so that no load is in a branch
#pragma unroll
    for (int j = 0; j < kClasses; ++j) read[j] = voxel.read(min(j, classes - 1), step);
#pragma unroll
    for (int j = 0; j < kClasses; ++j) e[j] = j < classes ? widen<float>(read[j]) : -INFINITY;
    max = e[0], sum = 0.0f;
#pragma unroll
    for (int j = 1; j < kClasses; ++j) max = max_or_nan(max, e[j]);
    // From 64 on x - max is exact for every class that counts, and what x log2(e) loses would be too much for exp_by.
    constexpr float kMost = 64.0f;
    reference = fabsf(max) <= kMost ? reference_of(max) : Reference{max, 0.0f};
    if (reference.shift != 0.0f) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) e[j] -= reference.shift;
    }
#pragma unroll
    for (int j = 0; j < kClasses; ++j) sum += e[j] = exp_by(e[j]);
  }
  __device__ __forceinline__ float scale() const { return fabsf(max) <= FLT_MAX ? 1.0f / sum : NAN; }
  __device__ __forceinline__ float exp_of(float x) const { return exp_by(x - reference.shift); }
  // exp(x) in the reference, by the hardware's exp2, within 3 ulp: what is lost of x log2(e) comes behind.
  __device__ __forceinline__ float exp_by(float x) const {
    constexpr float kLeast = -0x1p66f;  // beside -inf the rest would be no number
    x = fmaxf(x, kLeast);
    const float y = x * ExpParts<float>::log2_e;
    float found;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(found) : "f"(y - reference.power));
    if constexpr (sizeof(E) < sizeof(float)) return found;
    constexpr float kLog2eRest = 0x1.4ae0c0p-26f;
    const float rest = fused(x, kLog2eRest, fused(x, ExpParts<float>::log2_e, -y));
    return fused(found, rest * ExpParts<float>::ln2, found);
  }
  __device__ __forceinline__ float sum_without(int32_t index) const {
    float others = 0.0f;
#pragma unroll
    for (int j = 0; j < kClasses; ++j) others += select(j == index, 0.0f, e[j]);
    return others;
  }
  // -log of the class's probability, from its logit x.
  __device__ __forceinline__ float entropy(int32_t index, float x, float own) const {
    const float others = sum_without(index), all = others + own, ratio = others / own;
    if (!(others > own)) return fast_log(1.0f + ratio, ratio);
    return fast_log(all, all - 1.0f) + fused(reference.power, ExpParts<float>::ln2, reference.shift - x);
  }
};

// What a voxel adds to the sums of its own class goes to a column of the thread in shared memory.
template <class E, int kClasses, bool kHasEntropy>
__global__ void __launch_bounds__(kThreads, kClasses <= 16 ? 8 : 4)
    softmax_sums(const __grid_constant__ OverlapTask task) {
  constexpr int kChunk = kClasses < 16 ? kClasses : 16, kChunks = kClasses / kChunk, kTables = kHasEntropy ? 3 : 2;
  const Overlap& p = task.of;
  extern __shared__ __align__(16) char memory[];
  const int64_t sample = blockIdx.x / task.blocks;
  const auto classes = static_cast<int32_t>(p.classes), step = static_cast<int32_t>(p.input_stride[kClass]);
  const NearVoxels<E, false> voxels(task, sample);
  float* const column = reinterpret_cast<float*>(memory) + threadIdx.x;
  const auto of_class = [&](int k, int j) -> float& { return column[(k * kClasses + j) * kThreads]; };
#pragma unroll
  for (int i = 0; i < kTables * kClasses; ++i) column[i * kThreads] = 0.0f;
  double of_input[kChunks] = {}, of_tables[kTables][kChunks] = {};
#pragma unroll 1
  for (uint32_t first = blockIdx.x % task.blocks * kTile; first < task.voxels; first += task.blocks * kTile) {
    float sums[kClasses] = {};
#pragma unroll 1
    for (int i = 0; i < kVoxels; ++i) {
      const uint32_t v = first + i * kThreads + threadIdx.x;
      if (v >= task.voxels) break;
      const NearVoxel<E> voxel = voxels.at(v);
      Probabilities<E, kClasses> row;
      row.load(voxel, step, classes);  // before it is known whether the voxel counts
      if (!voxel.counts) continue;
      const float scale = voxel.index < 0 ? NAN : row.scale();
      if (p.squares) {
#pragma unroll
        for (int j = 0; j < kClasses; ++j) sums[j] += overlap_of_input(true, row.e[j] * scale);
      } else {
#pragma unroll
        for (int j = 0; j < kClasses; ++j) sums[j] = fused(row.e[j], scale, sums[j]);
      }
      if (voxel.index < 0) continue;
      const float x = voxel.logit(voxel.index, step), own = row.exp_of(x);
      of_class(0, voxel.index) += own * scale;
      of_class(1, voxel.index) += 1.0f;
      if constexpr (kHasEntropy) {
        const float found = row.entropy(voxel.index, x, own);
        of_class(2, voxel.index) += select(scale == scale, found, scale);
      }
    }
    __syncwarp();
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      float value[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) value[i] = sums[chunk * kChunk + i];
      of_input[chunk] += sum_of_each<kChunk>(value);
#pragma unroll
      for (int k = 0; k < kTables; ++k) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          float& own = of_class(k, chunk * kChunk + i);
          value[i] = own;
          own = 0.0f;
        }
        of_tables[k][chunk] += sum_of_each<kChunk>(value);
      }
    }
  }
  __syncthreads();  // the columns have been read: the sums of the warps take their place
  double* const of_warps = reinterpret_cast<double*>(memory);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, values = classes * kOverlapSums;
#pragma unroll
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    const int j = chunk * kChunk + lane;
    if (lane >= kChunk || j >= classes) continue;
    double* const own = of_warps + warp * values + j * kOverlapSums;
    own[kBoth] = of_tables[0][chunk], own[kOfInput] = of_input[chunk], own[kOfTarget] = of_tables[1][chunk];
    own[kEntropy] = kHasEntropy ? of_tables[kTables - 1][chunk] : 0.0;
  }
  store_partials(task, of_warps, values);
}

template <class E, int kClasses>
__global__ void __launch_bounds__(kThreads, kClasses <= 16 ? 8 : 5)
    softmax_gradient(const __grid_constant__ OverlapTask task) {
  const Overlap& p = task.of;
  __shared__ float slopes[kOverlapSums][kClasses];
  __shared__ E rows[kWarps][32 * kClasses];
  const int64_t sample = blockIdx.x / task.blocks;
  const auto classes = static_cast<int32_t>(p.classes), step = static_cast<int32_t>(p.input_stride[kClass]);
  const auto to_next = static_cast<int32_t>(p.gradient_stride[kClass]);
  // Classes side by side, and voxels behind each other: a warp stores its rows together, through shared memory.
  const bool lies_in_rows = to_next == 1 && p.gradient_stride[kInner] == classes && p.outer == 1;
  E* const row_of_warp = rows[threadIdx.x / 32];
  const NearVoxels<E, true> voxels(task, sample);
  const double by = p.factor();
  for (int i = threadIdx.x; i < kOverlapSums * kClasses; i += kThreads) {
    const bool has = i < kOverlapSums * classes;
    slopes[i % kOverlapSums][i / kOverlapSums] =
        has ? static_cast<float>(p.grads[sample * classes * kOverlapSums + i] * by) : 0.0f;
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t v = blockIdx.x % task.blocks * kThreads + threadIdx.x; v < task.voxels; v += task.blocks * kThreads) {
    const NearVoxel<E> voxel = voxels.at(v);
    Probabilities<E, kClasses> row;
    row.load(voxel, step, classes);
    const bool has_own = voxel.index >= 0;
    const float scale = has_own ? row.scale() : NAN;
    const float own = has_own ? row.exp_of(voxel.logit(voxel.index, step)) * scale : 0.0f;
    const float more = has_own ? slopes[kBoth][voxel.index] : 0.0f;
    const float of_entropy = has_own ? slopes[kEntropy][voxel.index] : 0.0f;
    const bool stores_own = has_own && voxel.counts;
    float mean = own * more, of_own = has_own ? slopes[kOfInput][voxel.index] : 0.0f;
    // e becomes the gradient. The voxel's own class has more: `at_own`.
    const auto make = [&](const auto& slope) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        row.e[j] *= scale;
        mean = fused(row.e[j], slope(slopes[kOfInput][j], row.e[j]), mean);
      }
      const float less = mean - of_entropy;
#pragma unroll
      for (int j = 0; j < kClasses; ++j) row.e[j] *= slope(slopes[kOfInput][j], row.e[j]) - less;
      of_own = slope(of_own, own) + more - mean;
    };
    if (p.squares) {
      make([](float of_p, float probability) { return overlap_slope(true, 0.0f, of_p, probability, 0.0f); });
    } else {
      make([](float of_p, float) { return of_p; });
    }
    if (!voxel.counts) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) row.e[j] = 0.0f;
    }
    const E at_own = narrow<E>(fused(own, of_own, of_entropy * (own - 1.0f)));
    if (!lies_in_rows || v - threadIdx.x % 32 + 32 > task.voxels) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        if (j < classes) voxel.write(j, to_next, narrow<E>(row.e[j]));
      }
      if (stores_own) voxel.write(voxel.index, to_next, at_own);
      continue;
    }
    E* const row_of_thread = row_of_warp + threadIdx.x % 32 * classes;
#pragma unroll
    for (int j = 0; j < kClasses; ++j) {
      if (j < classes) row_of_thread[j] = narrow<E>(row.e[j]);
    }
    if (stores_own) row_of_thread[voxel.index] = at_own;
    __syncwarp();
    E* const to = reinterpret_cast<E*>(voxel.gradient) - threadIdx.x % 32 * classes;
    for (int i = threadIdx.x % 32; i < 32 * classes; i += 32) to[i] = row_of_warp[i];
    __syncwarp();
  }
}

// ---- softmax of any number of classes, of shares, and of float64: a voxel's logits are read several times ----

template <class F, class E>
struct AnyProbabilities {
  const E* logits;
  int64_t step;
  F max, inverse;

  __device__ __forceinline__ AnyProbabilities(const Overlap& p, const Voxel& voxel)
      : logits(logits_at<E>(p, voxel)), step(p.input_stride[kClass]), max(-F(INFINITY)) {
    for (int64_t j = 0; j < p.classes; ++j) max = max_or_nan(max, widen<F>(logits[j * step]));
    F sum = F(0);
    for (int64_t j = 0; j < p.classes; ++j) sum += exp(j);
    inverse = absolute(max) <= largest(F()) && !is_wrong(p, voxel) ? F(1) / sum : F(NAN);
  }
  __device__ __forceinline__ F exp(int64_t j) const {
    if constexpr (sizeof(F) == sizeof(double)) {
      return ::exp(widen<F>(logits[j * step]) - max);
    } else {
      return expf(widen<F>(logits[j * step]) - max);
    }
  }
};

template <class F, class E>
__global__ void __launch_bounds__(kThreads) any_softmax_sums(const __grid_constant__ OverlapTask task) {
  const Overlap& p = task.of;
  extern __shared__ __align__(16) char memory[];
  const int64_t sample = blockIdx.x / task.blocks, values = p.classes * kOverlapSums;
  double* const of_warps = reinterpret_cast<double*>(memory);
  double* const own_sums = of_warps + threadIdx.x / 32 * values;
  for (int64_t i = threadIdx.x % 32; i < values; i += 32) own_sums[i] = 0.0;
  __syncwarp();
  const uint32_t step = task.blocks * kThreads;
#pragma unroll 1
  for (uint32_t first = blockIdx.x % task.blocks * kThreads; first < task.voxels; first += step) {
    const uint32_t v = first + threadIdx.x;
    const Voxel voxel = voxel_at(task, sample, min(v, task.voxels - 1));
    const bool counts = v < task.voxels && voxel.counts;
    const AnyProbabilities<F, E> row(p, voxel);
    F entropy = F(0);
    if (p.entropy && voxel.index >= 0) {
      F others = F(0);
      for (int64_t j = 0; j < p.classes; ++j) others += j == voxel.index ? F(0) : row.exp(j);
      const F own = row.exp(voxel.index), above = row.max - widen<F>(row.logits[voxel.index * row.step]);
      entropy = others > own ? log(others + own) + above : log1p(others / own);
      if (!(row.inverse == row.inverse)) entropy = row.inverse;
    }
    for (int64_t begin = 0; begin < p.classes; begin += 16) {
      F sums[kOverlapSums][16] = {};
      for (int i = 0; counts && i < 16; ++i) {
        const int64_t j = begin + i;
        if (j >= p.classes) break;
        const F probability = row.exp(j) * row.inverse, g = target_of<F>(p, voxel, static_cast<int32_t>(j));
        sums[kBoth][i] = probability * g;
        sums[kOfInput][i] = overlap_of_input(p.squares, probability);
        sums[kOfTarget][i] = overlap_of_input(p.squares, g);
        sums[kEntropy][i] = j == voxel.index ? entropy : F(0);
      }
      const int64_t j = begin + threadIdx.x % 16;
#pragma unroll
      for (int k = 0; k < kOverlapSums; ++k) {
        const F sum = sum_of_each<16>(sums[k]);
        if (threadIdx.x % 32 < 16 && j < p.classes) own_sums[j * kOverlapSums + k] += static_cast<double>(sum);
      }
    }
  }
  store_partials(task, of_warps, values);
}

template <class F, class E>
__global__ void __launch_bounds__(kThreads) any_softmax_gradient(const __grid_constant__ OverlapTask task) {
  const Overlap& p = task.of;
  const int64_t sample = blockIdx.x / task.blocks;
  const double* const grads = p.grads + sample * p.classes * kOverlapSums;
  const double by = p.factor();
  const uint32_t step = task.blocks * kThreads;
#pragma unroll 1
  for (uint32_t v = blockIdx.x % task.blocks * kThreads + threadIdx.x; v < task.voxels; v += step) {
    const Voxel voxel = voxel_at(task, sample, v);
    const AnyProbabilities<F, E> row(p, voxel);
    const auto slope = [&](int64_t j, F probability) {
      const double* const own = grads + j * kOverlapSums;
      return overlap_slope(p.squares, static_cast<F>(own[kBoth] * by), static_cast<F>(own[kOfInput] * by), probability,
                           target_of<F>(p, voxel, static_cast<int32_t>(j)));
    };
    F mean = F(0);
    for (int64_t j = 0; j < p.classes; ++j) {
      const F probability = row.exp(j) * row.inverse;
      mean = fused(probability, slope(j, probability), mean);
    }
    const F of_entropy =
        p.entropy && voxel.index >= 0 ? static_cast<F>(grads[voxel.index * kOverlapSums + kEntropy] * by) : F(0);
    E* const gradient = static_cast<E*>(p.gradient.data) + voxel.gradient;
    for (int64_t j = 0; j < p.classes; ++j) {
      const F probability = row.exp(j) * row.inverse, of_overlap = probability * (slope(j, probability) - mean);
      const F found = fused(of_entropy, probability - F(voxel.index == j), of_overlap);
      gradient[j * p.gradient_stride[kClass]] = narrow<E>(voxel.counts ? found : F(0));
    }
  }
}

// ---- each element for itself: a block has some tiles of one class of a sample ----

template <class F>
struct ElementTerm {
  F p, slope, entropy;  // the probability, its derivative in x, the binary cross entropy
};
template <class E, class F>
__device__ __forceinline__ ElementTerm<F> element_term(const Overlap& p, F x, F g) {
  if (p.activation == Activation::None) return {x, F(1), F(0)};
  using T = std::conditional_t<sizeof(E) == 2, FastFloat, F>;
  const PlainLogistic<F> of = plain_logistic_as<T>(absolute(x));
  const F other = F(1) - of.sigmoid, linear = x > F(0) ? (F(1) - g) * x : -g * x;
  return {x > F(0) ? other : of.sigmoid, of.sigmoid * other, linear + of.log};
}

// How a tile of one class is read. Dense: no mask, and target and gradient of the input's dtype, all of them contiguous
// in whole vectors; Any: everything else.
enum class Reading { Dense, Any };
// Of a dense tile a thread has vectors, otherwise every kThreads-th voxel.
template <class E>
constexpr int kOfVector = kVectorBytes / sizeof(E);
template <class E, Reading kReading>
struct ElementTile {
  using F = Beside<E>;
  F x[kVoxels], g[kVoxels];
  bool counts[kVoxels];
  int64_t at[kVoxels];  // in the gradient; -1: beyond the last voxel

  __device__ __forceinline__ void load(const OverlapTask& task, int64_t sample, int32_t j, uint32_t first) {
    const Overlap& p = task.of;
    const int64_t of_input = j * p.input_stride[kClass], of_target = j * p.target_stride[kClass];
    if constexpr (kReading == Reading::Dense) {
      constexpr int n = kOfVector<E>;
      const E* const input = static_cast<const E*>(p.input.data) + sample * p.input_stride[kSample] + of_input;
      const E* const target = static_cast<const E*>(p.target.data) + sample * p.target_stride[kSample] + of_target;
#pragma unroll
      for (int i = 0; i < kVoxels; i += n) {
        const uint32_t v = first + i * kThreads + threadIdx.x * n;
        const bool has = v < task.voxels;
        Vector<E, n> a = {}, b = {};
        if (has) a = *reinterpret_cast<const Vector<E, n>*>(input + v);
        if (has) b = *reinterpret_cast<const Vector<E, n>*>(target + v);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          x[i + k] = widen<F>(a.element[k]), g[i + k] = widen<F>(b.element[k]);
          counts[i + k] = has;
          at[i + k] = has ? sample * p.gradient_stride[kSample] + j * p.gradient_stride[kClass] + v + k : -1;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVoxels; ++i) {
        const uint32_t v = first + i * kThreads + threadIdx.x;
        counts[i] = false, at[i] = -1;
        if (v >= task.voxels) continue;
        const Voxel voxel = voxel_at(task, sample, v);
        at[i] = voxel.gradient + j * p.gradient_stride[kClass];
        counts[i] = voxel.counts;
        x[i] = is_wrong(p, voxel) ? F(NAN) : widen<F>(logits_at<E>(p, voxel)[of_input]);
        g[i] = target_of<F>(p, voxel, j);
      }
    }
  }
  __device__ __forceinline__ void store(E* gradient) const {
    if constexpr (kReading == Reading::Dense) {
      constexpr int n = kOfVector<E>;
#pragma unroll
      for (int i = 0; i < kVoxels; i += n) {
        Vector<E, n> out;
#pragma unroll
        for (int k = 0; k < n; ++k) out.element[k] = narrow<E>(x[i + k]);
        if (at[i] >= 0) *reinterpret_cast<Vector<E, n>*>(gradient + at[i]) = out;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVoxels; ++i) {
        if (at[i] >= 0) gradient[at[i]] = narrow<E>(counts[i] ? x[i] : F(0));
      }
    }
  }
};

template <class E, Reading kReading, bool kHasEntropy>
__global__ void __launch_bounds__(kThreads) element_sums(const __grid_constant__ OverlapTask task) {
  using F = Beside<E>;
  const Overlap& p = task.of;
  __shared__ double of_warps[kWarps * kOverlapSums];
  const int64_t sample = blockIdx.x / task.blocks / p.classes;
  const auto j = static_cast<int32_t>(blockIdx.x / task.blocks % p.classes);
  double total[kOverlapSums] = {};
#pragma unroll 1
  for (uint32_t first = blockIdx.x % task.blocks * kTile; first < task.voxels; first += task.blocks * kTile) {
    ElementTile<E, kReading> tile;
    F sums[kOverlapSums] = {};
    tile.load(task, sample, j, first);
#pragma unroll
    for (int i = 0; i < kVoxels; ++i) {
      if (!tile.counts[i]) continue;
      const ElementTerm<F> term = element_term<E>(p, tile.x[i], tile.g[i]);
      sums[kBoth] = fused(term.p, tile.g[i], sums[kBoth]);
      sums[kOfInput] += overlap_of_input(p.squares, term.p);
      sums[kOfTarget] += overlap_of_input(p.squares, tile.g[i]);
      if (kHasEntropy) sums[kEntropy] += term.entropy;
    }
#pragma unroll
    for (int k = 0; k < kOverlapSums; ++k) total[k] += static_cast<double>(sums[k]);
  }
#pragma unroll
  for (int k = 0; k < kOverlapSums; ++k) {
    for (int distance = 16; distance > 0; distance /= 2) total[k] += __shfl_xor_sync(~0u, total[k], distance);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32 * kOverlapSums + k] = total[k];
  }
  store_partials(task, of_warps, kOverlapSums);
}

template <class E, Reading kReading>
__global__ void __launch_bounds__(kThreads) element_gradient(const __grid_constant__ OverlapTask task) {
  using F = Beside<E>;
  const Overlap& p = task.of;
  const int64_t sample = blockIdx.x / task.blocks / p.classes;
  const auto j = static_cast<int32_t>(blockIdx.x / task.blocks % p.classes);
  const double* const grads = p.grads + (sample * p.classes + j) * kOverlapSums;
  const double by = p.factor();
  const F of_both = static_cast<F>(grads[kBoth] * by), of_p = static_cast<F>(grads[kOfInput] * by);
  const F of_entropy = static_cast<F>(grads[kEntropy] * by);
  E* const gradient = static_cast<E*>(p.gradient.data);
#pragma unroll 1
  for (uint32_t first = blockIdx.x % task.blocks * kTile; first < task.voxels; first += task.blocks * kTile) {
    ElementTile<E, kReading> tile;
    tile.load(task, sample, j, first);
#pragma unroll
    for (int i = 0; i < kVoxels; ++i) {
      const ElementTerm<F> term = element_term<E>(p, tile.x[i], tile.g[i]);
      const F of_overlap = overlap_slope(p.squares, of_both, of_p, term.p, tile.g[i]) * term.slope;
      tile.x[i] = fused(of_entropy, term.p - tile.g[i], of_overlap);
    }
    tile.store(gradient);
  }
}

// Whether 16 bytes at a time hold voxels of one class, in order, and the first ones begin there.
bool lies_dense(const void* data, const int64_t (&stride)[kOverlapDims], int64_t n, bool is_outer) {
  return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0 && stride[kInner] == 1 && !is_outer &&
         stride[kSample] % n == 0 && stride[kClass] % n == 0;
}
bool is_dense(const Overlap& p) {
  const int64_t n = kVectorBytes / size_of(p.input.dtype);
  return !p.mask && !p.has_indices && p.target.dtype == p.input.dtype && p.voxels() % n == 0 &&
         lies_dense(p.input.data, p.input_stride, n, p.outer > 1) &&
         lies_dense(p.target.data, p.target_stride, n, p.outer > 1) &&
         (!p.gradient.data || lies_dense(p.gradient.data, p.gradient_stride, n, p.outer > 1));
}

// Whether 32 bits hold the bytes between neighbours.
bool fits(const int64_t (&stride)[kOverlapDims]) {
  return std::all_of(stride + kClass, stride + kOverlapDims,
                     [](int64_t x) { return std::abs(x) < (int64_t{1} << 28); });
}
// Whether a voxel's logits are read several times.
bool reads_again(const Overlap& p) {
  if (p.activation != Activation::Softmax) return false;
  const bool is_near = fits(p.input_stride) && fits(p.target_stride) && fits(p.mask_stride) && fits(p.gradient_stride);
  return p.classes > 32 || p.input.dtype == DType::Float64 || !p.has_indices || !is_near;
}

template <class E>
struct Kernels {
  using Kernel = void (*)(OverlapTask);
  Kernel sums, gradient;
  int64_t shared;  // of the sums

  template <int kClasses>
  static Kernels of_classes(const Overlap& p) {
    constexpr int64_t kColumns = kClasses * sizeof(float) * kThreads;
    if (p.entropy) return {softmax_sums<E, kClasses, true>, softmax_gradient<E, kClasses>, 3 * kColumns};
    return {softmax_sums<E, kClasses, false>, softmax_gradient<E, kClasses>, 2 * kColumns};
  }
  static Kernels of(const Overlap& p) {
    if (p.activation != Activation::Softmax) {
      if (!is_dense(p)) return {element_sums<E, Reading::Any, true>, element_gradient<E, Reading::Any>, 0};
      const Kernel gradient = element_gradient<E, Reading::Dense>;
      if (p.entropy) return {element_sums<E, Reading::Dense, true>, gradient, 0};
      return {element_sums<E, Reading::Dense, false>, gradient, 0};
    }
    if constexpr (!std::is_same_v<E, double>) {
      if (!reads_again(p)) {
        if (p.classes <= 4) return of_classes<4>(p);
        return p.classes <= 16 ? of_classes<16>(p) : of_classes<32>(p);
      }
    }
    const int64_t of_block = kWarps * p.classes * kOverlapSums * sizeof(double);
    return {any_softmax_sums<Beside<E>, E>, any_softmax_gradient<Beside<E>, E>, of_block};
  }
};

constexpr int kFinishThreads = 256;
__global__ void __launch_bounds__(kFinishThreads) finish_overlap(const __grid_constant__ OverlapLoss of) {
  __shared__ double all_divisors;
  const int64_t count = of.samples * of.classes;
  double ratios = 0.0, entropies = 0.0, divisor = 0.0;
  for (int64_t place = threadIdx.x; place < count; place += kFinishThreads) {
    const OverlapPart part = overlap_part(of, place);
    ratios += part.ratio, entropies += part.entropy, divisor += part.divisor;
  }
  ratios = block_sum<kFinishThreads, double>(ratios);
  entropies = block_sum<kFinishThreads, double>(entropies);
  divisor = block_sum<kFinishThreads, double>(divisor);
  if (threadIdx.x == 0) {
    all_divisors = divisor;
    store_scalar(of.loss, 0, overlap_value(of, ratios, entropies, divisor));
  }
  __syncthreads();
  for (int64_t place = threadIdx.x; place < count; place += kFinishThreads) {
    store_overlap_slopes(of, place, overlap_part(of, place), all_divisors);
  }
}

}  // namespace

int64_t overlap_blocks(const Overlap& p) {
  const int64_t groups = p.samples * (p.activation == Activation::Softmax ? 1 : p.classes);
  const int64_t tiles = plan::ceil_div(p.voxels(), reads_again(p) ? kThreads : kTile);
  return std::max<int64_t>(1, std::min(tiles, plan::ceil_div(kAllBlocks, std::max<int64_t>(groups, 1))));
}
int64_t overlap_partials(const Overlap& p) { return overlap_blocks(p) * p.samples * p.classes * kOverlapSums; }

void overlap(const Overlap& p, double* partials, Stream stream) {
  const bool of_classes = p.activation != Activation::Softmax;
  const int64_t groups = p.samples * (of_classes ? p.classes : 1);
  OverlapTask task = {p, FastDivmod::by(std::max<int64_t>(p.inner, 1)), static_cast<uint32_t>(p.voxels()),
                      static_cast<uint32_t>(overlap_blocks(p)), partials};
  dispatch(p.input.dtype, [&](auto type) {
    const auto kernels = Kernels<typename decltype(type)::type>::of(p);
    if (p.grads) {  // more blocks than for sums, which have partials
      task.blocks = static_cast<uint32_t>(plan::ceil_div(p.voxels(), kTile));
      return launch(kernels.gradient, Start::Alone, groups * task.blocks, kThreads, stream, task);
    }
    launch_with_shared(kernels.sums, Start::Alone, groups * task.blocks, kThreads, static_cast<int>(kernels.shared),
                       stream, task);
    const auto values = static_cast<int>(kOverlapSums * (of_classes ? 1 : p.classes));
    launch(fold_overlap, Start::Alone, groups, kFoldThreads, stream, partials, static_cast<int>(task.blocks), values,
           p.sums);
  });
}

void overlap_loss(const OverlapLoss& loss, Stream stream) {
  launch(finish_overlap, Start::Alone, 1, kFinishThreads, stream, loss);
}

}  // namespace cudaloss::cuda
