// The CPU engine: fixed chunks shared out over threads, blocks of a chunk through the loops of kernels.h.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "core/plan.h"
#include "core/sum.h"
#include "cpu/convert.h"
#include "cpu/engine.h"
#include "cpu/kernels.h"

namespace cudaloss::cpu {

template <class Body>
void for_each_chunk(ParallelFor parallel_for, int64_t count, const Body& body) {
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t chunk = first; chunk < last; ++chunk) {
      const int64_t begin = chunk * plan::kChunk;
      body(chunk, begin, std::min(count, begin + plan::kChunk));
    }
  };
  const int64_t chunks = plan::chunks(count);
  if (chunks <= 1) return run(0, chunks);
  using Run = decltype(run);
  parallel_for(
      0, chunks, 1, [](int64_t first, int64_t last, void* context) { (*static_cast<Run*>(context))(first, last); },
      const_cast<void*>(static_cast<const void*>(&run)));
}

// Calls body(begin, length) for the blocks of [begin, end).
template <class Body>
void for_each_block(int64_t begin, int64_t end, const Body& body) {
  for (int64_t at = begin; at < end; at += kBlock) body(at, std::min(kBlock, end - at));
}

inline Sum in_order(const Sum* partials, int64_t count) {
  Sum total = {};
  for (int64_t i = 0; i < count; ++i) total.add(partials[i]);
  return total;
}

// The gradients that are wanted, of one block's operands, which are read already: to_input is filled with them, or
// to_target with their negatives, or both.
struct Gradients {
  const Result &to_input, &to_target;
  double scale;

  // `fill(scale, out)` writes the gradients of the input times `scale`. `spare` holds a block that is not needed again.
  template <class T, class F, class Fill>
  void write_block(int64_t at, int64_t length, F* buffer, F* spare, const Fill& fill) const {
    const Result& first = to_input.data ? to_input : to_target;
    F* out = writable(first, at, buffer);
    fill(static_cast<T>(to_input.data ? scale : -scale), out);
    write(first, at, length, out);
    if (to_input.data && to_target.data) {
      F* mirrored = writable(to_target, at, spare);
      negate(out, length, mirrored);
      write(to_target, at, length, mirrored);
    }
  }
};

// The loss, and whatever else `visit(at, length, input, target, spare)` makes of the blocks that were read for it.
template <class T, class F, class Loss, class Visit>
void reduce_visiting(const Forward& request, ParallelFor parallel_for, const Visit& visit) {
  const Loss loss(request.parameter);
  std::vector<Sum> partials(plan::chunks(request.count));
  for_each_chunk(parallel_for, request.count, [&](int64_t chunk, int64_t begin, int64_t end) {
    F input[kBlock], target[kBlock];
    Sum blocks[plan::kChunk / kBlock];
    int64_t filled = 0;
    for_each_block(begin, end, [&](int64_t at, int64_t length) {
      const F* a = read(request.input, at, length, input);
      const F* b = read(request.target, at, length, target);
      blocks[filled++] = sum_of_losses<T>(loss, a, b, length);
      visit(at, length, a, b, input);
    });
    partials[chunk] = in_order(blocks, filled);
  });
  const double total = in_order(partials.data(), static_cast<int64_t>(partials.size())).over(request.divisor);
  double buffer;
  *writable(request.output, 0, &buffer) = total;
  write(request.output, 0, 1, &total);
}

template <class T, class F, class Loss>
void reduce_as(const Forward& request, ParallelFor parallel_for) {
  reduce_visiting<T, F, Loss>(request, parallel_for, [](int64_t, int64_t, const F*, const F*, F*) {});
}

// TV is the arithmetic of the loss, T that of the gradients.
template <class TV, class T, class F, template <class> class Loss>
void train_as(const Training& request, ParallelFor parallel_for) {
  const Loss<T> loss(request.forward.parameter);
  const Gradients wanted = {request.grad_input, request.grad_target, 1.0 / request.forward.divisor};
  reduce_visiting<TV, F, Loss<TV>>(
      request.forward, parallel_for, [&](int64_t at, int64_t length, const F* a, const F* b, F* spare) {
        F buffer[kBlock];
        wanted.write_block<T>(at, length, buffer, spare,
                              [&](T scale, F* out) { gradients<T>(loss, scale, a, b, length, out); });
      });
}

