// The ops of a block of classes: the sums of each row, the numbers from the sums of all blocks, and the logits'
// gradients from the numbers'. And the log-probability and entropy that follow from the numbers.
#pragma once

#include "core/class_block.h"
#include "torch/call.h"

namespace cudaloss::tensors {

// The first arguments of two ops' schemas.
#define CUDALOSS_BLOCK                                                                                     \
  Tensor input, Tensor target, Maybe counts, Maybe class_weight, int64_t first_class, int64_t all_classes, \
      double softcap, double temperature, bool entropy, bool shares
#define CUDALOSS_BLOCK_ARGUMENTS \
  input, target, counts, class_weight, first_class, all_classes, softcap, temperature, entropy, shares

inline bool is_vector(const Tensor& tensor, int64_t size, ScalarType dtype, const Tensor& beside) {
  return tensor.dim() == 1 && tensor.sizes()[0] == size && tensor.is_contiguous() && tensor.scalar_type() == dtype &&
         same_device(tensor, beside);
}
inline int64_t rows_of(const Tensor& logits) { return logits.sizes()[0] * logits.sizes()[1]; }
// Two dimensions of rows, then the classes.
inline bool has_rows(const Tensor& logits) {
  return logits.dim() == 3 && (logits.strides()[2] == 1 || logits.sizes()[2] <= 1);
}
inline bool has_numbers(const Tensor& tensor, int64_t rows, const Tensor& beside) {
  return tensor.dim() == 2 && tensor.sizes()[0] == kRowNumbers && tensor.sizes()[1] == rows && tensor.is_contiguous() &&
         tensor.scalar_type() == ScalarType::Double && same_device(tensor, beside);
}
inline ScalarType scalar_beside(const Tensor& logits) {
  return logits.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}
inline const int64_t* indices_of(const Tensor& target, int64_t rows, const Tensor& beside) {
  require(is_vector(target, rows, ScalarType::Long, beside), "target must be contiguous indices, one for each row");
  return static_cast<const int64_t*>(target.const_data_ptr());
}
inline const uint8_t* counts_of(const Maybe& counts, int64_t rows, const Tensor& beside) {
  if (!counts) return nullptr;
  require(is_vector(*counts, rows, ScalarType::Bool, beside), "counts must be contiguous bools of the rows");
  return static_cast<const uint8_t*>(counts->const_data_ptr());
}
inline Tensor new_numbers(int64_t rows, const Tensor& beside) {
  const int64_t sizes[] = {kRowNumbers, rows}, strides[] = {rows, 1};
  return empty(sizes, strides, ScalarType::Double, beside);
}

inline ClassBlock class_block_of(CUDALOSS_BLOCK) {
  require_no_grad();
  require(has_rows(input) && input.sizes()[2] < INT32_MAX, "logits must be rows of contiguous classes");
  const int64_t rows = rows_of(input), classes = input.sizes()[2];
  require(!class_weight || is_vector(*class_weight, classes, scalar_beside(input), input),
          "class_weight must be contiguous numbers of the block's classes");
  require(0 <= first_class && first_class <= all_classes - classes, "first_class must be one of all classes");
  ClassBlock block = {};
  block.dtype = dtype_of(input.scalar_type());
  block.logits = input.const_data_ptr();
  block.rows = rows;
  block.classes = classes;
  block.inner_rows = std::max<int64_t>(1, input.sizes()[1]);
  block.outer_stride = input.strides()[0];
  block.row_stride = input.strides()[1];
  block.first_class = first_class;
  block.all_classes = all_classes;
  block.target = indices_of(target, rows, input);
  block.counts = counts_of(counts, rows, input);
  block.class_weight = class_weight ? class_weight->const_data_ptr() : nullptr;
  block.softcap = softcap;
  block.temperature = temperature;
  block.entropy = entropy;
  block.shares = shares;
  return block;
}

// Writes the sums of the index-th block into (blocks, kRowSums, rows).
template <class Engine>
void class_sums(CUDALOSS_BLOCK, Tensor sums, int64_t index) {
  ClassBlock block = class_block_of(CUDALOSS_BLOCK_ARGUMENTS);
  require(sums.dim() == 3 && sums.is_contiguous() && sums.sizes()[1] == kRowSums && sums.sizes()[2] == block.rows &&
              sums.scalar_type() == scalar_beside(input) && same_device(sums, input) && index >= 0 &&
              index < sums.sizes()[0],
          "the sums must be contiguous, five for each row");
  const int64_t bytes = sums.scalar_type() == ScalarType::Double ? 8 : 4;
  block.sums = static_cast<char*>(sums.mutable_data_ptr()) + index * kRowSums * block.rows * bytes;
  Engine::class_block(block, input);
}

template <class Engine>
Tensor class_numbers(Tensor sums, Tensor target, Maybe counts, int64_t all_classes, bool entropy) {
  require(sums.dim() == 3 && sums.is_contiguous() && sums.sizes()[1] == kRowSums, "the sums must be contiguous");
  const int64_t blocks = sums.sizes()[0], rows = sums.sizes()[2];
  const Tensor numbers = new_numbers(rows, sums);
  const auto join = [&](auto type) {
    using T = typename decltype(type)::type;
    const JoinSums<T> function = {static_cast<const T*>(sums.const_data_ptr()),
                                  blocks,
                                  rows,
                                  all_classes,
                                  indices_of(target, rows, sums),
                                  counts_of(counts, rows, sums),
                                  entropy,
                                  static_cast<double*>(numbers.mutable_data_ptr())};
    Engine::each(function, rows, sums);
  };
  sums.scalar_type() == ScalarType::Double ? join(Type<double>()) : join(Type<float>());
  return numbers;
}

template <class Engine>
void class_gradients(CUDALOSS_BLOCK, Tensor numbers, Tensor grads, Tensor gradient) {
  ClassBlock block = class_block_of(CUDALOSS_BLOCK_ARGUMENTS);
  require(has_numbers(numbers, block.rows, input) && has_numbers(grads, block.rows, input),
          "the numbers and their gradients must be contiguous float64, four for each row");
  require(has_rows(gradient) && same_sizes(gradient, input) && gradient.scalar_type() == input.scalar_type() &&
              same_device(gradient, input),
          "the gradient must be like the logits");
  block.numbers = static_cast<const double*>(numbers.const_data_ptr());
  block.grads = static_cast<const double*>(grads.const_data_ptr());
  block.gradient = gradient.mutable_data_ptr();
  block.outer_gradient_stride = gradient.strides()[0];
  block.gradient_stride = gradient.strides()[1];
  Engine::class_block(block, input);
}

#undef CUDALOSS_BLOCK
#undef CUDALOSS_BLOCK_ARGUMENTS

// The log-probabilities and, if asked for, the entropies; in float64 or float32.
template <class Engine>
std::tuple<Tensor, Tensor> token_values(Tensor numbers, bool entropy, bool wide) {
  const int64_t rows = numbers.sizes()[1], one = 1;
  require(has_numbers(numbers, rows, numbers), "the numbers must be contiguous float64, four for each row");
  const ScalarType dtype = wide ? ScalarType::Double : ScalarType::Float;
  const Tensor log_prob = empty({&rows, 1}, {&one, 1}, dtype, numbers);
  const Tensor of_entropy = entropy ? empty({&rows, 1}, {&one, 1}, dtype, numbers) : Tensor();
  const auto make = [&](auto type) {
    using T = typename decltype(type)::type;
    const TokenValues<T> function = {static_cast<const double*>(numbers.const_data_ptr()), rows,
                                     static_cast<T*>(log_prob.mutable_data_ptr()),
                                     entropy ? static_cast<T*>(of_entropy.mutable_data_ptr()) : nullptr};
    Engine::each(function, rows, numbers);
  };
  wide ? make(Type<double>()) : make(Type<float>());
  return {log_prob, of_entropy};
}

template <class Engine>
Tensor token_gradients(Tensor numbers, Maybe of_log_prob, Maybe of_entropy) {
  const int64_t rows = numbers.sizes()[1];
  require(has_numbers(numbers, rows, numbers), "the numbers must be contiguous float64, four for each row");
  require(of_log_prob || of_entropy, "there must be a gradient");
  const ScalarType dtype = (of_log_prob ? *of_log_prob : *of_entropy).scalar_type();
  const Tensor grads = new_numbers(rows, numbers);
  const auto make = [&](auto type) {
    using T = typename decltype(type)::type;
    const auto data = [&](const Maybe& grad) -> const T* {
      if (!grad) return nullptr;
      require(is_vector(*grad, rows, dtype, numbers), "the gradients must be contiguous and of one dtype");
      return static_cast<const T*>(grad->const_data_ptr());
    };
    const TokenGradients<T> function = {static_cast<const double*>(numbers.const_data_ptr()), rows, data(of_log_prob),
                                        data(of_entropy), static_cast<double*>(grads.mutable_data_ptr())};
    Engine::each(function, rows, numbers);
  };
  require(dtype == ScalarType::Double || dtype == ScalarType::Float, "the gradients must be float32 or float64");
  dtype == ScalarType::Double ? make(Type<double>()) : make(Type<float>());
  return grads;
}

// Writes gradient * factor, a 0-d float64 tensor, into `out`, which can be the gradient.
template <class Engine>
void scaled_gradient(Tensor gradient, Tensor factor, Tensor out) {
  require(gradient.is_contiguous() && out.is_contiguous() && same_sizes(gradient, out) && same_device(gradient, out) &&
              same_device(gradient, factor) && factor.dim() == 0 && factor.scalar_type() == ScalarType::Double,
          "a gradient and its result must be contiguous, the factor a 0-d float64 tensor");
  constexpr uintptr_t kVector = 16;
  const bool in_vectors = reinterpret_cast<uintptr_t>(gradient.const_data_ptr()) % kVector == 0 &&
                          reinterpret_cast<uintptr_t>(out.const_data_ptr()) % kVector == 0;
  const auto run = [&](auto from, auto to) {
    using From = typename decltype(from)::type;
    using To = typename decltype(to)::type;
    using Function = ScaledGradient<From, To>;
    const Function function = {static_cast<const From*>(gradient.const_data_ptr()),
                               static_cast<const double*>(factor.const_data_ptr()),
                               static_cast<To*>(out.mutable_data_ptr()), gradient.numel(), in_vectors};
    Engine::each(function, Function::indices(gradient.numel()), gradient);
  };
  const DType from = dtype_of(gradient.scalar_type()), to = dtype_of(out.scalar_type());
  require(from == to || (from == DType::Float32 && is_half(to)),
          "the result must be of the gradient's dtype, or a half");
  switch (to) {
    case DType::Float32:
      return run(Type<float>(), Type<float>());
    case DType::Float64:
      return run(Type<double>(), Type<double>());
    case DType::Float16:
      return from == to ? run(Type<Half>(), Type<Half>()) : run(Type<float>(), Type<Half>());
    default:
      return from == to ? run(Type<BFloat16>(), Type<BFloat16>()) : run(Type<float>(), Type<BFloat16>());
  }
}

}  // namespace cudaloss::tensors
