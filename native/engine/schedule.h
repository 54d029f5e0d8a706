// Which steps of a plan may run, chunk by chunk. Pure: it runs nothing itself.
//
// Chunk k of a step may run when chunk k of every step it waits for is done. At most `window` chunks are under way at
// once: what is kept of a chunk lies in slot k % window.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/plan.h"

namespace slipstream {

class Schedule {
 public:
  struct ChunkStep {  // a step of the plan, for one chunk
    uint32_t step;
    uint64_t chunk;
  };

  // Refers to the plan.
  Schedule(const Plan& plan, uint64_t chunks, uint64_t window)
      : plan_(plan),
        steps_(plan.steps().size()),
        chunks_(chunks),
        window_(window),
        deps_left_(window * steps_),
        pieces_left_(window * steps_),
        armed_(window * steps_),
        steps_left_(window) {}

  uint64_t window() const { return window_; }
  uint64_t chunks() const { return chunks_; }
  uint64_t begun() const { return begun_; }    // chunks begun
  uint64_t oldest() const { return oldest_; }  // the first chunk that is not done
  bool finished() const { return done_ == chunks_; }

  // True if another chunk may begin, with at most `allowance` under way.
  bool may_begin(uint64_t allowance) const {
    return begun_ < chunks_ && begun_ - oldest_ < std::min(window_, allowance);
  }
  // Begins the next chunk: its steps that wait for none may run. Returns its number.
  uint64_t begin();
  // A step that may run, until there is none.
  std::optional<ChunkStep> next() {
    if (ready_.empty()) return std::nullopt;
    const ChunkStep found = ready_.back();
    ready_.pop_back();
    return found;
  }
  // A step has been done for a chunk: those that waited for it alone may run.
  void complete(uint32_t step, uint64_t chunk);

  // Pieces that a step still waits for; its user counts down.
  uint32_t& pieces_left(uint32_t step, uint64_t chunk) { return pieces_left_[slot(step, chunk)]; }
  // A step that receives runs, and waits for that many pieces.
  void await(uint32_t step, uint64_t chunk, uint32_t pieces) {
    pieces_left_[slot(step, chunk)] = pieces;
    armed_[slot(step, chunk)] = 1;
  }
  // True while it does.
  bool awaits(uint32_t step, uint64_t chunk) const {
    return chunk < begun_ && chunk >= oldest_ && armed_[slot(step, chunk)] != 0;
  }
  // True if a step of a chunk that is under way runs, or has run.
  bool released(uint32_t step, uint64_t chunk) const { return deps_left_[slot(step, chunk)] == 0; }
  // True if all steps of a chunk are done, of those that have begun.
  bool chunk_done(uint64_t chunk) const { return steps_left_[chunk % window_] == 0; }

 private:
  size_t slot(uint32_t step, uint64_t chunk) const { return (chunk % window_) * steps_ + step; }

  const Plan& plan_;
  size_t steps_;
  uint64_t chunks_;
  uint64_t window_;
  uint64_t begun_ = 0;
  uint64_t oldest_ = 0;
  uint64_t done_ = 0;
  std::vector<uint32_t> deps_left_;  // by slot and step, as the next two
  std::vector<uint32_t> pieces_left_;
  std::vector<uint8_t> armed_;
  std::vector<uint32_t> steps_left_;  // by slot
  std::vector<ChunkStep> ready_;
};

}  // namespace slipstream
