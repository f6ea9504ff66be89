#include "cpu/row_tiles.h"

#include <algorithm>
#include <type_traits>

#include "core/arith.h"

namespace cudaloss::cpu {
namespace {

template <class Element, class F>
CUDALOSS_MULTIVERSION void move_row(Element* memory, int64_t stride, int64_t count, F* own) {
  if (stride == 1) {
    for (int64_t i = 0; i < count; ++i) move(memory[i], own[i]);
  } else {
    for (int64_t i = 0; i < count; ++i) move(memory[i * stride], own[i]);
  }
}

// kLanes elements side by side; through a local array, so that the loop vectorises.
template <class Element, class F>
CUDALOSS_INLINE void move_line(Element* memory, F* own) {
  std::conditional_t<std::is_const_v<Element>, F, Element> line[kLanes];
  if constexpr (std::is_const_v<Element>) {
    for (int lane = 0; lane < kLanes; ++lane) move(memory[lane], line[lane]);
    memcpy(own, line, sizeof line);
  } else {
    for (int lane = 0; lane < kLanes; ++lane) move(line[lane], own[lane]);
    memcpy(static_cast<void*>(memory), line, sizeof line);
  }
}

// Tiles for rows that are side by side: takes all the lines of a class first, because they are neighbours.
template <class Element, class F>
CUDALOSS_MULTIVERSION void move_lines(Element* memory, int64_t stride, const TileShape& shape, int64_t count,
                                      F* tiles) {
  const int64_t classes = shape.classes, size = shape.size();
  for (int64_t j = 0; j < classes; ++j) {
    for (int64_t tile = 0; tile < count; ++tile) {
      move_line(memory + j * stride + tile * kLanes, tiles + tile * size + j * kLanes);
    }
  }
}

// Transposes a square of rows in registers. Each pass interleaves the elements of a row in the upper half and one in
// the lower half.
template <class F>
struct Turn {
  static constexpr int kSize = 32 / sizeof(F);
  typedef F Row __attribute__((vector_size(32)));

