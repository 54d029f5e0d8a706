#include "transport/tcp/link.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace slipstream {
namespace {

constexpr size_t kMostBacklog = 1 << 20;  // of the control stream, unread by the peer
constexpr double kHolds = 0.5;            // seconds that a connection has lasted that is no victim of resets
constexpr int kMostDamage = 100;          // connections in a row that are left for damage and bring nothing whole

Dealing dealing(const TcpCore& core) { return core.options.round_robin ? Dealing::round_robin : Dealing::pull; }

}  // namespace

TcpLink::TcpLink(std::shared_ptr<TcpCore> core, int peer, uint64_t token, Connection control)
    : Link(peer, Kind::tcp),
      context_{.core = std::move(core), .token = token, .accepted = true, .target = {peer, {}, 0}},
      control_(*this),
      bulk_(*this, {}),
      sender_(*this, dealing(*context_.core)),
      receiver_(*this),
      control_connection_(*this),
      mtu_detection_(*this),
      cuts_(*this),
      promotion_(*this) {
  control_connection_.accept(std::move(control));
  context_.core->accepted[{peer, token}] = this;
}

TcpLink::TcpLink(std::shared_ptr<TcpCore> core, Dial::Target target, uint64_t token)
    : Link(target.peer, Kind::tcp),
      context_{.core = std::move(core), .token = token, .accepted = false, .target = std::move(target)},
      control_(*this),
      bulk_(*this, context_.target.addresses),
      sender_(*this, dealing(*context_.core)),
      receiver_(*this),
      control_connection_(*this),
      mtu_detection_(*this),
      cuts_(*this),
      promotion_(*this) {
  control_connection_.dial_first();
}

TcpLink::~TcpLink() { shut_down(); }

void TcpLink::come_up() {
  up_ = true;
  core().events.up(*this);
}

// ---- traffic

bool TcpLink::send(const Frame& frame, const std::byte* data, uint64_t cookie, int urgency) {
  if (context_.ends()) return true;
  // Who reads nothing has no use for answers, and asks for memory with every question.
  if (frame.type == FrameType::pong && control_.backlog() > kMostBacklog) return true;
  if (frame.length > kEagerBytes) {
    sender_.push(frame, data, cookie, urgency);
    return false;
  }
  if (frame.type == FrameType::goodbye) receiver_.acknowledge_rest();  // nothing follows it
  control_.send(frame, data);
  if (frame.type == FrameType::ping) control_connection_.pinged();
  return true;
}

void TcpLink::control_frame(const Frame& frame, const std::byte* payload) {
  if (context_.closing) return while_closing(frame);
  context_.damaged_in_row[0] = 0;
  if (context_.goodbye) return;  // nothing follows it
  switch (frame.type) {
    case FrameType::taken: {
      const LaneControl control = LaneControl::of(frame);
      sender_.acknowledged((control.flags & kAllBefore) != 0 ? 1 : control.number, control.number);
      return;
    }
    case FrameType::resume:
      return protocol_error("an unexpected count of what it has read");
    case FrameType::cut:
      return cuts_.given_up_by_peer(LaneControl::of(frame));
    case FrameType::lanes:
      return bulk_.wanted_by_peer(LaneControl::of(frame).number);
    case FrameType::goodbye:
      return peer_leaves({reinterpret_cast<const char*>(payload), frame.length});
    default:
      core().events.arrived(*this, frame, Payload{payload, frame.length, true, 0});
  }
}

// ---- connections that end, and the link's end

void TcpLink::peer_leaves(std::string reason) {
  context_.goodbye = true;
  goodbye_reason_ = std::move(reason);
  context_.losses.control = context_.losses.lanes = {};
  bulk_.stop_dialling();
  core().timers.cancel(*this);
}

void TcpLink::protocol_error(const char* what) {
  fail({Code::internal, peer_, {}, context_.name() + " sent " + what + ": do all ranks run the same slipstream?"});
}

void TcpLink::lane_ended(Lane& lane, int error) {
  if (context_.finished) return;
  if (context_.closing) return step_close();
  if (&lane != &control_) return bulk_.broke(static_cast<BulkLane&>(lane), error);
  if (context_.goodbye && control_.between_frames()) return settle();
  control_connection_.broke(error);
}

