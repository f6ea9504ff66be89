// How a pass over segments is shared out. It depends only on sizes and strides, so that every sum is added in the same
// order for any number of threads.
//
// A strip is the work that one thread does by itself: a segment, or a part of one; several short segments; or a part of
// each of several segments side by side. It consists of blocks, and the loops get one block at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "core/plan.h"
#include "cpu/blocks.h"
#include "cpu/engine.h"
#include "cpu/kernels.h"
#include "cpu/walk.h"

namespace cudaloss::cpu {

// If an operand has this many elements in a row, blocks end where the row does, so that all of them are read in place.
constexpr int64_t kLongRow = 256;
// A strip of whole segments has about this many elements: only a fraction of a thread's share, so that threads get
// equal shares.
constexpr int64_t kSegmentsStrip = plan::kChunk / 8;
// Segments side by side are cut into about this many strips, each with its own sums for all its segments.
constexpr int64_t kStripsAcross = 128;
// Few segments side by side have several sums each, so that a loop over sums is long enough to vectorise; but no more
// sums than are added up faster than the terms themselves.
constexpr int64_t kManyLanes = 256;
constexpr int64_t kTermsALane = 16;
// For fewer elements side by side, visiting them in this way costs more than it saves.
constexpr int64_t kLeastAcross = 512;

struct Strip {
  int64_t segment, segments;  // the first of them, and how many
  int64_t begin, end;         // these elements of each segment
};

// Elements that are visited one after the other: `length` elements in each of `segments`.
struct Block {
  int64_t before;             // how many elements are visited before
  int64_t segment, segments;  // the first of them within the strip, and how many
  int64_t length;

  int64_t count() const { return segments * length; }
};

// The dimensions from `begin` to before `end`.
inline Dims part_of(const Dims& dims, int begin, int end) {
  Dims part = {};
  for (int dim = begin; dim < end; ++dim) {
    part.size[part.rank] = dims.size[dim];
    std::copy(dims.stride[dim], dims.stride[dim] + kPlaces, part.stride[part.rank++]);
  }
  return part;
}

// How many of the segments' dimensions, from the fastest on, have neighbours that are closer together in memory than
// neighbours within a segment. Such segments are visited side by side.
inline int dims_side_by_side(const Dims& segments, const Dims& inner, std::initializer_list<Place> places) {
  if (inner.rank == 0) return 0;
  const auto is_closer = [&](const int64_t* stride) {
    for (const Place place : places) {
      const int64_t of_inner = inner.stride[0][place];
      if (stride[place] != 0 && of_inner != 0) return stride[place] < of_inner;
    }
    return false;
  };
  int dims = 0;
  while (dims < segments.rank && is_closer(segments.stride[dims])) ++dims;
  return part_of(segments, 0, dims).count() * inner.count() < kLeastAcross ? 0 : dims;
}

class Strips {
 public:
  // `first` and `second` are the most important places to read; `places` are all. With `row_elements`, an element of
  // the walk is a row of that much work.
  Strips(const Dims& segments, const Dims& inner, Place first, Place second, std::initializer_list<Place> places,
         int64_t row_elements = 1)
      : Strips(segments, inner, dims_side_by_side(segments, inner, places), first, second, places, row_elements) {}

  const Walk& walk() const { return walk_; }
  int64_t segments() const { return segments_; }
  int64_t inner() const { return inner_; }
  // The number of strips that share the same segments. If there are several, their sums are added at the end.
  int64_t parts() const { return parts_; }

  Strip strip(int64_t index) const {
    const int64_t groups = plan::ceil_div(span_, group_), group = index / parts_;
    const int64_t within = group % groups * group_, begin = index % parts_ * reach_;
    return {group / groups * span_ + within, std::min(group_, span_ - within), begin, std::min(inner_, begin + reach_)};
  }

  template <class Body>
  void for_each_block(const Strip& strip, const Body& body) const {
    if (strip.begin == strip.end) return;
    if (across_) return blocks_across(strip, body);
    const int64_t together = parts_ > 1 ? 1 : fitting(inner_);
    for (int64_t segment = 0; segment < strip.segments; segment += together) {
      if (together == 1) {
        blocks_along(strip, segment, body);
      } else {
        const int64_t segments = std::min(together, strip.segments - segment);
        body(Block{(strip.segment + segment) * inner_, segment, segments, inner_});
      }
    }
  }

  Grid grid(const Block& block) const {
    if (across_) return {block.segments, 1, block.length, block.segments};
    return {block.segments, block.length, block.length, 1};
  }

  template <class T>
  void add_terms(const Block& block, T* terms, bool compensated, Sums& sums) const {
    if (across_) {
      add_lanes(terms, block.count(), lanes(block.segments), compensated, sums);
    } else if (block.segments == 1) {
      add_segment(terms, block.length, sums, block.segment);
    } else {
      add_segments(terms, block.segments, block.length, compensated, sums, block.segment);
    }
  }

  // How many sums a strip with this many segments has.
  int64_t lanes(int64_t segments) const {
    if (!across_ || segments != span_) return segments;
    return std::max<int64_t>(1, std::min(kManyLanes / segments, std::min(inner_, reach_) / kTermsALane)) * segments;
  }