  CUDALOSS_INLINE static void interleave(const Row& a, const Row& b, Row& lower, Row& upper) {
#if __has_builtin(__builtin_shufflevector)  // GCC has it since version 12
    if constexpr (kSize == 8) {
      lower = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
      upper = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
      lower = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      upper = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }
#else
    for (int i = 0; i < kSize; ++i) lower[i] = i % 2 == 0 ? a[i / 2] : b[i / 2];
    for (int i = 0; i < kSize; ++i) upper[i] = i % 2 == 0 ? a[(kSize + i) / 2] : b[(kSize + i) / 2];
#endif
  }
  // Transposes the rows at `load(i)` into the rows at `store(i)`.
  template <class Load, class Store>
  CUDALOSS_INLINE static void run(const Load& load, const Store& store) {
    Row rows[kSize], turned[kSize];
    for (int i = 0; i < kSize; ++i) memcpy(&rows[i], load(i), sizeof(Row));
    for (int pass = 1; pass < kSize; pass *= 2) {
      for (int i = 0; i < kSize / 2; ++i) {
        interleave(rows[i], rows[i + kSize / 2], turned[2 * i], turned[2 * i + 1]);
      }
      for (int i = 0; i < kSize; ++i) rows[i] = turned[i];
    }
    for (int i = 0; i < kSize; ++i) memcpy(store(i), &rows[i], sizeof(Row));
  }
};

// Turns kLanes rows of adjacent elements into a tile, or back. The last turn overlaps the one before, so that it ends
// with the row.
template <class Element, class F>
CUDALOSS_MULTIVERSION void turn(Element* memory, const int64_t* offsets, int64_t classes, F* tile) {
  using Square = Turn<std::remove_const_t<F>>;
  for (int lane = 0; lane < kLanes; lane += Square::kSize) {
    for (int64_t next = 0; next < classes; next += Square::kSize) {
      const int64_t j = std::min(next, classes - Square::kSize);
      const auto row = [&](int i) CUDALOSS_INLINE_LAMBDA { return memory + offsets[lane + i] + j; };
      const auto line = [&](int i) CUDALOSS_INLINE_LAMBDA { return tile + (j + i) * kLanes + lane; };
      if constexpr (std::is_const_v<Element>) {
        Square::run(row, line);
      } else {
        Square::run(line, row);
      }
    }
  }
}

// A tile of rows at any offsets; lanes without a row read 0.
template <class Element, class F>
CUDALOSS_MULTIVERSION void move_lanes(Element* memory, const int64_t* offsets, int64_t stride, int64_t classes,
                                      int64_t rows, F* tile) {
  for (int64_t lane = 0; lane < rows; ++lane) {
    Element* row = memory + offsets[lane];
    for (int64_t j = 0; j < classes; ++j) move(row[j * stride], tile[j * kLanes + lane]);
  }
  if constexpr (std::is_const_v<Element>) {
    for (int64_t j = 0; rows < kLanes && j < classes; ++j) {
      std::fill(tile + j * kLanes + rows, tile + (j + 1) * kLanes, F(0));
    }
  }
}

// As `turn`, for elements of another type than the tile's, and rows of up to kShortRow.
template <class Element, class F>
void turn_converted(Element* memory, const int64_t* offsets, int64_t classes, F* tile) {
  using Own = std::remove_const_t<F>;
  Own converted[kLanes * kShortRow];
  int64_t places[kLanes];
  bool are_adjacent = true;
  for (int lane = 0; lane < kLanes; ++lane) {
    places[lane] = lane * classes;
    are_adjacent &= offsets[lane] - offsets[0] == places[lane];
  }
  const auto convert = [&](auto* own) {
    if (are_adjacent) return move_row(memory + offsets[0], 1, kLanes * classes, own);
    for (int lane = 0; lane < kLanes; ++lane) move_row(memory + offsets[lane], 1, classes, own + places[lane]);
  };
  if constexpr (std::is_const_v<Element>) {
    convert(&converted[0]);
    turn(static_cast<const Own*>(converted), places, classes, tile);
  } else {
    turn(&converted[0], places, classes, tile);
    convert(static_cast<const Own*>(converted));
  }
}

template <class Element, class F>
void move_tile(Element* memory, const int64_t* offsets, int64_t stride, int64_t classes, int64_t rows, F* tile) {
  using Own = std::remove_const_t<F>;
  constexpr bool kIsOwn = std::is_same_v<std::remove_const_t<Element>, Own>;
  if (stride != 1 || rows < kLanes || classes < Turn<Own>::kSize || (!kIsOwn && classes > kShortRow)) {
    move_lanes(memory, offsets, stride, classes, rows, tile);
  } else if constexpr (kIsOwn) {
    turn(memory, offsets, classes, tile);
  } else {
    turn_converted(memory, offsets, classes, tile);
  }
}

// How many tiles from `first` on have rows that follow each other.
int64_t tiles_in_line(const int64_t* offsets, int64_t first, int64_t rows) {
  int64_t tiles = 0;
  for (int64_t row = first; row + kLanes <= rows && is_line(offsets + row); row += kLanes) {
    if (offsets[row] != offsets[first] + (row - first)) break;
    ++tiles;
  }
  return tiles;
}

template <class Element, class F>
void move_across(Element* memory, const int64_t* offsets, int64_t stride, const TileShape& shape, int64_t rows,
                 F* tiles) {
  for (int64_t row = 0; row < rows;) {
    F* tile = tiles + shape.at(row, 0);
    const int64_t in_line = tiles_in_line(offsets, row, rows), left = std::min<int64_t>(kLanes, rows - row);
    if (in_line > 0) {
      move_lines(memory + offsets[row], stride, shape, in_line, tile);
    } else {
      move_tile(memory, offsets + row, stride, shape.classes, left, tile);
    }
    row += std::max<int64_t>(1, in_line) * kLanes;
  }
}

}  // namespace

void read_indices(const Operand& operand, const int64_t* offsets, int64_t count, int64_t* out) {
  with_any_elements(operand, [&](const auto* data) {
    for (int64_t i = 0; i < count; ++i) move(data[offsets[i]], out[i]);
  });
}

template <class F>
void read_rows(const Operand& operand, const int64_t* offsets, int64_t class_stride, const TileShape& shape,
               int64_t rows, const int64_t* keep, F* tiles) {
  with_elements(operand, [&](const auto* data) {
    if (shape.across) return move_across(data, offsets, class_stride, shape, rows, tiles);
    for (int64_t row = 0; row < rows; ++row) {
      F* tile = tiles + shape.at(row, 0);
      if (!keep[row]) continue;
      move_row(data + offsets[row], class_stride, shape.classes, tile);
      std::fill(tile + shape.classes, tile + shape.size(), F(-INFINITY));
    }
  });
}

template <class F>
void write_rows(const Result& result, const int64_t* offsets, int64_t class_stride, const TileShape& shape,
                int64_t rows, const F* tiles) {
  with_elements(result, [&](auto* data) {
    if (shape.across) return move_across(data, offsets, class_stride, shape, rows, tiles);
    for (int64_t row = 0; row < rows; ++row) {
      move_row(data + offsets[row], class_stride, shape.classes, tiles + shape.at(row, 0));
    }
  });
}

#define CUDALOSS_INSTANTIATE(F)                                                                                       \
  template void read_rows<F>(const Operand&, const int64_t*, int64_t, const TileShape&, int64_t, const int64_t*, F*); \
  template void write_rows<F>(const Result&, const int64_t*, int64_t, const TileShape&, int64_t, const F*);
CUDALOSS_INSTANTIATE(float)
CUDALOSS_INSTANTIATE(double)
#undef CUDALOSS_INSTANTIATE

}  // namespace cudaloss::cpu
