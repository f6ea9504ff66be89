// A function of each index.
#include <algorithm>
#include <type_traits>

#include "core/class_block.h"
#include "core/contrast.h"
#include "cpu/engine.h"

namespace cudaloss::cpu {

// How many elements an index stands for.
template <class Function, class = void>
constexpr int64_t kElementsOf = 1;
template <class Function>
constexpr int64_t kElementsOf<Function, std::void_t<decltype(Function::kElements)>> = Function::kElements;

template <class Function>
void each(const Function& function, int64_t count, ParallelFor parallel_for) {
  constexpr int64_t kGrain = std::max<int64_t>(1, (1 << 15) / kElementsOf<Function>);
  parallel_for(
      0, count, kGrain,
      [](int64_t begin, int64_t end, void* context) {
        const Function own = *static_cast<const Function*>(context);
        for (int64_t index = begin; index < end; ++index) own(index);
      },
      const_cast<Function*>(&function));
}
#define CUDALOSS_EACH(...) template void each(const __VA_ARGS__&, int64_t, ParallelFor)
CUDALOSS_EACH_FUNCTION(CUDALOSS_EACH);
CUDALOSS_EACH_OF_PAIRS(CUDALOSS_EACH);
#undef CUDALOSS_EACH

}  // namespace cudaloss::cpu
