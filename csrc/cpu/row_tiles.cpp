#include "cpu/row_tiles.h"

#include <algorithm>
#include <type_traits>

#include "core/arith.h"

namespace cudaloss::cpu {
namespace {

template <class F, class Element>
CUDALOSS_MULTIVERSION void widen_row(const Element* source, int64_t stride, int64_t count, F* out) {
  if (stride == 1) {
    for (int64_t j = 0; j < count; ++j) out[j] = widen<F>(source[j]);
  } else {
    for (int64_t j = 0; j < count; ++j) out[j] = widen<F>(source[j * stride]);
  }
}
template <class F, class Element>
CUDALOSS_MULTIVERSION void narrow_row(const F* row, int64_t count, Element* out, int64_t stride) {
  if (stride == 1) {
    for (int64_t j = 0; j < count; ++j) out[j] = narrow<Element>(row[j]);
  } else {
    for (int64_t j = 0; j < count; ++j) out[j * stride] = narrow<Element>(row[j]);
  }
}

// Tiles for rows that are side by side: takes all the lines of a class first, because they are neighbours.
template <class F, class Element>
CUDALOSS_MULTIVERSION void widen_lines(const Element* source, int64_t stride, const TileShape& shape, int64_t tiles,
                                       F* out) {
  const int64_t classes = shape.classes, size = shape.size();
  for (int64_t j = 0; j < classes; ++j) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const Element* from = source + j * stride + tile * kLanes;
      F line[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) line[lane] = widen<F>(from[lane]);
      memcpy(out + tile * size + j * kLanes, line, sizeof line);
    }
  }
}
template <class F, class Element>
CUDALOSS_MULTIVERSION void narrow_lines(const F* tiles, int64_t lines, Element* out, int64_t stride) {
  for (int64_t j = 0; j < lines; ++j) {
    Element line[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) line[lane] = narrow<Element>(tiles[j * kLanes + lane]);
    memcpy(static_cast<void*>(out + j * stride), line, sizeof line);
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

// Turns kLanes rows of adjacent elements into a tile. The last turn overlaps the one before, so that it ends with the
// row.
template <class F>
CUDALOSS_MULTIVERSION void turn_in(const F* source, const int64_t* offsets, int64_t classes, F* tile) {
  constexpr int kSize = Turn<F>::kSize;
  for (int lane = 0; lane < kLanes; lane += kSize) {
    for (int64_t next = 0; next < classes; next += kSize) {
      const int64_t j = std::min(next, classes - kSize);
      Turn<F>::run([&](int i) CUDALOSS_INLINE_LAMBDA { return source + offsets[lane + i] + j; },
                   [&](int i) CUDALOSS_INLINE_LAMBDA { return tile + (j + i) * kLanes + lane; });
    }
  }
}
template <class F>
CUDALOSS_MULTIVERSION void turn_out(const F* tile, const int64_t* offsets, int64_t classes, F* out) {
  constexpr int kSize = Turn<F>::kSize;
  for (int lane = 0; lane < kLanes; lane += kSize) {
    for (int64_t next = 0; next < classes; next += kSize) {
      const int64_t j = std::min(next, classes - kSize);
      Turn<F>::run([&](int i) CUDALOSS_INLINE_LAMBDA { return tile + (j + i) * kLanes + lane; },
                   [&](int i) CUDALOSS_INLINE_LAMBDA { return out + offsets[lane + i] + j; });
    }
  }
}
template <class F>
bool can_turn(int64_t stride, int64_t classes, int64_t rows) {
  return stride == 1 && rows == kLanes && classes >= Turn<F>::kSize;
}

// A tile of rows at any offsets.
template <class F, class Element>
CUDALOSS_MULTIVERSION void widen_lanes(const Element* source, const int64_t* offsets, int64_t stride, int64_t classes,
                                       int64_t rows, F* tile) {
  for (int64_t lane = 0; lane < rows; ++lane) {
    const Element* row = source + offsets[lane];
    for (int64_t j = 0; j < classes; ++j) tile[j * kLanes + lane] = widen<F>(row[j * stride]);
  }
  for (int64_t j = 0; rows < kLanes && j < classes; ++j) {
    std::fill(tile + j * kLanes + rows, tile + (j + 1) * kLanes, F(0));
  }
}
template <class F, class Element>
CUDALOSS_MULTIVERSION void narrow_lanes(const F* tile, int64_t classes, int64_t rows, Element* out,
                                        const int64_t* offsets, int64_t stride) {
  for (int64_t lane = 0; lane < rows; ++lane) {
    Element* row = out + offsets[lane];
    for (int64_t j = 0; j < classes; ++j) row[j * stride] = narrow<Element>(tile[j * kLanes + lane]);
  }
}

template <class F, class Element>
void widen_tile(const Element* source, const int64_t* offsets, int64_t stride, int64_t classes, int64_t rows, F* tile) {
  if constexpr (std::is_same_v<F, Element>) {
    if (can_turn<F>(stride, classes, rows)) return turn_in(source, offsets, classes, tile);
  }
  widen_lanes(source, offsets, stride, classes, rows, tile);
}
template <class F, class Element>
void narrow_tile(const F* tile, int64_t classes, int64_t rows, Element* out, const int64_t* offsets, int64_t stride) {
  if constexpr (std::is_same_v<F, Element>) {
    if (can_turn<F>(stride, classes, rows)) return turn_out(tile, offsets, classes, out);
  }
  narrow_lanes(tile, classes, rows, out, offsets, stride);
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

template <class F, class Element>
void read_across(const Element* data, const int64_t* offsets, int64_t stride, const TileShape& shape, int64_t rows,
                 F* tiles) {
  for (int64_t row = 0; row < rows;) {
    F* tile = tiles + shape.at(row, 0);
    const int64_t in_line = tiles_in_line(offsets, row, rows), left = std::min<int64_t>(kLanes, rows - row);
    if (in_line > 0) {
      widen_lines(data + offsets[row], stride, shape, in_line, tile);
    } else {
      widen_tile(data, offsets + row, stride, shape.classes, left, tile);
    }
    row += std::max<int64_t>(1, in_line) * kLanes;
  }
}

template <class F, class Element>
void read_along(const Element* data, const int64_t* offsets, int64_t stride, const TileShape& shape, int64_t rows,
                const int64_t* keep, F* tiles) {
  for (int64_t row = 0; row < rows; ++row) {
    F* tile = tiles + shape.at(row, 0);
    if (!keep[row]) continue;
    widen_row(data + offsets[row], stride, shape.classes, tile);
    std::fill(tile + shape.classes, tile + shape.size(), F(-INFINITY));
  }
}

}  // namespace

void read_indices(const Operand& operand, const int64_t* offsets, int64_t count, int64_t* out) {
  dispatch_any(operand.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    const Element* data = static_cast<const Element*>(operand.data);
    for (int64_t i = 0; i < count; ++i) out[i] = widen<int64_t>(data[offsets[i]]);
  });
}

template <class F>
void read_rows(const Operand& operand, const int64_t* offsets, int64_t class_stride, const TileShape& shape,
               int64_t rows, const int64_t* keep, F* tiles) {
  dispatch(operand.dtype, [&](auto type) {
    const auto* data = static_cast<const typename decltype(type)::type*>(operand.data);
    if (shape.across) return read_across(data, offsets, class_stride, shape, rows, tiles);
    read_along(data, offsets, class_stride, shape, rows, keep, tiles);
  });
}

template <class F>
void write_rows(const Result& result, const int64_t* offsets, int64_t class_stride, const TileShape& shape,
                int64_t rows, const F* tiles) {
  dispatch(result.dtype, [&](auto type) {
    auto* data = static_cast<typename decltype(type)::type*>(result.data);
    const int64_t step = shape.across ? kLanes : 1;
    for (int64_t row = 0; row < rows; row += step) {
      const F* tile = tiles + shape.at(row, 0);
      const int64_t left = std::min(step, rows - row);
      if (!shape.across) {
        narrow_row(tile, shape.classes, data + offsets[row], class_stride);
      } else if (left == kLanes && is_line(offsets + row)) {
        narrow_lines(tile, shape.classes, data + offsets[row], class_stride);
      } else {
        narrow_tile(tile, shape.classes, left, data, offsets + row, class_stride);
      }
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