template <class T, class F, class Loss>
void elementwise_as(const Forward& request, ParallelFor parallel_for) {
  const Loss loss(request.parameter);
  for_each_chunk(parallel_for, request.count, [&](int64_t, int64_t begin, int64_t end) {
    F input[kBlock], target[kBlock], buffer[kBlock];
    for_each_block(begin, end, [&](int64_t at, int64_t length) {
      F* out = writable(request.output, at, buffer);
      losses<T>(loss, read(request.input, at, length, input), read(request.target, at, length, target), length, out);
      write(request.output, at, length, out);
    });
  });
}

template <class T, class F, class Loss>
void backward_as(const Backward& request, ParallelFor parallel_for) {
  const Loss loss(request.parameter);
  double for_all = 1.0;
  if (request.grad_output_is_scalar) {
    double value;
    for_all = *read(request.grad_output, 0, 1, &value);
    if (request.hold_unit_gradients && for_all == 1.0) return;
  }
  const Gradients wanted = {request.grad_input, request.grad_target, for_all / request.divisor};
  for_each_chunk(parallel_for, request.count, [&](int64_t, int64_t begin, int64_t end) {
    F input[kBlock], target[kBlock], grad_output[kBlock], buffer[kBlock];
    for_each_block(begin, end, [&](int64_t at, int64_t length) {
      const F* a = read(request.input, at, length, input);
      const F* b = read(request.target, at, length, target);
      wanted.write_block<T>(at, length, buffer, input, [&](T factor, F* out) {
        if (request.grad_output_is_scalar) return gradients<T>(loss, factor, a, b, length, out);
        gradients<T>(loss, factor, read(request.grad_output, at, length, grad_output), a, b, length, out);
      });
    });
  });
}

inline bool any_float64(std::initializer_list<DType> dtypes) {
  return std::find(dtypes.begin(), dtypes.end(), DType::Float64) != dtypes.end();
}
inline bool all_half(std::initializer_list<DType> dtypes) {
  return std::all_of(dtypes.begin(), dtypes.end(),
                     [](DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; });
}

template <class T_, class F_>
struct Types {
  using T = T_;
  using F = F_;
};

// Calls body with the type to read and the arithmetic: fp64 throughout where it is involved, fp32 where that loses
// nothing the caller could see, else fp64 arithmetic over fp32 data.
template <class Body>
void with_types(bool float64, bool float32_suffices, const Body& body) {
  if (float64) return body(Types<double, double>());
  if (float32_suffices) return body(Types<float, float>());
  return body(Types<double, float>());
}

template <template <class> class Loss>
void reduce(const Forward& r, ParallelFor parallel_for) {
  const bool fast = r.count > plan::kExactCount || all_half({r.input.dtype, r.target.dtype, r.output.dtype});
  with_types(any_float64({r.input.dtype, r.target.dtype, r.output.dtype}), fast, [&](auto types) {
    using T = typename decltype(types)::T;
    reduce_as<T, typename decltype(types)::F, Loss<T>>(r, parallel_for);
  });
}

template <template <class> class Loss>
void elementwise(const Forward& r, ParallelFor parallel_for) {
  const bool fast = all_half({r.input.dtype, r.target.dtype, r.output.dtype});
  with_types(any_float64({r.input.dtype, r.target.dtype, r.output.dtype}), fast, [&](auto types) {
    using T = typename decltype(types)::T;
    elementwise_as<T, typename decltype(types)::F, Loss<T>>(r, parallel_for);
  });
}

template <template <class> class Loss>
void train(const Training& r, ParallelFor parallel_for) {
  const Forward& f = r.forward;
  const bool halves = all_half({f.input.dtype, f.target.dtype});
  with_types(any_float64({f.input.dtype, f.target.dtype}), halves, [&](auto types) {
    using T = typename decltype(types)::T;
    using F = typename decltype(types)::F;
    if (f.count > plan::kExactCount || (halves && all_half({f.output.dtype}))) {
      train_as<F, T, F, Loss>(r, parallel_for);  // the loss in the operands' own arithmetic, as `reduce` has it
    } else {
      train_as<double, T, F, Loss>(r, parallel_for);
    }
  });
}

template <template <class> class Loss>
void backward(const Backward& r, ParallelFor parallel_for) {
  with_types(any_float64({r.input.dtype, r.target.dtype, r.grad_output.dtype}),
             all_half({r.input.dtype, r.target.dtype}), [&](auto types) {
               using T = typename decltype(types)::T;
               backward_as<T, typename decltype(types)::F, Loss<T>>(r, parallel_for);
             });
}

}  // namespace cudaloss::cpu

#include "cpu/pass_impl.h"
