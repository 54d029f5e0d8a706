#include "transport/tcp/cut_detection.h"

#include <algorithm>
#include <cerrno>
#include <vector>

#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr double kWatchSeconds = 0.25;
constexpr double kSilentSeconds = 1;
constexpr double kTrySeconds = 2;  // between two attempts to replace what may recover by itself

}  // namespace

void CutDetection::watch() {
  const LinkContext& at = link_.context();
  if (watched_ || at.ends() || !at.repairs() || link_.control().near()) return;
  watched_ = true;
  at.core->timers.set(*this, now() + seconds(kWatchSeconds));
}

void CutDetection::stop() { link_.context().core->timers.cancel(*this); }

void CutDetection::due(Time now) {
  const LinkContext& at = link_.context();
  watched_ = false;
  if (at.ends() || at.goodbye) return;
  link_.mtu_detection().look(now);
  if (link_.control().unanswered(kSilentSeconds)) replace_control(now);
  if (!at.finished) leave_lanes(now);
  if (at.finished) return;
  link_.bulk().recount(now);
  if (!at.accepted) link_.bulk().spread(now);
  if (!at.accepted) link_.promotion().seek(now);
  bool waiting = !link_.sender().outbox().empty() || !link_.control().flushed() || link_.control().unsent() > 0;
  for (const auto& lane : link_.bulk().all()) waiting = waiting || lane->unsent() > 0;
  if (link_.mtu_detection().mtu().suspects(now)) link_.mtu_detection().probe(now);
  if (waiting) watch();
}

void CutDetection::replace_control(Time now) {
  const LinkContext& at = link_.context();
  ControlConnection& connection = link_.control_connection();
  link_.mtu_detection().stalled(link_.control(), false, now);
  if (at.finished) return;
  if (!at.accepted) link_.bulk().placement().paths().failed(connection.path(), now);
  if (connection.dialling() || now < next_control_try_) return;
  next_control_try_ = now + seconds(kTrySeconds);
  connection.dial();
}

void CutDetection::leave_lanes(Time now) {
  const LinkContext& at = link_.context();
  std::vector<BulkLane*> cut;
  for (const auto& lane : link_.bulk().all())
    if (lane->writable() && lane->unanswered(kSilentSeconds)) cut.push_back(lane.get());
  for (const BulkLane* lane : cut) {
    link_.mtu_detection().stalled(*lane, false, now);
    if (at.finished) return;
  }
  if (cut.empty()) return;
  if (!at.accepted)
    for (const BulkLane* lane : cut) link_.bulk().placement().broken(static_cast<size_t>(lane->number()), now);
  for (BulkLane* lane : cut) leave(*lane, now);
  link_.sender().kick();
}

// Without others the lane stays until there is a new one.
void CutDetection::leave(BulkLane& lane, Time now) {
  LinkContext& at = link_.context();
  BulkLanes& bulk = link_.bulk();
  const auto number = static_cast<size_t>(lane.number());
  const bool others = std::any_of(bulk.all().begin(), bulk.all().end(), [&](const auto& other) {
    return other.get() != &lane && other->writable() && !other->ended() && !other->unanswered(kSilentSeconds);
  });
  if (!others) {
    if (now < next_lane_try_) return;
    next_lane_try_ = now + seconds(kTrySeconds);
  }
  if (at.accepted)  // the peer dials; it may have nothing to send over this lane, and not know
    link_.control().send(LaneControl{.type = FrameType::cut, .number = number, .detail = lane.far_port()}, nullptr);
  if (others) {
    at.note(TraceEvent::Kind::lane_lost, lane, static_cast<uint32_t>(number) + 1);
    if (at.lost++ == 0)
      at.warn("a connection to " + at.name() +
              " gets no answers: slipstream sends its data over other connections that work, or reconnects");
    bulk.give_up(lane);
  }
  if (bulk.may_dial(number)) bulk.dial(number);
}

// The port on this side tells whether it is the connection that there is now.
void CutDetection::given_up_by_peer(const LaneControl& cut) {
  BulkLanes& bulk = link_.bulk();
  if (link_.context().accepted || cut.number >= bulk.placement().lanes() || !bulk.is_open(cut.number)) return;
  BulkLane& lane = *bulk.all()[cut.number];
  if (lane.near_port() != cut.detail) return;
  if ((cut.flags & kGone) != 0) return bulk.broke(lane, ECONNRESET);
  const Time at = now();
  link_.mtu_detection().stalled(lane, true, at);
  if (link_.context().finished) return;
  bulk.placement().broken(cut.number, at);
  leave(lane, at);
  link_.sender().kick();
}

}  // namespace slipstream
