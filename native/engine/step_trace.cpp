#include "engine/step_trace.h"

namespace slipstream {

void StepTrace::begin(uint32_t step, uint64_t chunk) { begun_[key(step, chunk)] = now(); }

void StepTrace::end(const Step& step, uint32_t number, uint64_t chunk, int peer, bool encoded) {
  static constexpr const char* kVerbs[] = {"send", "recv", "recv_reduce", "copy", "reduce", "finish"};
  const auto begun = begun_.extract(key(number, chunk));
  TraceEvent event;
  event.kind = TraceEvent::Kind::step;
  event.end = now();
  event.begin = begun.empty() ? event.end : begun.mapped();
  event.verb = kVerbs[static_cast<size_t>(step.kind)];
  event.wire = encoded ? name_of(wire_of(request_)) : "";
  event.peer = peer;
  event.step = number;
  event.chunk = chunk;
  event.operation.set(request_.signature.operation);
  event.name.set(request_.signature.name);
  trace_->put(event);
}

}  // namespace slipstream
