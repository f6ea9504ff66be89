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

// Reads if the memory is const, writes otherwise.
template <class Element, class Own>
CUDALOSS_INLINE void move_bits(Element& memory, Own& packed) {
  if constexpr (std::is_const_v<Element>) {
    packed.word = memory.word;
  } else {
    memory.word = packed.word;
  }
}

template <int kStride, class Element, class Own>
CUDALOSS_INLINE void move_stepped(Element* memory, int64_t count, Own* packed) {
  for (int64_t i = 0; i < count; ++i) move_bits(memory[i * kStride], packed[i]);
}

// The commonest strides each have their own loop: it vectorises if the stride is a constant.
template <class Element, class Own>
CUDALOSS_INLINE void move_line(Element* memory, int64_t stride, int64_t count, Own* packed) {
  switch (stride) {
    case 0:
      return move_stepped<0>(memory, count, packed);
    case 1:
      return move_stepped<1>(memory, count, packed);
    case 2:
      return move_stepped<2>(memory, count, packed);
    case 3:
      return move_stepped<3>(memory, count, packed);
    case 4:
      return move_stepped<4>(memory, count, packed);
    default:
      for (int64_t i = 0; i < count; ++i) move_bits(memory[i * stride], packed[i]);
  }
}

template <class Element, class Own>
CUDALOSS_MULTIVERSION void move_patch(Element* memory, Patch patch, bool down, Own* packed) {
  if (down) {
    for (int64_t column = 0; column < patch.columns; ++column) {
      Element* from = memory + column * patch.column_stride;
      Own* to = packed + column;
      for (int64_t row = 0; row < patch.rows; ++row) move_bits(from[row * patch.row_stride], to[row * patch.columns]);
    }
  } else {
    for (int64_t row = 0; row < patch.rows; ++row) {
      move_line(memory + row * patch.row_stride, patch.column_stride, patch.columns, packed + row * patch.columns);
    }
  }
}

// Moves the elements that `walk` visits next from `data` to `packed`, or back if the data is not const.
template <class Data, class Packed>
void move_packed(Data* data, DType dtype, const Walk& walk, const Position& at, Place place, int64_t count,
                 Packed* packed) {
  dispatch_size(dtype, [&](auto type) {
    using Bits = typename decltype(type)::type;
    using Element = std::conditional_t<std::is_const_v<Data>, const Bits, Bits>;
    using Own = std::conditional_t<std::is_const_v<Data>, Bits, const Bits>;
    walk.for_each_patch(at, count, place, [&](int64_t offset, const Patch& patch, int64_t done) {
      move_patch(static_cast<Element*>(data) + offset, patch, goes_down(patch), static_cast<Own*>(packed) + done);
    });
  });
}

template <class Element, class F>
CUDALOSS_MULTIVERSION void move_block(Element* memory, int64_t count, F* own) {
  for (int64_t i = 0; i < count; ++i) move(memory[i], own[i]);
}

}  // namespace

template <class F>
const F* read(const Operand& operand, const Walk& walk, const Position& at, Place place, int64_t count, F* buffer) {
  const bool is_run = walk.is_run(at, count, place), is_own = holds<F>(operand.dtype);
  const int64_t begin = is_run ? walk.offset(at, place) : 0;
  if (is_run && is_own) return static_cast<const F*>(operand.data) + begin;
  Packed block;
  void* packed = is_own ? static_cast<void*>(buffer) : &block;
  if (!is_run) move_packed(operand.data, operand.dtype, walk, at, place, count, packed);
  if (is_own) return buffer;
  const Operand found = {is_run ? operand.data : packed, operand.dtype};
  with_any_elements(found, [&](const auto* data) { move_block(data + begin, count, buffer); });
  return buffer;
}

const uint8_t* read_mask(const Operand& mask, const Walk& walk, const Position& at, int64_t count, uint8_t* buffer) {
  if (walk.is_run(at, count, kMask)) return static_cast<const uint8_t*>(mask.data) + walk.offset(at, kMask);
  move_packed(mask.data, mask.dtype, walk, at, kMask, count, static_cast<void*>(buffer));
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
  const void* packed = holds<F>(result.dtype) ? static_cast<const void*>(values) : &block;
  move_packed(result.data, result.dtype, walk, at, place, count, packed);
}

template <class F>
F* writable(const Result& result, int64_t begin, F* buffer) {
  return holds<F>(result.dtype) ? static_cast<F*>(result.data) + begin : buffer;
}

template <class F>
void write(const Result& result, int64_t begin, int64_t count, const F* values) {
  if (holds<F>(result.dtype)) return;  // written in place
  with_elements(result, [&](auto* data) { move_block(data + begin, count, values); });
}

#define CUDALOSS_INSTANTIATE(F)                                                                  \
  template const F* read<F>(const Operand&, const Walk&, const Position&, Place, int64_t, F*);   \
  template F* writable<F>(const Result&, const Walk&, const Position&, Place, int64_t, F*);      \
  template void write<F>(const Result&, const Walk&, const Position&, Place, int64_t, const F*); \
  template F* writable<F>(const Result&, int64_t, F*);                                           \
  template void write<F>(const Result&, int64_t, int64_t, const F*);
CUDALOSS_INSTANTIATE(float)
CUDALOSS_INSTANTIATE(double)
#undef CUDALOSS_INSTANTIATE

}  // namespace cudaloss::cpu
