#include "cpu/gather.h"

#include <algorithm>

#include "core/arith.h"

namespace cudaloss::cpu {
namespace {

// Whether the loop over rows is the inner one: where the rows lie closer together in memory than the columns, or are so
// short that a loop over one is mostly its beginning and end.
bool goes_down(const Patch& patch) {
  constexpr int64_t kShortRow = 16;
  if (patch.rows == 1) return false;
  if (patch.row_stride != 0 && patch.row_stride < patch.column_stride) return true;
  return patch.columns < kShortRow && patch.columns < patch.rows;
}

template <int kStride, class F, class Element>
CUDALOSS_INLINE void gather_stepped(const Element* source, int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = widen<F>(source[i * kStride]);
}

// A loop of its own for each of the commonest strides: with a constant one it vectorises.
template <class F, class Element>
CUDALOSS_INLINE void gather_line(const Element* source, int64_t stride, int64_t count, F* out) {
  switch (stride) {
    case 0:
      return std::fill(out, out + count, widen<F>(*source));
    case 1:
      return gather_stepped<1>(source, count, out);
    case 2:
      return gather_stepped<2>(source, count, out);
    case 3:
      return gather_stepped<3>(source, count, out);
    case 4:
      return gather_stepped<4>(source, count, out);
    default:
      for (int64_t i = 0; i < count; ++i) out[i] = widen<F>(source[i * stride]);
  }
}

template <class F, class Element>
CUDALOSS_MULTIVERSION void gather_patch(const Element* source, Patch patch, bool down, F* out) {
  if (down) {
    for (int64_t column = 0; column < patch.columns; ++column) {
      const Element* from = source + column * patch.column_stride;
      F* to = out + column;
      for (int64_t row = 0; row < patch.rows; ++row) {
        to[row * patch.columns] = widen<F>(from[row * patch.row_stride]);
      }
    }
  } else {
    for (int64_t row = 0; row < patch.rows; ++row) {
      gather_line(source + row * patch.row_stride, patch.column_stride, patch.columns, out + row * patch.columns);
    }
  }
}

template <class F, class Element>
CUDALOSS_INLINE void scatter_line(const F* values, int64_t step, int64_t count, Element* out, int64_t stride) {
  if (step == 1 && stride == 1) {
    for (int64_t i = 0; i < count; ++i) out[i] = narrow<Element>(values[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) out[i * stride] = narrow<Element>(values[i * step]);
  }
}

template <class F, class Element>
CUDALOSS_MULTIVERSION void scatter_patch(const F* values, Patch patch, bool down, Element* out) {
  if (down) {
    for (int64_t column = 0; column < patch.columns; ++column) {
      scatter_line(values + column, patch.columns, patch.rows, out + column * patch.column_stride, patch.row_stride);
    }
  } else {
    for (int64_t row = 0; row < patch.rows; ++row) {
      scatter_line(values + row * patch.columns, 1, patch.columns, out + row * patch.row_stride, patch.column_stride);
    }
  }
}

template <class F, class Element>
void gather(const Element* data, const Walk& walk, const Position& at, Place place, int64_t count, F* out) {
  walk.for_each_patch(at, count, place, [&](int64_t offset, const Patch& patch, int64_t done) {
    gather_patch(data + offset, patch, goes_down(patch), out + done);
  });
}

template <class F>
constexpr DType kDType = sizeof(F) == sizeof(double) ? DType::Float64 : DType::Float32;

}  // namespace

template <class F>
const F* read(const Operand& operand, const Walk& walk, const Position& at, Place place, int64_t count, F* buffer) {
  if (operand.dtype == kDType<F> && walk.is_run(at, count, place)) {
    return static_cast<const F*>(operand.data) + walk.offset(at, place);
  }
  dispatch_any(operand.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    gather(static_cast<const Element*>(operand.data), walk, at, place, count, buffer);
  });
  return buffer;
}

const uint8_t* read_mask(const Operand& mask, const Walk& walk, const Position& at, int64_t count, uint8_t* buffer) {
  const uint8_t* bytes = static_cast<const uint8_t*>(mask.data);
  if (walk.is_run(at, count, kMask)) return bytes + walk.offset(at, kMask);
  gather(bytes, walk, at, kMask, count, buffer);
  return buffer;
}

template <class F>
F* writable(const Result& result, const Walk& walk, const Position& at, Place place, int64_t count, F* buffer) {
  if (result.dtype != kDType<F> || !walk.is_run(at, count, place)) return buffer;
  return static_cast<F*>(result.data) + walk.offset(at, place);
}

template <class F>
void write(const Result& result, const Walk& walk, const Position& at, Place place, int64_t count, const F* values) {
  if (result.dtype == kDType<F> && walk.is_run(at, count, place)) return;  // written in place
  dispatch(result.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    Element* data = static_cast<Element*>(result.data);
    walk.for_each_patch(at, count, place, [&](int64_t offset, const Patch& patch, int64_t done) {
      scatter_patch(values + done, patch, goes_down(patch), data + offset);
    });
  });
}

#define CUDALOSS_INSTANTIATE(F)                                                                \
  template const F* read<F>(const Operand&, const Walk&, const Position&, Place, int64_t, F*); \
  template F* writable<F>(const Result&, const Walk&, const Position&, Place, int64_t, F*);    \
  template void write<F>(const Result&, const Walk&, const Position&, Place, int64_t, const F*);
CUDALOSS_INSTANTIATE(float)
CUDALOSS_INSTANTIATE(double)
#undef CUDALOSS_INSTANTIATE

}  // namespace cudaloss::cpu
