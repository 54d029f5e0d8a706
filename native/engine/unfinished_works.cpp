#include "engine/unfinished_works.h"

#include <algorithm>

namespace slipstream {

namespace {

TraceEvent::Direction direction_of(const Request& request) {
  if (request.channel == request.group->id) return TraceEvent::Direction::none;
  const bool sends =
      request.plan != nullptr && !request.plan->steps().empty() && request.plan->steps().front().kind == StepKind::send;
  return sends ? TraceEvent::Direction::send : TraceEvent::Direction::recv;
}

}  // namespace

uint64_t bytes_of(const Request& request, uint64_t count) {
  const auto elements = [count](const Layout& layout) {
    return std::max(count, layout.offsets.empty() ? 0 : layout.offsets.back());
  };
  return std::max(elements(request.spaces[0]), elements(request.spaces[1])) * size_of(request.signature.dtype);
}

TraceEvent event_of(const Work& work, const Error& error) {
  const Request& request = work.request;
  TraceEvent event;
  event.begin = work.traced;
  event.end = now();
  event.dtype = request.signature.dtype;
  event.error = static_cast<uint8_t>(error.code);
  event.bytes = bytes_of(request, request.spaces[0].count);
  event.ranks = static_cast<uint32_t>(request.group->ranks.size());
  event.operation.set(request.signature.operation);
  event.name.set(request.signature.name);
  event.direction = direction_of(request);
  if (request.signature.wire != WireType::exact) event.wire = name_of(request.signature.wire);
  if (event.direction != TraceEvent::Direction::none && work.peer() >= 0)
    event.peer = request.group->ranks[static_cast<size_t>(work.peer())];
  return event;
}

void UnfinishedWorks::complete(Work& work, const Error& error) {
  if (work.done()) return;
  if (work.traced != Time{} && trace_ != nullptr) trace_->put(event_of(work, error));
  // Who learns that the work is done finds the session as quiet as it is then.
  const bool copies = work.copy_out.bytes != 0;
  if (!copies) count_.fetch_sub(1, std::memory_order_release);
  work.complete(error);
  if (copies) count_.fetch_sub(1, std::memory_order_release);
}

}  // namespace slipstream
