#include "transport/tcp_link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace slipstream {
namespace {

constexpr size_t kMostBacklog = 1 << 20;  // of the control stream, unread by the peer
constexpr double kAtOnce = 0.05;  // seconds; who makes lanes that break so soon, again and again, pauses as long
constexpr int kMostHasty = 20;    // so many in a row
constexpr int kMostDamage = 100;  // connections in a row that are left for damage and bring nothing whole

Frame taken_frame(uint64_t message, uint8_t flags = 0) {
  Frame frame;
  frame.type = FrameType::taken;
  frame.flags = flags;
  frame.channel = message;
  return frame;
}

}  // namespace

TcpLink::TcpLink(std::shared_ptr<TcpCore> core, int peer, uint64_t token, Connection control)
    : Link(peer, Kind::tcp),
      core_(std::move(core)),
      token_(token),
      accepted_(true),
      outbox_(core_->options.round_robin ? Dealing::round_robin : Dealing::pull),
      words_(*this),
      control_(*this),
      tender_(*this),
      watcher_(*this) {
  met_at_ = peer_address(control.fd.get());
  control_.open(std::move(control));
  core_->accepted[{peer, token}] = this;
}

TcpLink::TcpLink(std::shared_ptr<TcpCore> core, Dial::Target target, uint64_t token)
    : Link(target.peer, Kind::tcp),
      core_(std::move(core)),
      token_(token),
      accepted_(false),
      target_(std::move(target)),
      paths_(target_.addresses),
      outbox_(core_->options.round_robin ? Dealing::round_robin : Dealing::pull),
      words_(*this),
      control_(*this),
      tender_(*this),
      watcher_(*this) {
  control_dial_ = std::make_unique<Dial>(core_, target_, Purpose::link, 0, token_,
                                         [this](Dial::Result result) { control_dialled(std::move(result)); });
}

TcpLink::~TcpLink() { shut_down(); }

// ---- opening

void TcpLink::control_dialled(Dial::Result result) {
  control_dial_.reset();
  if (generation_ > 0) {
    if (result.error) return control_.is_open() ? void() : repair_failed(result);
    if (control_.is_open()) ++lost_;  // it was cut off
    heard();
    control_path_ = paths_.find(result.address);
    promoted_from_ = 0;
    control_generation_ = generation_;
    return control_.resume(std::move(result.connection));
  }
  if (result.error) return fail(std::move(result.error));
  heard();
  control_.open(std::move(result.connection));
  control_path_ = paths_.find(result.address);
  paths_.answered(control_path_);
  for (size_t i = 0; i < control_path_ && i < target_.addresses.size(); ++i) paths_.failed(i, now());  // tried before
  core_->dialled[{peer_, token_}] = this;
  lane_dials_.resize(static_cast<size_t>(std::clamp(core_->options.lanes, 1, kMaxLanes)));
  lane_paths_.resize(lane_dials_.size(), Paths::kNone);
  dial_paths_.resize(lane_dials_.size(), Paths::kNone);
  lane_segments_.resize(lane_dials_.size());
  achieved_.resize(lane_dials_.size());
  for (size_t i = 0; i < lane_dials_.size(); ++i) dial_lane(i);
  come_up();
}

void TcpLink::come_up() {
  up_ = true;
  core_->events.up(*this);
}

void TcpLink::lane_dialled(size_t number, Dial::Result result) {
  const int segment = lane_dials_[number]->segment();
  lane_dials_[number].reset();
  if (result.connection.fd) {
    heard();
    lane_paths_[number] = dial_paths_[number];
    lane_segments_[number] = segment;
    achieved_[number] = {};
    add_lane(std::move(result.connection), static_cast<uint32_t>(number));
    return;
  }
  paths_.failed(dial_paths_[number], now());
  if (number < bulk_.size() && bulk_[number]->is_open()) return;  // it was to take that one's place
  if (!goodbye_ && !closing_ && paths_.usable(now())) return dial_lane(number);
  // One lane less; without any the link is of no use.
  if (bulk_alive() || dialling_lanes() || goodbye_) return;
  if (closing_) return step_close();
  lanes_lost(std::move(result.error), result.gone);
}

