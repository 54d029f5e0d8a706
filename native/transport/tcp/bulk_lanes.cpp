#include "transport/tcp/bulk_lanes.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "transport/tcp/lane_control.h"
#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr double kAtOnce = 0.05;      // seconds; who makes lanes that break so soon, again and again, pauses as long
constexpr int kMostHasty = 20;        // so many in a row
constexpr double kReasonDelay = 0.5;  // seconds that a link without bulk lanes waits for a reason on the control lane
constexpr double kLanesPause = 0.25;  // seconds between attempts to get a lane while there is none
constexpr double kFindSeconds = 0.5;
constexpr double kMoveSeconds = 1;     // between two moves to a path that has become free
constexpr double kEnlargeSeconds = 2;  // between two lanes that get larger packets: the first is judged before that

constexpr int kMany = 16;  // lanes of a link that needs many

int few(const TcpCore& core) { return std::clamp(core.options.lanes, 1, kMaxLanes); }

int many(const TcpCore& core) {
  const bool fixed = !core.options.more_lanes || core.options.round_robin;
  return fixed ? few(core) : std::max(few(core), kMany);
}

}  // namespace

BulkLanes::BulkLanes(TcpLink& link, const std::vector<std::string>& addresses)
    : link_(link),
      placement_(addresses, [this](size_t number) { return is_open(number); }),
      lane_count_(few(*link.context().core), many(*link.context().core)),
      told_(lane_count_.wanted()) {}

BulkLanes::~BulkLanes() { reserve(0); }

void BulkLanes::reserve(int extra) { link_.context().core->spare_lanes -= extra - std::exchange(reserved_, extra); }

int BulkLanes::open() const {
  const auto found = std::count_if(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->is_open(); });
  return std::max(static_cast<int>(found), 1);
}

bool BulkLanes::alive() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& l) { return l->writable() && !l->ended(); });
}

bool BulkLanes::dialling() const {
  return std::any_of(dials_.begin(), dials_.end(), [](const auto& d) { return d != nullptr; });
}

bool BulkLanes::ended() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& l) { return l->ended() || !l->is_open(); });
}

bool BulkLanes::spreads() const { return lanes_.size() > 1 && !link_.context().core->options.round_robin; }

// ---- connections

void BulkLanes::dial_all() { set_count(std::max(lane_count_.wanted(), told_)); }

void BulkLanes::set_count(int wanted) {
  const size_t before = std::exchange(wanted_, static_cast<size_t>(wanted));
  dials_.resize(std::max(dials_.size(), wanted_));
  placement_.set_lanes(dials_.size());
  dial_missing(false);
  if (wanted_ < before)
    for (const Paths::Move& move : placement_.keep(wanted_, now()))
      if (may_dial(move.lane)) dial(move.lane, move.path);
  for (size_t i = wanted_; i < lanes_.size(); ++i) retire(*lanes_[i]);
}

void BulkLanes::retire(BulkLane& lane) {
  if (lane.writable() && !lane.ended() && lane.promoted() == 0) lane.promote(kRetired);
}

void BulkLanes::recount(Time now) {
  const LinkContext& at = link_.context();
  const int before = lane_count_.wanted();
  const bool changed = lane_count_.few() != few(*at.core) || lane_count_.many() != many(*at.core);
  if (changed) lane_count_.set(few(*at.core), many(*at.core));
  const bool may_try = at.core->spare_lanes >= lane_count_.many() - lane_count_.few();
  const auto trial = lane_count_.look({link_.sender().went(), link_.sender().busy(now), open()}, may_try, now);
  const int wanted = lane_count_.wanted();
  reserve(lane_count_.claimed() - lane_count_.few());
  if (trial) {
    char text[160];
    std::snprintf(text, sizeof(text), "%d lanes to %s carry %.0f Mbit/s, %d carry %.0f Mbit/s: %d stay",
                  lane_count_.few(), at.name().c_str(), trial->few * 8e-6, lane_count_.many(), trial->many * 8e-6,
                  wanted);
    log_info(at.core->identity.rank, text);
  }
  if (changed || wanted != before) want(wanted);
}

