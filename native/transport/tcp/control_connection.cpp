#include "transport/tcp/control_connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr double kFirstPause = 0.05;  // seconds before a connection that broke at once is dialled again; it doubles
constexpr double kMostPause = 0.5;
// Of the patience: a ping without an answer for so long, and so long a silence, mean another connection.
constexpr double kUnansweredPart = 0.2;
constexpr double kSilentPart = 0.45;
// Outages that follow each other, as long as each may be, after which a link is lost although connections come about.
constexpr double kMostOutages = 3;

}  // namespace

// ---- the first connection

void ControlConnection::accept(Connection connection) {
  met_at_ = peer_address(connection.fd.get());
  link_.control().open(std::move(connection));
}

void ControlConnection::dial_first() {
  const LinkContext& at = link_.context();
  dial_ = std::make_unique<Dial>(at.core, at.target, Purpose::link, 0, at.token,
                                 [this](Dial::Result result) { dialled(std::move(result)); });
}

void ControlConnection::dialled(Dial::Result result) {
  LinkContext& at = link_.context();
  ControlLane& lane = link_.control();
  Paths& paths = link_.bulk().placement().paths();
  dial_.reset();
  if (generation_ > 0) {
    if (result.error) return lane.is_open() ? void() : failed(result);
    if (lane.is_open()) ++at.lost;  // it was cut off
    link_.heard();
    path_ = paths.find(result.address);
    promoted_lane_ = 0;
    current_ = generation_;
    return lane.resume(std::move(result.connection));
  }
  if (result.error) return link_.fail(std::move(result.error));
  link_.heard();
  lane.open(std::move(result.connection));
  path_ = paths.find(result.address);
  paths.answered(path_);
  for (size_t i = 0; i < path_ && i < at.target.addresses.size(); ++i) paths.failed(i, now());  // tried before
  at.core->dialled[{at.peer(), at.token}] = &link_;
  link_.bulk().dial_all();
  link_.come_up();
}

// ---- those that take its place

DialTerms ControlConnection::terms() const {
  const LinkContext& at = link_.context();
  DialTerms terms;
  terms.limit = at.core->options.loss_seconds();
  terms.segment = link_.mtu_detection().mtu().segment();
  if (attempts_ > 1) terms.delay = std::min(kFirstPause * (1 << std::min(attempts_ - 2, 8)), kMostPause);
  const LanePlacement& placement = link_.bulk().placement();
  if (at.accepted) terms.proven = {met_at_};
  if (!at.accepted && path_ != Paths::kNone) terms.proven = {placement.paths().address(path_)};
  const auto lanes = placement.proven();
  terms.proven.insert(terms.proven.end(), lanes.begin(), lanes.end());
  return terms;
}

void ControlConnection::dial() {
  const LinkContext& at = link_.context();
  if (at.accepted && at.core->options.only_answers) return;  // a peer that lives dials
  if (at.accepted) {
    dial_ = std::make_unique<Dial>(
        at.core, at.core->directory(at.peer()), Purpose::knock, generation_, at.token,
        [this](const Dial::Result& result) {
          dial_.reset();
          if (result.error && !link_.control().is_open()) failed(result);
        },
        terms());
    return;
  }
  ++generation_;
  const size_t doubtful = link_.control().is_open() ? path_ : Paths::kNone;
  auto addresses = link_.bulk().placement().paths().in_order(now(), doubtful);
  dial_ = std::make_unique<Dial>(
      at.core, TcpTarget{at.peer(), std::move(addresses), at.target.port}, Purpose::link, generation_, at.token,
      [this](Dial::Result result) { dialled(std::move(result)); }, terms());
}

void ControlConnection::renew() {
  const LinkContext& at = link_.context();
  if (!at.closing && !at.goodbye && !dial_ && link_.control().is_open()) dial();
}

