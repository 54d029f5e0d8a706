#include "transport/tcp/link_context.h"

#include <cstdio>

#include "base/log.h"
#include "transport/tcp/lane.h"

namespace slipstream {

std::string LinkContext::within_patience() const {
  char time[32];
  std::snprintf(time, sizeof(time), "within %g s (", core->options.loss_seconds());
  return time + core->options.patience_setting + " sets the limit)";
}

void LinkContext::warn(const std::string& text) const { log_warning(core->identity.rank, text); }

void LinkContext::note(TraceEvent::Kind what, const Lane& lane, uint32_t number) const {
  if (core->trace == nullptr || !core->trace->on()) return;
  const bool fresh = what == TraceEvent::Kind::lane_reopened || what == TraceEvent::Kind::link_repaired ||
                     what == TraceEvent::Kind::control_moved;
  TraceEvent event;
  event.kind = what;
  event.begin = event.end = now();
  event.peer = peer();
  event.lane = number;
  event.old_local = fresh ? lane.previous() : lane.local();
  if (fresh) event.new_local = lane.local();
  core->trace->put(event);
}

}  // namespace slipstream
