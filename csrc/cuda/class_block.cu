// A block of classes of each row: a block of threads reads its row once for the sums, and once for the gradients.
#include <cub/block/block_reduce.cuh>
#include <type_traits>

#include "core/class_block.h"
#include "cuda/accessor.cuh"
#include "cuda/engine.h"
#include "cuda/launch.h"

namespace cudaloss::cuda {
namespace {

// H200, bfloat16, sums of (8192, 128256), (8192, 16064) and (16384, 8000): 0.48, 0.072 and 0.084 ms; with 256 threads
// 0.47, 0.083 and 0.110. Gradients: 1.10, 0.139 and 0.132; with 128 threads 1.10, 0.139 and 0.135.
constexpr int kSumThreads = 128, kShortSumThreads = 64, kSumLoads = 4, kGradientThreads = 256, kGradientLoads = 2;
constexpr int kShortRow = 32 * 1024;  // bytes

template <class E>
using ScalarFor = std::conditional_t<std::is_same_v<E, double>, double, float>;

// For halves the hardware's exp2 has digits enough.
template <class E, class T>
__device__ __forceinline__ T exp_of(T x) {
  if constexpr (std::is_same_v<E, double>) {
    return exp(x);
  } else if constexpr (std::is_same_v<E, float>) {
    return expf(x);
  } else {
    return __expf(x);
  }
}

// What a kernel does besides exp(x): nothing; the entropy and the temperature; or all options.
enum class RowForm { Plain, Entropy, Any };

// The softcap and the temperature.
template <class T>
struct Bend {
  T softcap, inverse_softcap, inverse_temperature;

  __device__ __forceinline__ explicit Bend(const ClassBlock& block)
      : softcap(static_cast<T>(block.softcap)),
        inverse_softcap(static_cast<T>(block.softcap == 0.0 ? 0.0 : 1.0 / block.softcap)),
        inverse_temperature(static_cast<T>(1.0 / block.temperature)) {}
  // Returns z and sets its slope.
  template <RowForm kForm>
  __device__ __forceinline__ T bent(T x, T& slope) const {
    slope = inverse_temperature;
    if (kForm == RowForm::Entropy || softcap == T(0)) return x * inverse_temperature;
    const T bend = tanh(x * inverse_softcap);
    slope *= (T(1) - bend) * (T(1) + bend);
    return softcap * bend * inverse_temperature;
  }
};

// Calls visit(column, x) for each vector of a row's classes, and visit for each element of its ragged ends; x: an array
// of elements. Threads read side by side, kLoads vectors of each in flight.
template <int kThreads, int kLoads, class E, class Visit>
__device__ __forceinline__ void each_vector(const E* row, int32_t classes, const Visit& visit) {
  constexpr int n = kVectorBytes / sizeof(E);
  const auto misplaced = static_cast<int32_t>(reinterpret_cast<uintptr_t>(row) % kVectorBytes / sizeof(E));
  const int32_t head = min(classes, misplaced ? n - misplaced : 0), vectors = (classes - head) / n;
  const int32_t tail = head + vectors * n, thread = threadIdx.x;
  const auto* const whole = reinterpret_cast<const Vector<E, n>*>(row + head);
  int32_t v = thread;
  for (; v + (kLoads - 1) * kThreads < vectors; v += kLoads * kThreads) {
    Vector<E, n> x[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) x[u] = whole[v + u * kThreads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) visit(head + (v + u * kThreads) * n, x[u]);
  }
  for (; v < vectors; v += kThreads) visit(head + v * n, whole[v]);
  if (thread < head) visit(thread, Vector<E, 1>{row[thread]});
  if (thread < classes - tail) visit(tail + thread, Vector<E, 1>{row[tail + thread]});
}

// Brings sums to another base.
template <class E, class T>
__device__ __forceinline__ SumsOfRow<T> rebased(SumsOfRow<T> sums, T base) {
  const T above = sums.base - base, ratio = exp_of<E>(above);
  if (sums.sum == T(0) || ratio == T(0)) return {base, T(0), T(0), sums.shares};  // 0 times an infinite difference
  return {base, sums.sum * ratio, ratio * (sums.weighted + sums.sum * above), sums.shares};
}
template <class E>
struct Join {
  template <class T>
  __device__ __forceinline__ SumsOfRow<T> operator()(SumsOfRow<T> a, SumsOfRow<T> b) const {
    const T base = a.sum == T(0) ? b.base : b.sum == T(0) || a.base > b.base ? a.base : b.base;
    a = rebased<E>(a, base);
    b = rebased<E>(b, base);
    return {base, a.sum + b.sum, a.weighted + b.weighted, a.shares + b.shares};
  }
};

// The z of some classes of a row, with -inf for the target, whose place among the block's classes is `own`.
template <RowForm kForm, class E, class T>
struct RowReader {
  const ClassBlock& block;
  const Bend<T>& bend;
  int64_t own;

