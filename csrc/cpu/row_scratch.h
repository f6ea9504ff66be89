// The buffers of a thread that computes rows.
#pragma once

#include <vector>

#include "cpu/convert.h"
#include "cpu/row_kernels.h"

namespace cudaloss::cpu {

// The first arrays have an element for each row of a block.
template <class F>
struct RowScratch {
  int64_t of_input[kBlock], of_target[kBlock], of_third[kBlock];
  int64_t of_first[kBlock], of_second[kBlock], of_last[kBlock];  // results
  int64_t between;                                               // the distance between the input's rows
  int64_t index[kBlock], keep[kBlock];                           // index: a target; -1 if there is none that counts
  double weights[kBlock], factors[kBlock], rests[kBlock], terms[kBlock], of_segments[kBlock], segment_rests[kBlock],
      of_targets[kBlock],  // for a part: the targets' gradients, then their logits
      buffer[kBlock];
  uint8_t mask[kBlock];
  RowLanes<F> lanes = {};
  std::vector<F> tiles, shares, slopes;
};

// Up to kLanes rows of a block, from `first` on, and their tiles.
template <class F>
struct RowGroup {
  int64_t first, rows;
  F *tiles, *shares, *slopes;
};

}  // namespace cudaloss::cpu
