#include "cpu/convert.h"

#include "core/arith.h"

namespace cudaloss::cpu {
namespace {

template <class F, class Element>
CUDALOSS_MULTIVERSION void widen_block(const Element* source, int64_t count, F* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = widen<F>(source[i]);
}

template <class F, class Element>
CUDALOSS_MULTIVERSION void narrow_block(const F* values, int64_t count, Element* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = narrow<Element>(values[i]);
}

}  // namespace

template <class F>
const F* read(const Operand& operand, int64_t begin, int64_t count, F* buffer) {
  if (holds<F>(operand.dtype)) return static_cast<const F*>(operand.data) + begin;
  dispatch_any(operand.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    widen_block(static_cast<const Element*>(operand.data) + begin, count, buffer);
  });
  return buffer;
}

template <class F>
F* writable(const Result& result, int64_t begin, F* buffer) {
  return holds<F>(result.dtype) ? static_cast<F*>(result.data) + begin : buffer;
}

template <class F>
void write(const Result& result, int64_t begin, int64_t count, const F* values) {
  if (holds<F>(result.dtype)) return;  // written in place
  dispatch(result.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    narrow_block(values, count, static_cast<Element*>(result.data) + begin);
  });
}

#define CUDALOSS_INSTANTIATE(F)                                    \
  template const F* read<F>(const Operand&, int64_t, int64_t, F*); \
  template F* writable<F>(const Result&, int64_t, F*);             \
  template void write<F>(const Result&, int64_t, int64_t, const F*);
CUDALOSS_INSTANTIATE(float)
CUDALOSS_INSTANTIATE(double)
#undef CUDALOSS_INSTANTIATE

}  // namespace cudaloss::cpu