bool TcpLink::add_lane(Connection connection, uint32_t number) {
  if (finished_ || number >= static_cast<uint32_t>(kMaxLanes)) return false;
  while (bulk_.size() <= number) bulk_.push_back(std::make_unique<BulkLane>(*this, static_cast<int>(bulk_.size())));
  BulkLane& lane = *bulk_[number];
  if (lane.is_open()) drop(lane);  // the peer gave the old one up
  lane.open(std::move(connection));
  if (lane.previous().family != 0) note(TraceEvent::Kind::lane_reopened, lane, number + 1);
  if (shut_write_) lane.finish_writing();
  if (!closing_) {
    lanes_loss_ = {};
    anew_at_ = Time::max();
    time_losses();
    lane.pump();
    kick();
  }
  lane.update();
  return true;
}

// ---- traffic

bool TcpLink::send(const Frame& frame, const std::byte* data, uint64_t cookie) {
  if (finished_ || closing_) return true;
  // Who reads nothing has no use for answers, and asks for memory with every question.
  if (frame.type == FrameType::pong && control_.backlog() > kMostBacklog) return true;
  if (frame.length <= kEagerBytes) {
    if (frame.type == FrameType::goodbye && words_owed_) say_taken();  // nothing follows it
    control_.send(frame, data);
    if (frame.type == FrameType::ping) watch_control();
    return true;
  }
  outbox_.push(frame, data, cookie, static_cast<int>(bulk_.size()));
  watch();
  kick();
  return false;
}

// Idle lanes take what there is; busy ones come back for more.
void TcpLink::kick() {
  // Where there are threads to share much with, the poller collects the lanes that can.
  const bool together = core_->batch.shares() && outbox_.waiting() >= IoThreads::kWorthWaking;
  for (size_t i = 0; i < bulk_.size(); ++i) {
    BulkLane& lane = *bulk_[(last_bulk_ + 1 + i) % bulk_.size()];
    if (!lane.idle() || !outbox_.has_work(lane.number())) continue;
    if (together && !lane.rests()) continue;
    last_bulk_ = static_cast<size_t>(lane.number());
    lane.pump();
  }
  rearm_lanes();
}

std::optional<Outbox::Out> TcpLink::pull(BulkLane& lane, Time now) {
  // Within a machine there are no paths to spread over, and every call costs.
  const uint32_t size =
      lane.near() ? kMaxPayload : lane.pace().segment(outbox_.waiting(), static_cast<int>(bulk_.size()));
  auto rest = BulkLane::Rest::none;
  if (spreads() && !lane.near()) {
    if (too_slow(lane, size, now)) rest = BulkLane::Rest::declines;
    if (lane.has_enough(static_cast<int>(bulk_.size()), now)) rest = BulkLane::Rest::enough;
  }
  lane.rest(rest, now);
  auto found = rest == BulkLane::Rest::none ? outbox_.pull(lane.number(), size, now) : std::nullopt;
  if (found) fed_ = now;
  // Who checks what comes may leave a lane with what it carries: also within a machine late segments take others then.
  if (!found && !outbox_.empty() && !tended_ && spreads() && (!lane.near() || lane.checks() || lane.encrypted())) {
    tended_ = true;
    core_->timers.set(tender_, now + seconds(kTendSeconds));
  }
  return found;
}

TcpLink::Place TcpLink::place(const SegmentHeader& segment, std::byte*& into) {
  into = nullptr;
  if (closing_ || !inbox_.wants(segment)) return Place::found;  // completed over other lanes; dropped
  Inbox::Message* message = inbox_.find(segment.message);
  if (!message->placed) {
    const Events::Landing landing = core_->events.land(*this, segment.frame);
    if (finished_ || closing_) return closing_ ? Place::found : Place::none;
    message = inbox_.find(segment.message);
    if (!landing.ok) {
      nonsense("a piece that fits no operation");
      return Place::none;
    }
    if (landing.into == nullptr) {
      const Blocks::Taken block = blocks_.take(segment.frame.length);
      if (block.id == 0) return Place::full;
      message->hold = block.id;
      message->into = block.data;
    } else {
      message->into = landing.into;
    }
    message->placed = true;
  }
  into = message->into + segment.offset;
  return Place::found;
}

void TcpLink::complete(const SegmentHeader& segment) {
  damaged_in_row_[1] = 0;
  const bool whole = inbox_.complete(segment);
  for (const auto& lane : bulk_) lane->forget_in(segment);
  if (whole) complete(segment.message);
}

void TcpLink::complete(uint64_t number) {
  const Inbox::Message message = *inbox_.find(number);
  inbox_.finish(number);
  for (const auto& lane : bulk_) lane->forget_in(number);
  // A block counts as under way until the owner has given it back.
  if (message.hold != 0)
    kept_[message.hold] = number;
  else
    took(number, true);
  core_->events.arrived(*this, message.frame, Payload{message.into, message.frame.length, false, message.hold});
}