void ControlConnection::broke(int error) {
  LinkContext& at = link_.context();
  std::string text = at.name() + " closed its connection";
  if (error != 0) text = "the connection to " + at.name() + " broke (" + std::strerror(error) + ")";
  if (!at.repairs()) {
    const std::string how = error == 0 ? std::string("it closed its connection")
                                       : std::string("the connection to it broke (") + std::strerror(error) + ")";
    return link_.fail({Code::peer_lost, at.peer(), {}, at.name() + " died or was killed: " + how});
  }
  at.note(TraceEvent::Kind::lane_lost, link_.control(), 0);
  ++at.lost;
  ++attempts_;
  link_.control().shut();
  former_.reset();
  promoted_lane_ = 0;
  unanswered_since_.reset();
  if (!at.losses.control)
    at.losses.control = {{Code::peer_lost, at.peer(), {}, text},
                         now() + seconds(at.core->options.loss_seconds()),
                         now() + seconds(kMostOutages * at.core->options.loss_seconds())};
  if (!dial_) dial();
  link_.time_losses();
}

void ControlConnection::repair_while_closing() {
  ControlLane& lane = link_.control();
  if (lane.is_open() && lane.ended()) {
    ++attempts_;
    lane.shut();
    former_.reset();
    promoted_lane_ = 0;
  }
  if (!lane.is_open() && !dial_) dial();
}

void ControlConnection::failed(const Dial::Result& result) {
  LinkContext& at = link_.context();
  if (at.closing) return link_.fail({});
  if (!at.losses.control) return;
  Error error = std::exchange(at.losses.control, {}).error;
  if (result.lacking)
    error.text += ", and " + result.error.text;
  else if (result.gone)
    error.text = at.name() + " died or was killed: nothing listens there any more";
  else
    error.text += " and could not be opened again " + at.within_patience() + ": " + result.error.text;
  link_.fail(std::move(error));
}

// The engine pings because nothing has been heard. A middle box may still acknowledge what it no longer forwards, and
// TCP then sees no fault: only another connection helps.
void ControlConnection::pinged() {
  const LinkContext& at = link_.context();
  const ControlLane& lane = link_.control();
  if (!at.repairs() || !lane.is_open() || lane.resuming() || dial_) return;
  const Time time = now();
  const bool stalled = unanswered_since_ && lane.received() == read_then_;
  const double patience = at.core->options.patience_seconds;
  if (stalled && time - *unanswered_since_ < seconds(kUnansweredPart * patience)) return;
  if (stalled && time - link_.last_heard() < seconds(kSilentPart * patience)) return;
  unanswered_since_ = time;
  read_then_ = lane.received();
  if (stalled) dial();
}

void ControlConnection::replace(Connection connection, uint32_t generation) {
  LinkContext& at = link_.context();
  if (at.finished || at.shut_write) return;
  link_.heard();
  if (link_.control().is_open()) {  // the peer noticed first
    at.note(TraceEvent::Kind::lane_lost, link_.control(), 0);
    ++at.lost;
  }
  met_at_ = peer_address(connection.fd.get());
  generation_ = generation;
  promoted_lane_ = 0;
  former_.reset();
  dial_.reset();
  link_.control().resume(std::move(connection));
}

void ControlConnection::wanted(uint32_t generation) {
  const LinkContext& at = link_.context();
  if (at.finished || at.shut_write || dial_ || generation < current_) return;
  if (!link_.control().is_open()) return;
  link_.heard();
  if (!at.closing && !at.goodbye) link_.mtu_detection().stalled(link_.control(), true, now());
  if (!at.finished) dial();
}

void ControlConnection::resumed() {
  LinkContext& at = link_.context();
  const uint32_t lane = std::exchange(promoted_lane_, 0);
  at.note(lane > 0 ? TraceEvent::Kind::control_moved : TraceEvent::Kind::link_repaired, link_.control(), lane);
  former_.reset();
  at.losses.control = {};
  attempts_ = 0;
  unanswered_since_.reset();
  if (at.closing) return link_.wrote();
  link_.time_losses();
}

bool ControlConnection::promote(Connection& connection, uint32_t generation, size_t number) {
  const LinkContext& at = link_.context();
  if (at.accepted ? generation <= generation_ : generation != generation_) return false;
  generation_ = current_ = generation;
  if (!at.accepted) path_ = link_.bulk().placement().path(number);
  promoted_lane_ = static_cast<uint32_t>(number) + 1;
  dial_.reset();
  // The peer may not have read that yet, and is not to take the end of the old connection for one.
  if (at.accepted) former_ = link_.control().release().fd;
  link_.control().resume(std::move(connection));
  return true;
}

void ControlConnection::shut() {
  dial_.reset();
  former_.reset();
}

}  // namespace slipstream