  template <int n>
  __device__ __forceinline__ void read(const Vector<E, n>& x, int32_t column, T (&z)[n], T& shares) const {
#pragma unroll
    for (int j = 0; j < n; ++j) {
      T slope;
      z[j] = widen<T>(x.element[j]);
      if constexpr (kForm != RowForm::Plain) z[j] = bend.template bent<kForm>(z[j], slope);
      if constexpr (kForm == RowForm::Any) {
        if (block.shares) shares += z[j] * block.weight_of<T>(column + j);
      }
    }
    if (own >= column && own < column + n) {
#pragma unroll
      for (int j = 0; j < n; ++j) z[j] = column + j == own ? -static_cast<T>(INFINITY) : z[j];
    }
  }
};

// Of a row's target among the block's classes; it may be outside.
__device__ __forceinline__ int64_t place_of_target(const ClassBlock& block, int64_t row) {
  return block.target[row] - block.first_class;
}

// A thread's base is the maximum of its first vector: no later one is likely to be above it by more than the range of
// exp. Otherwise the thread reads its classes again, for their maximum. Without a maximum in each vector the sums of
// (8192, 128256) take 0.48 ms, with it 0.58.
template <int kThreads, class E, RowForm kForm>
__global__ void __launch_bounds__(kThreads, (kForm == RowForm::Plain && sizeof(E) < 8 ? 12 : 6) * kSumThreads /
                                                kThreads) class_sums(const __grid_constant__ ClassBlock block) {
  using T = ScalarFor<E>;
  using Reduce = cub::BlockReduce<SumsOfRow<T>, kThreads>;
  constexpr T kInfinity = static_cast<T>(INFINITY);
  __shared__ typename Reduce::TempStorage shared;
  const int64_t row = blockIdx.x, own = place_of_target(block, row);
  const E* const logits = block.logits_of<E>(row);
  const auto classes = static_cast<int32_t>(block.classes);
  const Bend<T> bend(block);
  const RowReader<kForm, E, T> reader = {block, bend, own};
  SumsOfRow<T> sums = {-kInfinity, T(0), T(0), T(0)};
  T max = -kInfinity, ignored = T(0);
  const auto find_max = [&](int32_t column, const auto& x) {
    constexpr int n = sizeof x / sizeof(E);
    T z[n];
    reader.read(x, column, z, ignored);
#pragma unroll
    for (int j = 0; j < n; ++j) max = z[j] > max ? z[j] : max;
  };
  const auto add = [&](int32_t column, const auto& x) {
    constexpr int n = sizeof x / sizeof(E);
    T z[n], sum = T(0);
    if (sums.base == -kInfinity) {
      find_max(column, x);
      if (max > -kInfinity) sums.base = max;
    }
    reader.read(x, column, z, sums.shares);
    const T base = sums.base == -kInfinity ? T(0) : sums.base;
#pragma unroll
    for (int j = 0; j < n; ++j) {
      const T above = z[j] - base, e = exp_of<E>(above);
      sum += e;
      // Below that exp is 0, also for -inf.
      if constexpr (kForm != RowForm::Plain) sums.weighted += e * (above < T(-1e4) ? T(-1e4) : above);
    }
    sums.sum += sum;
  };
  each_vector<kThreads, kSumLoads>(logits, classes, add);
  if (!(sums.sum < T(1e30))) {  // also if there is a NaN or an infinity
    each_vector<kThreads, kSumLoads>(logits, classes, find_max);
    sums = {max, T(0), T(0), T(0)};
    each_vector<kThreads, kSumLoads>(logits, classes, add);
  }
  sums = Reduce(shared).Reduce(sums, Join<E>());
  if (threadIdx.x != 0) return;
  T of_target = -kInfinity, slope;
  if (own >= 0 && own < classes) of_target = bend.template bent<RowForm::Any>(widen<T>(logits[own]), slope);
  store_sums(block, row, sums, of_target);
}

template <class E, RowForm kForm>
__global__ void __launch_bounds__(kGradientThreads) class_gradients(const __grid_constant__ ClassBlock block) {
  using T = ScalarFor<E>;
  const int64_t row = blockIdx.x, own = place_of_target(block, row);
  const E* const logits = block.logits_of<E>(row);
  E* const gradient = block.gradient_of<E>(row);
  const bool in_vectors =
      (reinterpret_cast<uintptr_t>(logits) - reinterpret_cast<uintptr_t>(gradient)) % kVectorBytes == 0;
  const bool counts = block.counts == nullptr || block.counts[row] != 0;
  const RowSlopes slopes = slopes_of(block, row);
  const T high = static_cast<T>(slopes.log_sum), low = static_cast<T>(slopes.log_sum - high);
  const T of_exp = static_cast<T>(slopes.of_exp), of_own = static_cast<T>(slopes.of_own);
  const T mean = static_cast<T>(slopes.mean), mean_low = static_cast<T>(slopes.mean - mean);
  const T of_mean = static_cast<T>(slopes.of_mean);
  const T of_shares = static_cast<T>(slopes.of_shares);
  const Bend<T> bend(block);
  each_vector<kGradientThreads, kGradientLoads>(logits, static_cast<int32_t>(block.classes),
                                                [&](int32_t column, const auto& x) {
                                                  constexpr int n = sizeof x / sizeof(E);
                                                  Vector<E, n> out;
#pragma unroll
                                                  for (int j = 0; j < n; ++j) {
                                                    T z = widen<T>(x.element[j]), factor = of_exp;
                                                    [[maybe_unused]] T slope = T(1);
                                                    if constexpr (kForm != RowForm::Plain)
                                                      z = bend.template bent<kForm>(z, slope);
                                                    const T e = exp_of<E>((z - high) - low);
                                                    if constexpr (kForm != RowForm::Plain) {
                                                      if (e != T(0))
                                                        factor += of_mean * (T(1) + ((z - mean) - mean_low));
                                                    }
                                                    T g = column + j == own ? of_own : e * factor;
                                                    if constexpr (kForm == RowForm::Any) {
                                                      if (block.shares) g += of_shares * block.weight_of<T>(column + j);
                                                    }
                                                    if constexpr (kForm != RowForm::Plain) g *= slope;
                                                    out.element[j] = narrow<E>(counts ? g : T(0));
                                                  }
                                                  if (n == 1 || in_vectors) {
                                                    *reinterpret_cast<Vector<E, n>*>(gradient + column) = out;
                                                  } else {
#pragma unroll
                                                    for (int j = 0; j < n; ++j) gradient[column + j] = out.element[j];
                                                  }
                                                });
}

}  // namespace

void class_block(const ClassBlock& block, Stream stream) {
  dispatch(block.dtype, [&](auto type) {
    using E = typename decltype(type)::type;
    const auto run = [&](auto form) {
      constexpr RowForm kForm = decltype(form)::value;
      const auto start = [&](auto kernel, int threads) {
        launch(kernel, Start::Alone, block.rows, threads, stream, block);
      };
      if (block.numbers) return start(class_gradients<E, kForm>, kGradientThreads);
      if constexpr (kForm != RowForm::Any) {
        if (block.classes * int64_t{sizeof(E)} <= kShortRow) {
          return start(class_sums<kShortSumThreads, E, kForm>, kShortSumThreads);
        }
      }
      start(class_sums<kSumThreads, E, kForm>, kSumThreads);
    };
    if constexpr (std::is_same_v<E, double>) {
      run(std::integral_constant<RowForm, RowForm::Any>());
    } else if (block.softcap != 0.0 || block.shares) {
      run(std::integral_constant<RowForm, RowForm::Any>());
    } else if (block.entropy || block.bends()) {
      run(std::integral_constant<RowForm, RowForm::Entropy>());
    } else {
      run(std::integral_constant<RowForm, RowForm::Plain>());
    }
  });
}

}  // namespace cudaloss::cuda
