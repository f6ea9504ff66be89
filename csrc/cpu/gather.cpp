#include "cpu/gather.h"

#include <type_traits>

#include "cpu/convert.h"

namespace cudaloss::cpu {
namespace {

// Stands for an element of any dtype of that size. Elements are moved unchanged, and converted a block at a time. So
// there is one loop for each size, not one for each pair of dtypes: a wheel is 140 KB smaller, and all dtypes are
// faster except fp32, which is as fast.
template <class Word>
struct __attribute__((may_alias)) Bits {
  Word word;
};

// A block of elements of any dtype.
struct alignas(64) Packed {
  uint64_t words[kBlock];
};

// Calls body with a Type of the right size to hold an element of `dtype`.
template <class Body>
void dispatch_size(DType dtype, const Body& body) {
  dispatch_any(dtype, [&](auto type) {
    constexpr size_t kSize = sizeof(typename decltype(type)::type);
    using Short = std::conditional_t<kSize == 1, uint8_t, uint16_t>;
    using Long = std::conditional_t<kSize == 4, uint32_t, uint64_t>;
    body(Type<Bits<std::conditional_t<kSize <= 2, Short, Long>>>());
  });
}

// Whether the loop over rows is the inner one: if the rows are closer together in memory than the columns, or so short
// that a loop over one is mostly its beginning and end.
bool goes_down(const Patch& patch) {
  constexpr int64_t kShortRow = 16;
  if (patch.rows == 1) return false;
  if (patch.row_stride != 0 && patch.row_stride < patch.column_stride) return true;
  return patch.columns < kShortRow && patch.columns < patch.rows;
}

template <int kStride, class Element>
CUDALOSS_INLINE void gather_stepped(const Element* source, int64_t count, Element* out) {
  for (int64_t i = 0; i < count; ++i) out[i].word = source[i * kStride].word;
}

// The commonest strides each have their own loop: it vectorises if the stride is a constant.
template <class Element>
CUDALOSS_INLINE void gather_line(const Element* source, int64_t stride, int64_t count, Element* out) {
  switch (stride) {
    case 0:
      return gather_stepped<0>(source, count, out);
    case 1:
      return gather_stepped<1>(source, count, out);
    case 2:
      return gather_stepped<2>(source, count, out);
    case 3:
      return gather_stepped<3>(source, count, out);
    case 4:
      return gather_stepped<4>(source, count, out);
    default:
      for (int64_t i = 0; i < count; ++i) out[i].word = source[i * stride].word;
  }
}

template <class Element>
CUDALOSS_MULTIVERSION void gather_patch(const Element* source, Patch patch, bool down, Element* out) {
  if (down) {
    for (int64_t column = 0; column < patch.columns; ++column) {
      const Element* from = source + column * patch.column_stride;
      Element* to = out + column;
      for (int64_t row = 0; row < patch.rows; ++row) to[row * patch.columns].word = from[row * patch.row_stride].word;
    }
  } else {
    for (int64_t row = 0; row < patch.rows; ++row) {
      gather_line(source + row * patch.row_stride, patch.column_stride, patch.columns, out + row * patch.columns);
    }
  }
}

template <class Element>
CUDALOSS_INLINE void scatter_line(const Element* values, int64_t step, int64_t count, Element* out, int64_t stride) {
  if (step == 1 && stride == 1) {
    for (int64_t i = 0; i < count; ++i) out[i].word = values[i].word;
  } else {
    for (int64_t i = 0; i < count; ++i) out[i * stride].word = values[i * step].word;
  }
}

template <class Element>
CUDALOSS_MULTIVERSION void scatter_patch(const Element* values, Patch patch, bool down, Element* out) {
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

// Packs the elements that `walk` visits next into `packed`.
void gather(const Operand& operand, const Walk& walk, const Position& at, Place place, int64_t count, void* packed) {
  dispatch_size(operand.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    walk.for_each_patch(at, count, place, [&](int64_t offset, const Patch& patch, int64_t done) {
      const Element* source = static_cast<const Element*>(operand.data) + offset;
      gather_patch(source, patch, goes_down(patch), static_cast<Element*>(packed) + done);
    });
  });
}

void scatter(const void* packed, const Result& result, const Walk& walk, const Position& at, Place place,
             int64_t count) {
  dispatch_size(result.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    walk.for_each_patch(at, count, place, [&](int64_t offset, const Patch& patch, int64_t done) {
      const Element* values = static_cast<const Element*>(packed) + done;
      scatter_patch(values, patch, goes_down(patch), static_cast<Element*>(result.data) + offset);
    });
  });
}

}  // namespace

template <class F>
const F* read(const Operand& operand, const Walk& walk, const Position& at, Place place, int64_t count, F* buffer) {
  if (walk.is_run(at, count, place)) return read(operand, walk.offset(at, place), count, buffer);
  Packed block;
  void* packed = holds<F>(operand.dtype) ? static_cast<void*>(buffer) : &block;
  gather(operand, walk, at, place, count, packed);
  return read(Operand{packed, operand.dtype}, 0, count, buffer);
}

const uint8_t* read_mask(const Operand& mask, const Walk& walk, const Position& at, int64_t count, uint8_t* buffer) {
  if (walk.is_run(at, count, kMask)) return static_cast<const uint8_t*>(mask.data) + walk.offset(at, kMask);
  gather(mask, walk, at, kMask, count, buffer);
  return buffer;
}

template <class F>
F* writable(const Result& result, const Walk& walk, const Position& at, Place place, int64_t count, F* buffer) {
  return walk.is_run(at, count, place) ? writable(result, walk.offset(at, place), buffer) : buffer;
}

template <class F>
void write(const Result& result, const Walk& walk, const Position& at, Place place, int64_t count, const F* values) {
  if (walk.is_run(at, count, place)) return write(result, walk.offset(at, place), count, values);
  Packed block;
  write(Result{&block, result.dtype}, 0, count, values);
  scatter(holds<F>(result.dtype) ? static_cast<const void*>(values) : &block, result, walk, at, place, count);
}

#define CUDALOSS_INSTANTIATE(F)                                                                \
  template const F* read<F>(const Operand&, const Walk&, const Position&, Place, int64_t, F*); \
  template F* writable<F>(const Result&, const Walk&, const Position&, Place, int64_t, F*);    \
  template void write<F>(const Result&, const Walk&, const Position&, Place, int64_t, const F*);
CUDALOSS_INSTANTIATE(float)
CUDALOSS_INSTANTIATE(double)
#undef CUDALOSS_INSTANTIATE

}  // namespace cudaloss::cpu