// Word of it goes with data of ours, if there is any soon.
void TcpLink::took(uint64_t number, bool soon) {
  taken_.add(number);
  outbox_.tell(taken_.below());
  if (core_->options.words_seconds == 0 || number >= taken_.below())
    return soon ? control_.send_soon(taken_frame(number)) : control_.send(taken_frame(number), nullptr);
  owe_words();
}

void TcpLink::owe_words() {
  if (words_owed_ || core_->options.words_seconds == 0) return;
  words_owed_ = true;
  core_->timers.set(words_, now() + seconds(core_->options.words_seconds));
}

void TcpLink::say_taken() {
  words_owed_ = false;
  if (!finished_ && !closing_ && outbox_.told() < taken_.below())
    control_.send(taken_frame(taken_.below() - 1, kAllBefore), nullptr);
}

bool TcpLink::taken(uint64_t first, uint64_t last) {
  if (!outbox_.has_left(last)) {
    nonsense("word of data that we have not sent");
    return false;
  }
  bool news = false;
  for (uint64_t number = std::max(first, outbox_.oldest_left()); number <= last; ++number) {
    const auto cookie = outbox_.taken(number);
    if (!cookie) continue;
    news = true;
    for (const auto& lane : bulk_) lane->forget_out(number);
    core_->events.sent(*this, *cookie);
    if (finished_ || closing_) return false;
  }
  if (news && outbox_.waiting() > 0) kick();
  return !finished_ && !closing_;
}

void TcpLink::release(const Payload& payload) {
  if (payload.hold == 0) return;
  blocks_.give(payload.hold);
  if (const auto kept = kept_.find(payload.hold); kept != kept_.end()) {
    if (!closing_ && !finished_) took(kept->second, false);
    kept_.erase(kept);
  }
  for (size_t i = 0; i < bulk_.size() && !closing_ && !finished_; ++i)
    if (bulk_[i]->stalled()) bulk_[i]->resume();
}

void TcpLink::control_frame(const Frame& frame, const std::byte* payload) {
  if (closing_) return while_closing(frame);
  damaged_in_row_[0] = 0;
  if (goodbye_) return;  // nothing follows it
  switch (frame.type) {
    case FrameType::taken:
      taken((frame.flags & kAllBefore) != 0 ? 1 : frame.channel, frame.channel);
      return;
    case FrameType::resume:
      return nonsense("an account of what it has read, unasked");
    case FrameType::cut:
      return cut_by_peer(frame.channel, frame.seq);
    case FrameType::goodbye:
      goodbye_ = true;
      goodbye_words_.assign(reinterpret_cast<const char*>(payload), frame.length);
      control_loss_ = lanes_loss_ = {};
      for (auto& dial : lane_dials_) dial.reset();
      core_->timers.cancel(*this);
      return;
    default:
      core_->events.arrived(*this, frame, Payload{payload, frame.length, true, 0});
  }
}

void TcpLink::note(TraceEvent::Kind what, const Lane& lane, uint32_t number) const {
  if (core_->trace == nullptr || !core_->trace->on()) return;
  const bool fresh = what == TraceEvent::Kind::lane_reopened || what == TraceEvent::Kind::link_repaired ||
                     what == TraceEvent::Kind::control_moved;
  TraceEvent event;
  event.kind = what;
  event.begin = event.end = now();
  event.peer = peer_;
  event.lane = number;
  event.old_local = fresh ? lane.previous() : lane.local();
  if (fresh) event.new_local = lane.local();
  core_->trace->put(event);
}

void TcpLink::nonsense(const char* what) {
  fail({Code::internal, peer_, {}, name() + " sent " + what + ": do all ranks run the same slipstream?"});
}

// ---- ends, and repair

void TcpLink::lane_ended(Lane& lane, int error) {
  if (finished_) return;
  if (closing_) return step_close();
  if (&lane != &control_) return bulk_ended(static_cast<BulkLane&>(lane), error);
  if (goodbye_ && control_.between_frames()) return settle();
  repair_control(error);
}

