// Tells the timeline how each chunk goes through the steps of a work's plan.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "base/clock.h"
#include "base/trace.h"
#include "engine/plan.h"
#include "engine/work.h"

namespace slipstream {

class StepTrace {
 public:
  // Nothing is recorded if `trace` is null.
  StepTrace(Trace* trace, const Request& request) : trace_(trace), request_(request) {}

  bool on() const { return trace_ != nullptr && trace_->has_steps(); }
  void begin(uint32_t step, uint64_t chunk);
  // `peer`: a global rank, -1 for a step that concerns this rank alone. `encoded`: it casts to or from the wire type.
  void end(const Step& step, uint32_t number, uint64_t chunk, int peer, bool encoded);

 private:
  static uint64_t key(uint32_t step, uint64_t chunk) { return chunk << 24 | step; }

  Trace* trace_;
  const Request& request_;
  std::unordered_map<uint64_t, Time> begun_;  // by step and chunk
};

}  // namespace slipstream