void BulkLanes::want(int lanes) {
  if (!link_.context().accepted) return set_count(std::max(lanes, told_));
  told_ = lanes;
  link_.control().send(LaneControl{.type = FrameType::lanes, .number = static_cast<uint64_t>(lanes)}, nullptr);
}

void BulkLanes::wanted_by_peer(uint64_t lanes) {
  if (link_.context().accepted || lanes < 1 || lanes > static_cast<uint64_t>(kMaxLanes))
    return link_.protocol_error("a number of lanes that it may not ask for");
  told_ = static_cast<int>(lanes);
  set_count(std::max(lane_count_.wanted(), told_));
}

void BulkLanes::dial_missing(bool all) {
  for (size_t i = 0; i < wanted_; ++i)
    if (!dials_[i] && (all || !is_open(i))) dial(i);
}

bool BulkLanes::may_dial(size_t number) const {
  return !link_.context().accepted && number < wanted_ && !dials_[number];
}

void BulkLanes::dial(size_t number) { dial(number, placement_.pick(number, now())); }

void BulkLanes::dial(size_t number, size_t path, double delay) {
  const LinkContext& at = link_.context();
  placement_.dials(number, path);
  // Where there is another path, a silent one may not keep the lane waiting.
  const bool others = placement_.paths().usable(now(), path);
  dials_[number] = std::make_unique<Dial>(
      at.core, TcpTarget{at.peer(), {placement_.paths().address(path)}, at.target.port}, Purpose::lane,
      static_cast<uint32_t>(number) + 1, at.token, [this, number](Dial::Result r) { dialled(number, std::move(r)); },
      DialTerms{others ? Dial::kImpatience : at.core->options.connect_seconds,
                delay,
                link_.mtu_detection().mtu().segment(),
                {}});
}

void BulkLanes::dialled(size_t number, Dial::Result result) {
  const LinkContext& at = link_.context();
  const int segment = dials_[number]->segment();
  dials_[number].reset();
  if (result.connection.fd) {
    placement_.connected(number);
    link_.mtu_detection().mtu().connected(number, segment);
    add(std::move(result.connection), static_cast<uint32_t>(number));
    if (number >= wanted_ && number < lanes_.size()) retire(*lanes_[number]);  // the peer may have it already
    return;
  }
  placement_.unreachable(number, now());
  if (is_open(number)) return;  // it was to take that one's place
  if (number < wanted_ && !at.goodbye && !at.closing && placement_.paths().usable(now())) return dial(number);
  // One lane less; without any the link is of no use.
  if (alive() || dialling() || at.goodbye) return;
  if (at.closing) return link_.settle();
  none_left(std::move(result.error), result.gone);
}

void BulkLanes::stop_dialling() {
  for (auto& dial : dials_) dial.reset();
}

bool BulkLanes::add(Connection connection, uint32_t number) {
  LinkContext& at = link_.context();
  if (at.finished || number >= static_cast<uint32_t>(kMaxLanes)) return false;
  while (lanes_.size() <= number) lanes_.push_back(std::make_unique<BulkLane>(link_, static_cast<int>(lanes_.size())));
  BulkLane& lane = *lanes_[number];
  if (lane.is_open()) drop(lane);  // the peer gave the old one up
  link_.heard();
  lane.open(std::move(connection));
  if (lane.previous().family != 0) at.note(TraceEvent::Kind::lane_reopened, lane, number + 1);
  if (at.shut_write) lane.finish_writing();
  if (!at.closing) {
    at.losses.lanes = {};
    at.losses.dial_lanes_again = Time::max();
    link_.time_losses();
    link_.sender().kick();
  }
  lane.update();
  return true;
}

void BulkLanes::drop(BulkLane& lane) {
  const bool doubt = link_.promotion().in_doubt(lane);
  link_.sender().outbox().lost(lane.number());
  lane.shut();
  link_.receiver().acknowledge_again();
  // The peer may have made it its control lane: another one ends the doubt.
  if (doubt) link_.control_connection().renew();
}