// As if it had broken: what it carried is sent again, and read again, over others.
void TcpLink::damaged(Lane& lane, uint32_t number) {
  if (finished_) return;
  if (closing_) return lane_ended(lane, EBADMSG);
  note(TraceEvent::Kind::lane_damaged, lane, number);
  if (damaged_++ == 0)
    log_warning(core_->identity.rank, "data from " + name() + " at " + lane.far_name() + " was " + damage() +
                                          " on the way: the connection is made anew, the data is sent again");
  const bool without_end = ++damaged_in_row_[&lane == &control_ ? 0 : 1] > kMostDamage;
  if (without_end || (&lane == &control_ && !repairs()))
    return fail({Code::peer_lost,
                 peer_,
                 {},
                 "data from " + name() + " at " + lane.far_name() + " was " + damage() + " on the way, " +
                     std::to_string(damaged_) +
                     " times: look for faulty memory, network cards, cables or switches "
                     "between the hosts, or somebody who alters their traffic"});
  lane_ended(lane, EBADMSG);
}

void TcpLink::replace_control(Connection connection, uint32_t generation) {
  if (finished_ || shut_write_) return;
  heard();
  if (control_.is_open()) {  // the peer noticed first
    note(TraceEvent::Kind::lane_lost, control_, 0);
    ++lost_;
  }
  met_at_ = peer_address(connection.fd.get());
  generation_ = generation;
  promoted_from_ = 0;
  former_control_.reset();
  control_dial_.reset();
  control_.resume(std::move(connection));
}

void TcpLink::control_resumed() {
  const uint32_t lane = std::exchange(promoted_from_, 0);
  note(lane > 0 ? TraceEvent::Kind::control_moved : TraceEvent::Kind::link_repaired, control_, lane);
  former_control_.reset();
  control_loss_ = {};
  resumptions_ = 0;
  unanswered_since_.reset();
  if (closing_) return wrote();
  time_losses();
}

void TcpLink::bulk_ended(BulkLane& lane, int error) {
  const bool at_once = now() - lane.opened_at() < seconds(kAtOnce);
  hasty_ = at_once ? hasty_ + 1 : 0;
  drop(lane);
  if (goodbye_) return settle();
  note(TraceEvent::Kind::lane_lost, lane, static_cast<uint32_t>(lane.number()) + 1);
  ++lost_;
  const auto number = static_cast<size_t>(lane.number());
  if (repairs() && !accepted_ && number < lane_dials_.size() && !lane_dials_[number]) {
    if (error == EBADMSG) paths_.failed(lane_paths_[number], now());
    dial_lane(number, paths_.pick(lanes_and_paths(number), now()), hasty_ > kMostHasty ? kAtOnce : 0);
  }
  kick();
  if (bulk_alive() || dialling_lanes()) return;
  if (repairs() && accepted_) return;  // the peer dials, or its control lane tells
  std::string text = name() + " closed its connections";
  if (error != 0) text += std::string(": ") + std::strerror(error);
  lanes_lost({Code::peer_lost, peer_, {}, std::move(text)}, true);
}

bool TcpLink::bulk_alive() const {
  return std::any_of(bulk_.begin(), bulk_.end(), [](const auto& l) { return l->writable() && !l->ended(); });
}

bool TcpLink::dialling_lanes() const {
  return std::any_of(lane_dials_.begin(), lane_dials_.end(), [](const auto& d) { return d != nullptr; });
}

bool TcpLink::all_ended() const {
  return (control_.ended() || !control_.is_open()) &&
         std::all_of(bulk_.begin(), bulk_.end(), [](const auto& l) { return l->ended() || !l->is_open(); });
}

void TcpLink::rearm_lanes() {
  for (const auto& lane : bulk_) lane->update();
}

void TcpLink::settle() {
  if (all_ended()) fail({Code::aborted, peer_, {}, farewell(peer_, goodbye_words_)});
}

void TcpLink::due(Time now) { closing_ ? shut_down() : losses_due(now); }

void TcpLink::fail(Error error) {
  if (finished_) return;
  if (closing_) return shut_down();
  shut_down();
  core_->events.down(*this, error);
}

void TcpLink::shut_down() {
  finished_ = true;
  up_ = false;
  core_->timers.cancel(*this);
  core_->timers.cancel(words_);
  core_->timers.cancel(tender_);
  core_->timers.cancel(watcher_);
  control_dial_.reset();
  for (auto& dial : lane_dials_) dial.reset();
  control_.shut();
  former_control_.reset();
  for (const auto& lane : bulk_) lane->shut();
  outbox_.clear();
  inbox_.clear();
  auto& links = accepted_ ? core_->accepted : core_->dialled;
  const auto it = links.find({peer_, token_});
  if (it != links.end() && it->second == this) links.erase(it);
}

}  // namespace slipstream