// As if it had broken: what it carried is sent again, and read again, over others.
void TcpLink::damaged(Lane& lane, uint32_t number) {
  if (context_.finished) return;
  if (context_.closing) return lane_ended(lane, EBADMSG);
  context_.note(TraceEvent::Kind::lane_damaged, lane, number);
  const std::string what =
      "data from " + context_.name() + " at " + lane.far_name() + " was " + context_.damage() + " on the way";
  if (context_.damaged++ == 0) context_.warn(what + ": the connection is opened again, and the data is sent again");
  const bool is_control = &lane == &control_;
  const bool without_end = ++context_.damaged_in_row[is_control ? 0 : 1] > kMostDamage;
  if (without_end || (is_control && !context_.repairs()))
    return fail({Code::peer_lost,
                 peer_,
                 {},
                 what + ", " + std::to_string(context_.damaged) +
                     " times: look for faulty memory, network cards, cables or switches "
                     "between the hosts, or for somebody who changes their traffic"});
  lane_ended(lane, EBADMSG);
}

// The peer's end of this link is gone if it opens another: what it may say there is why.
bool TcpLink::superseded() {
  const bool broken = !control_.is_open() || control_.ended();
  if (context_.finished || !context_.accepted || !broken) return context_.finished;
  fail({Code::peer_lost,
        peer_,
        {},
        context_.name() + " has given up the connection that broke, and opened another one"});
  return true;
}

void TcpLink::time_losses() {
  if (context_.ends()) return;
  const Time due = context_.losses.due();
  if (due == Time::max()) return core().timers.cancel(*this);
  core().timers.set(*this, due);
}

void TcpLink::due(Time now) { context_.closing ? shut_down() : losses_due(now); }

// There is another connection, and it does not break, but gets no further: the network has failed again. That is
// another outage.
bool TcpLink::extends(Time now) {
  const Time later =
      std::min(control_.opened_at() + seconds(core().options.loss_seconds()), context_.losses.control.last);
  if (!control_.is_open() || control_.ended() || now - control_.opened_at() < seconds(kHolds) || now >= later)
    return false;
  context_.losses.control.due = later;
  return true;
}

void TcpLink::losses_due(Time now) {
  Losses& losses = context_.losses;
  if (now >= losses.control.due && !extends(now)) {
    Error error = std::exchange(losses.control, {}).error;
    error.text += " and could not be opened again " + context_.within_patience();
    if (const std::string why = trouble(); !why.empty()) error.text += ": " + why;
    return fail(std::move(error));
  }
  if (now >= losses.lanes.due) return fail(std::exchange(losses.lanes, {}).error);
  if (now >= losses.dial_lanes_again) {
    losses.dial_lanes_again = Time::max();
    bulk_.dial_missing(true);
  }
  time_losses();
}

bool TcpLink::all_ended() const { return (control_.ended() || !control_.is_open()) && bulk_.ended(); }

void TcpLink::settle() {
  if (context_.closing) return step_close();
  if (all_ended()) fail({Code::aborted, peer_, {}, farewell(peer_, goodbye_reason_)});
}

void TcpLink::fail(Error error) {
  if (context_.finished) return;
  if (context_.closing) return shut_down();
  shut_down();
  core().events.down(*this, error);
}

void TcpLink::stop_timers() {
  receiver_.stop();
  sender_.stop();
  cuts_.stop();
}

void TcpLink::shut_down() {
  context_.finished = true;
  up_ = false;
  core().timers.cancel(*this);
  stop_timers();
  control_connection_.stop_dialling();
  bulk_.stop_dialling();
  control_.shut();
  control_connection_.shut();
  for (const auto& lane : bulk_.all()) lane->shut();
  sender_.outbox().clear();
  receiver_.clear();
  auto& links = context_.accepted ? core().accepted : core().dialled;
  const auto it = links.find({peer_, context_.token});
  if (it != links.end() && it->second == this) links.erase(it);
}

// ---- reports

std::string TcpLink::trouble() const {
  const std::string why = control_connection_.trouble();
  return why.empty() ? context_.losses.lanes.error.text : why;
}

LinkStatistics TcpLink::statistics() const {
  LinkStatistics found;
  found.peer = peer_;
  found.lost = context_.lost;
  found.replaced = context_.replaced;
  found.repeated = sender_.outbox().repeated();
  found.dropped = receiver_.repeated();
  found.damaged = context_.damaged;
  found.encrypted = context_.core->identity.encrypt;
  const auto& lanes = bulk_.all();
  found.lanes.resize(lanes.size() + 1);
  found.lanes[0].control = true;
  control_.describe(found.lanes[0]);
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i]->describe(found.lanes[i + 1]);
  return found;
}

}  // namespace slipstream