// The peer dials. It may not have heard of the end: if the kernel sends a reset, it sends it once, into a network that
// may be down. Nor does the peer notice by itself while it has nothing to send over this lane.
void BulkLanes::give_up(BulkLane& lane) {
  const LinkContext& at = link_.context();
  drop(lane);
  if (!at.accepted || !at.repairs() || at.goodbye) return;
  const auto number = static_cast<uint64_t>(lane.number());
  link_.control().send(LaneControl{.type = FrameType::cut, .flags = kGone, .number = number, .detail = lane.far_port()},
                       nullptr);
}

void BulkLanes::broke(BulkLane& lane, int error) {
  LinkContext& at = link_.context();
  const bool at_once = now() - lane.opened_at() < seconds(kAtOnce);
  hasty_ = at_once ? hasty_ + 1 : 0;
  give_up(lane);
  if (at.goodbye) return link_.settle();
  const auto number = static_cast<size_t>(lane.number());
  at.note(TraceEvent::Kind::lane_lost, lane, static_cast<uint32_t>(number) + 1);
  ++at.lost;
  if (at.repairs() && may_dial(number)) {
    if (error == EBADMSG) placement_.broken(number, now());
    dial(number, placement_.pick(number, now()), hasty_ > kMostHasty ? kAtOnce : 0);
  }
  link_.sender().kick();
  if (alive() || dialling()) return;
  if (at.repairs() && at.accepted) return;  // the peer dials, or its control lane tells
  std::string text = at.name() + " died or was killed: it closed its connections";
  if (error != 0) text += std::string(" (") + std::strerror(error) + ")";
  none_left({Code::peer_lost, at.peer(), {}, std::move(text)}, true);
}

// There is no bulk lane. `gone`: nor is there anybody to dial; else ways may come back.
void BulkLanes::none_left(Error error, bool gone) {
  LinkContext& at = link_.context();
  const bool wait = !gone && at.repairs() && !at.accepted;
  Losses::Loss& loss = at.losses.lanes;
  if (!loss) loss.due = now() + seconds(at.core->options.loss_seconds());
  if (!wait) loss.due = std::min(loss.due, now() + seconds(kReasonDelay));
  if (wait) error.text += ", and no other path was found " + at.within_patience();
  loss.error = std::move(error);
  if (wait) at.losses.dial_lanes_again = now() + seconds(kLanesPause);
  link_.time_losses();
}

// The side that dialled dials again; the other one sees the end and does the same.
void BulkLanes::replace(size_t number, Time now) {
  LinkContext& at = link_.context();
  BulkLane& lane = *lanes_[number];
  if (++at.replaced == 1)
    at.warn("lane " + std::to_string(number + 1) + " to " + at.name() +
            " is far slower than the others: a new connection replaces it");
  at.note(TraceEvent::Kind::lane_replaced, lane, static_cast<uint32_t>(number) + 1);
  if (!at.accepted) placement_.too_slow(number, now);
  give_up(lane);
  if (may_dial(number)) dial(number);
  link_.sender().kick();
}

void BulkLanes::spread(Time now) {
  if (now >= next_find_) {
    next_find_ = now + seconds(kFindSeconds);
    std::vector<uint64_t> carried;
    for (const auto& lane : lanes_) carried.push_back(lane->carried());
    placement_.measure(carried, now);
    dial_missing(false);
  }
  if (now < next_move_ || dialling()) return;
  const auto move = placement_.move(now);
  if (!move || !may_dial(move->lane)) return;
  next_move_ = now + seconds(kMoveSeconds);
  dial(move->lane, move->path);  // it takes the old one's place when it is there
}

void BulkLanes::enlarge(Time now) {
  if (now < next_move_ || dialling()) return;
  const auto lane = link_.mtu_detection().mtu().lane_to_enlarge(
      [this](size_t number) { return number < wanted_ && is_open(number); });
  if (!lane) return;
  next_move_ = now + seconds(kEnlargeSeconds);
  dial(*lane);  // as above
}

// ---- events

void BulkLanes::resume() {
  for (size_t i = 0; i < lanes_.size() && !link_.context().ends(); ++i) lanes_[i]->resume();
}

void BulkLanes::update() {
  for (const auto& lane : lanes_) lane->update();
}

}  // namespace slipstream