  // Calls body(first, last) for ranges of strips, on threads if there are enough elements.
  template <class Body>
  void share_out(ParallelFor parallel_for, const Body& body) const {
    const int64_t strips = segments_ / span_ * plan::ceil_div(span_, group_) * parts_;
    const int64_t of_one = std::max<int64_t>(1, group_ * std::min(inner_, reach_)) * row_elements_;
    const int64_t grain = plan::ceil_div(plan::kChunk, of_one);
    if (strips <= grain) return body(0, strips);
    parallel_for(
        0, strips, grain,
        [](int64_t first, int64_t last, void* context) { (*static_cast<Body*>(context))(first, last); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  Strips(const Dims& segments, const Dims& inner, int side_by_side, Place first, Place second,
         std::initializer_list<Place> places, int64_t row_elements)
      : segments_(segments.count()),
        inner_(inner.count()),
        across_(side_by_side > 0),
        span_(across_ ? part_of(segments, 0, side_by_side).count() : std::max<int64_t>(1, segments_)),
        walk_({part_of(segments, 0, side_by_side), inner, part_of(segments, side_by_side, segments.rank)}, places),
        row_(std::min(row_of(walk_.run(first)), row_of(walk_.run(second)))),
        row_elements_(row_elements) {
    const int64_t length = std::max<int64_t>(1, inner_);
    if (across_) {
      group_ = std::min(span_, kBlock);
      const int64_t groups = std::max<int64_t>(1, segments_ / span_ * plan::ceil_div(span_, group_));
      const int64_t parts = std::max<int64_t>(1, kStripsAcross / groups);
      reach_ = std::max(plan::ceil_div(plan::kChunk, group_ * row_elements), plan::ceil_div(length, parts));
    } else {
      group_ = std::clamp<int64_t>(kSegmentsStrip / row_elements / length, 1, kBlock);
      reach_ = whole_lanes(plan::kChunk / row_elements);
    }
    parts_ = plan::ceil_div(length, reach_);
  }

  static int64_t whole_lanes(int64_t count) {
    return count < kLanes ? std::max<int64_t>(1, count) : count / kLanes * kLanes;
  }
  static int64_t row_of(int64_t run) { return run < kLongRow ? INT64_MAX : run; }

  // How many times a block can take `count` elements; a block ends where a row does.
  int64_t fitting(int64_t count) const { return std::max<int64_t>(1, std::min(kBlock, row_) / count); }

  template <class Body>
  void blocks_across(const Strip& strip, const Body& body) const {
    const int64_t within = strip.segment % span_, before = (strip.segment - within) * inner_ + within;
    const int64_t together = strip.segments == span_ ? fitting(span_) : 1;
    for (int64_t at = strip.begin; at < strip.end; at += together) {
      body(Block{before + at * span_, 0, strip.segments, std::min(together, strip.end - at)});
    }
  }

  template <class Body>
  void blocks_along(const Strip& strip, int64_t segment, const Body& body) const {
    const int64_t begin = (strip.segment + segment) * inner_, end = begin + strip.end;
    const int64_t pieces = row_ / kBlock + (row_ % kBlock != 0);  // pieces of a row, of similar length, in whole tiles
    const int64_t longest = (row_ / pieces + kTile) / kTile * kTile;
    for (int64_t at = begin + strip.begin; at < end;) {
      const int64_t length = std::min({kBlock, longest, row_ - at % row_, end - at});
      body(Block{at, segment, 1, length});
      at += length;
    }
  }

  int64_t segments_, inner_;
  bool across_;
  int64_t span_;  // segments that are visited side by side, or one after the other
  Walk walk_;
  int64_t row_;    // the shortest row of the operands that have rows; none: no limit
  int64_t group_;  // segments of a strip
  int64_t reach_;  // at most this many elements of each segment
  int64_t parts_;
  int64_t row_elements_;
};

// Calls sum_up(strip, sums, scratch) for all strips, with `sums` at 0, and done(segment, segments, sums) when the sums
// of some segments are complete. Each thread has its own `Scratch`.
template <class Scratch, class SumUp, class Done>
void sum_strips(const Strips& strips, ParallelFor parallel_for, const SumUp& sum_up, const Done& done) {
  const int64_t parts = strips.parts(), segments = strips.segments();
  std::vector<Sum> partials(parts > 1 ? parts * segments : 0);
  strips.share_out(parallel_for, [&](int64_t first, int64_t last) {
    Scratch scratch;
    Sums sums;
    for (int64_t index = first; index < last; ++index) {
      const Strip strip = strips.strip(index);
      const int64_t lanes = strips.lanes(strip.segments);
      sums.clear(lanes);
      sum_up(strip, sums, scratch);
      for (int64_t lane = strip.segments; lane < lanes; ++lane) sums.add(lane % strip.segments, sums.at(lane));
      if (parts == 1) {
        done(strip.segment, strip.segments, sums);
      } else {
        Sum* own = &partials[index % parts * segments + strip.segment];
        for (int64_t s = 0; s < strip.segments; ++s) own[s] = sums.at(s);
      }
    }
  });
  if (parts == 1) return;
  Sums sums;
  for (int64_t segment = 0; segment < segments; segment += kBlock) {
    const int64_t count = std::min(kBlock, segments - segment);
    sums.clear(count);
    for (int64_t part = 0; part < parts; ++part) {
      for (int64_t s = 0; s < count; ++s) sums.add(s, partials[part * segments + segment + s]);
    }
    done(segment, count, sums);
  }
}

}  // namespace cudaloss::cpu
