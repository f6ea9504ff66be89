// The ops of the logits of pairs.
#pragma once

#include "core/contrast.h"
#include "torch/class_block.h"

namespace cudaloss::tensors {

inline PairLogits pair_logits_of(const Tensor& logits, int64_t first) {
  require_no_grad();
  require(logits.dim() == 2 && logits.sizes()[1] > 0 && logits.strides()[1] == 1, "logits must be rows of columns");
  const int64_t bytes = static_cast<int64_t>(logits.element_size()), row = logits.strides()[0] * bytes;
  void* const data = logits.mutable_data_ptr();
  require(reinterpret_cast<uintptr_t>(data) % 16 == 0 && row % 16 == 0 && row >= logits.sizes()[1] * bytes,
          "each row of logits must begin at 16 bytes and have its memory to the end of the last 16");
  require(0 <= first && first + logits.sizes()[0] <= logits.sizes()[1], "each row must have its own column");
  return {data, logits.sizes()[0], logits.sizes()[1], logits.strides()[0], first};
}
inline Tensor new_doubles(int64_t size, const Tensor& beside) {
  const int64_t one = 1;
  return empty({&size, 1}, {&one, 1}, ScalarType::Double, beside);
}
inline const double* doubles_of(const Tensor& tensor, int64_t size, const Tensor& beside) {
  require(is_vector(tensor, size, ScalarType::Double, beside), "the numbers must be contiguous float64");
  return static_cast<const double*>(tensor.const_data_ptr());
}
inline const double* double_of(const Tensor& number, const Tensor& beside) {
  require(number.dim() == 0 && number.scalar_type() == ScalarType::Double && same_device(number, beside),
          "the number must be a 0-d float64 tensor");
  return static_cast<const double*>(number.const_data_ptr());
}

// The logarithm of the sum of exp over each column's rows, without its own row.
template <class Engine>
Tensor column_logs(Tensor logits, int64_t first) {
  const PairLogits pairs = pair_logits_of(logits, first);
  const Tensor logs = new_doubles(pairs.columns, logits);
  dispatch(dtype_of(logits.scalar_type()), [&](auto type) {
    using Function = ColumnSums<typename decltype(type)::type>;
    using T = typename Function::T;
    const int64_t slices = Function(pairs, nullptr).slices(), sizes[] = {slices, 2, pairs.columns};
    const int64_t strides[] = {2 * pairs.columns, pairs.columns, 1};
    const Tensor sums = empty(sizes, strides, scalar_beside(logits), logits);
    const Function function(pairs, static_cast<T*>(sums.mutable_data_ptr()));
    Engine::each(function, function.tiles(), logits);
    const ColumnLogs<T> join = {function.sums, slices, pairs.columns, static_cast<double*>(logs.mutable_data_ptr())};
    Engine::each(join, pairs.columns, logits);
  });
  return logs;
}

template <class Engine>
void pair_gradients(Tensor logits, int64_t first, Tensor row_logs, Tensor column_logs, Tensor of_own) {
  const PairLogits pairs = pair_logits_of(logits, first);
  const double* const of_rows = doubles_of(row_logs, pairs.rows, logits);
  const double* const of_columns = doubles_of(column_logs, pairs.columns, logits);
  const double* const own = doubles_of(of_own, pairs.rows, logits);
  dispatch(dtype_of(logits.scalar_type()), [&](auto type) {
    const PairGradients<typename decltype(type)::type> function(pairs, of_rows, of_columns, own);
    Engine::each(function, function.tiles(), logits);
  });
}

// Returns (3, tiles): the parts of three sums.
template <class Engine>
Tensor pair_logistic(Tensor logits, int64_t first, Tensor scale, Maybe bias) {
  const PairLogits pairs = pair_logits_of(logits, first);
  const double* const by = double_of(scale, logits);
  const double* const more = bias ? double_of(*bias, logits) : nullptr;
  Tensor sums;
  dispatch(dtype_of(logits.scalar_type()), [&](auto type) {
    using Function = PairLogistic<typename decltype(type)::type>;
    const int64_t tiles = Function(pairs, by, more, nullptr).tiles(), sizes[] = {3, tiles}, strides[] = {tiles, 1};
    sums = empty(sizes, strides, ScalarType::Double, logits);
    Engine::each(Function(pairs, by, more, static_cast<double*>(sums.mutable_data_ptr())), tiles, logits);
  });
  return sums;
}

// Returns the parts of the sum of a times b.
template <class Engine>
Tensor partial_dots(Tensor a, Tensor b) {
  require_no_grad();
  require(a.is_contiguous() && b.is_contiguous() && same_sizes(a, b) && a.scalar_type() == scalar_beside(b) &&
              same_device(a, b),
          "the operands must be contiguous, the first one in the arithmetic of the second");
  Tensor parts;
  dispatch(dtype_of(b.scalar_type()), [&](auto type) {
    using E = typename decltype(type)::type;
    using T = typename PartialDots<E>::T;
    const auto* const x = static_cast<const T*>(a.const_data_ptr());
    const auto* const y = static_cast<const E*>(b.const_data_ptr());
    const bool in_vectors = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % 32 == 0;
    const int64_t count = a.numel(), indices = PartialDots<E>::indices(count);
    parts = new_doubles(indices, a);
    const PartialDots<E> function = {x, y, count, in_vectors, static_cast<double*>(parts.mutable_data_ptr())};
    Engine::each(function, indices, a);
  });
  return parts;
}

}  // namespace cudaloss::tensors
