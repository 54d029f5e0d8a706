// What steps do with data in this rank's memory: move it, add it up, and finish it. Driver's thread only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/geometry.h"
#include "engine/plan.h"
#include "engine/scaled_input.h"
#include "engine/wide_sums.h"
#include "engine/work.h"
#include "engine/work_memory.h"
#include "kernels/kernels.h"

namespace slipstream {

class StepOperator {
 public:
  // Of what holds for all steps of a work.
  struct Terms {
    bool rounds = false;      // some ranks get what is given in the wire type, so that all must
    bool past_cache = false;  // what it moves does not stay in the last-level cache
  };

  StepOperator(const Request& request, const Geometry& geometry, const WorkMemory& memory, ScaledInput& scaled,
               Terms terms);

  // A copy, a reduction or a finish of a chunk.
  void apply(const Step& step, uint64_t chunk);
  // Puts a piece that has come where it belongs, or adds it to what is there. `data` may be that place.
  void absorb(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data, size_t bytes);
  // Ranks that get what is only moved in the wire type have fewer bits of it: so has this one, from now on.
  void round_moved(const Step& step, const Geometry::Extent& to) const;
  // True if what comes may be read into the place where it belongs.
  bool lands(const Step& step) const { return step.kind == StepKind::recv && !wide_ && !geometry_.is_encoded(step); }
  // Where a piece lies.
  std::byte* at(Space space, const Step& step, uint64_t chunk, uint32_t piece) const {
    return memory_.at(space, geometry_.piece(space, step, chunk, piece).offset);
  }

 private:
  decltype(&copy) copy_of(const Step& step) const { return terms_.past_cache && step.last ? copy_past_cache : copy; }
  void finish(const Step& step, const Geometry::Extent& to);
  void round(const Step& step, const Geometry::Extent& to) const;
  void absorb_exact(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data, size_t bytes);
  void absorb_encoded(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data);

  const Request& request_;
  const Geometry& geometry_;
  const WorkMemory& memory_;
  ScaledInput& scaled_;
  Terms terms_;
  ReduceFn reduce_;
  WideSums wide_;
};

}  // namespace slipstream
