// Conversions between elements of any dtype in memory and the two types that the CPU kernels compute with.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/arith.h"
#include "core/pass.h"

namespace cudaloss::cpu {

constexpr int64_t kBlock = 1024;

template <class F>
bool holds(DType dtype) {
  return dtype == kDTypeOf<F>;
}

// Calls body with a pointer to an operand's const elements, of any dtype or of a floating one, or to a result's
// elements.
template <class Body>
CUDALOSS_INLINE void with_any_elements(const Operand& operand, const Body& body) {
  dispatch_any(operand.dtype,
               [&](auto type) { body(static_cast<const typename decltype(type)::type*>(operand.data)); });
}
template <class Body>
CUDALOSS_INLINE void with_elements(const Operand& operand, const Body& body) {
  dispatch(operand.dtype, [&](auto type) { body(static_cast<const typename decltype(type)::type*>(operand.data)); });
}
template <class Body>
CUDALOSS_INLINE void with_elements(const Result& result, const Body& body) {
  dispatch(result.dtype, [&](auto type) { body(static_cast<typename decltype(type)::type*>(result.data)); });
}

// Moves an element between memory and a kernel's own F: reads if the memory is const, writes otherwise. So each loop
// over elements in memory is there once, for both ways.
template <class Element, class F>
CUDALOSS_INLINE void move(Element& memory, F& own) {
  if constexpr (std::is_const_v<Element>) {
    own = widen<F>(memory);
  } else {
    memory = narrow<Element>(own);
  }
}

}  // namespace cudaloss::cpu
