#include "transport/tcp_link.h"

#include <algorithm>
#include <cstring>

namespace slipstream {
namespace {

constexpr double kLinger = 0.2;                    // seconds that a closing link waits for the peer's end
constexpr double kFlushStall = 2;                  // seconds without progress after which it stops flushing
constexpr double kStoryDelay = 0.5;                // seconds that a broken bulk lane waits for word on the control lane
constexpr size_t kCloseCopies = size_t{64} << 20;  // bytes of queued pieces that a closing link still sends

}  // namespace

TcpLink::TcpLink(std::shared_ptr<TcpCore> core, int peer, uint64_t token, Fd control)
    : Link(peer, Kind::tcp), core_(std::move(core)), token_(token), accepted_(true), control_(*this) {
  control_.open(std::move(control));
  control_.update();
  core_->accepted[{peer, token}] = this;
}

TcpLink::TcpLink(std::shared_ptr<TcpCore> core, Dial::Target target, uint64_t token)
    : Link(target.peer, Kind::tcp),
      core_(std::move(core)),
      token_(token),
      accepted_(false),
      target_(std::move(target)),
      control_(*this) {
  control_dial_ = std::make_unique<Dial>(core_, target_, Purpose::link, 0, token_,
                                         [this](Dial::Result result) { control_dialled(std::move(result)); });
}

TcpLink::~TcpLink() { shut_down(); }

// ---- opening

void TcpLink::control_dialled(Dial::Result result) {
  control_dial_.reset();
  if (result.error) return fail(std::move(result.error));
  heard();
  control_.open(std::move(result.fd));
  control_.update();
  dial_lanes(result.address);
  come_up();
}

void TcpLink::come_up() {
  up_ = true;
  core_->events.up(*this);
}

void TcpLink::dial_lanes(const std::string& address) {
  const auto lanes = static_cast<uint32_t>(std::clamp(core_->options.lanes, 1, kMaxLanes));
  const Dial::Target target{peer_, {address}, target_.port};
  for (uint32_t i = 0; i < lanes; ++i)
    lane_dials_.push_back(std::make_unique<Dial>(core_, target, Purpose::lane, i + 1, token_,
                                                 [this, i](Dial::Result r) { lane_dialled(i, std::move(r)); }));
}

void TcpLink::lane_dialled(size_t index, Dial::Result result) {
  lane_dials_[index].reset();
  if (result.fd) {
    heard();
    add_lane(std::move(result.fd));
    return;
  }
  // One lane less; without any the link is of no use.
  if (bulk_alive() || dialling_lanes()) return;
  if (closing_) {
    queue_.clear();
    return step_close();
  }
  if (!goodbye_) fail(std::move(result.error));
}

bool TcpLink::add_lane(Fd fd) {
  if (finished_ || bulk_.size() >= static_cast<size_t>(kMaxLanes)) return false;
  bulk_.push_back(std::make_unique<BulkLane>(*this));
  bulk_.back()->open(std::move(fd));
  if (shut_write_) bulk_.back()->finish_writing();
  bulk_.back()->update();
  return true;
}

// ---- traffic

bool TcpLink::send(const Frame& frame, const std::byte* data, uint64_t cookie) {
  if (finished_ || closing_) return true;
  if (frame.length <= kEagerBytes) {
    control_.send(frame, data);
    return true;
  }
  const Piece piece{frame, data, cookie, nullptr};
  for (size_t i = 0; queue_.empty() && i < bulk_.size(); ++i) {
    const size_t at = (last_bulk_ + 1 + i) % bulk_.size();
    if (!bulk_[at]->idle()) continue;
    last_bulk_ = at;
    return bulk_[at]->start(piece);
  }
  // Busy lanes come back for it; so do idle ones that already have the poller's promise.
  queue_.push(piece);
  return false;
}

void TcpLink::release(const Payload& payload) {
  if (payload.hold == 0) return;
  blocks_.give(payload.hold);
  for (const auto& lane : bulk_)
    if (lane->stalled() && !closing_) lane->resume();
}

void TcpLink::control_frame(const Frame& frame, const std::byte* payload) {
  if (goodbye_) return;  // nothing follows it
  if (frame.type == FrameType::goodbye) {
    goodbye_ = true;
    // A lane that was cut while it received has lost data, whatever the peer says.
    if (doom_ && std::any_of(bulk_.begin(), bulk_.end(), [](const auto& l) { return l->ended() && l->receiving(); }))
      return fail(std::move(doom_));
    doom_ = {};
    if (!closing_) core_->timers.cancel(*this);
    return;
  }
  core_->events.arrived(*this, frame, Payload{payload, frame.length, true, 0});
}

void TcpLink::nonsense(const char* what) {
  fail({Code::internal, peer_, {}, name() + " sent " + what + ": do all ranks run the same slipstream?"});
}

// ---- ends

void TcpLink::lane_ended(Lane& lane, int error) {
  if (finished_) return;
  if (closing_) return step_close();
  if (&lane != &control_) return bulk_ended(static_cast<BulkLane&>(lane), error);
  if (goodbye_ && control_.between_frames()) return settle();
  std::string text = name() + " closed its connection (the process died or was killed)";
  if (error != 0) text += std::string(": ") + std::strerror(error);
  fail({Code::peer_lost, peer_, {}, std::move(text)});
}

void TcpLink::bulk_ended(BulkLane& lane, int error) {
  std::string text = name() + " closed one of its connections";
  if (error != 0) text += std::string(": ") + std::strerror(error);
  Error lost{Code::peer_lost, peer_, {}, std::move(text)};
  if (goodbye_) return lane.receiving() ? fail(std::move(lost)) : settle();
  if (!lane.receiving() && !lane.sending() && (bulk_alive() || dialling_lanes())) {
    lane.shut();
    return rearm_lanes();
  }
  // Lanes are separate connections: the goodbye, or the end, of the control lane may be a moment behind.
  if (doom_) return;
  doom_ = std::move(lost);
  core_->timers.set(*this, now() + seconds(kStoryDelay));
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
  if (all_ended()) fail({Code::aborted, peer_, {}, name() + " left the job"});
}

void TcpLink::due(Time) {
  if (closing_) return shut_down();
  if (doom_) fail(std::move(doom_));
}

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
  control_dial_.reset();
  for (auto& dial : lane_dials_) dial.reset();
  control_.shut();
  for (const auto& lane : bulk_) lane->shut();
  queue_.clear();
  if (accepted_) {
    const auto it = core_->accepted.find({peer_, token_});
    if (it != core_->accepted.end() && it->second == this) core_->accepted.erase(it);
  }
}

// ---- closing in good order

void TcpLink::close() {
  if (finished_ || closing_) return;
  closing_ = true;
  doom_ = {};
  if (!control_.is_open()) return shut_down();
  // The owner's memory may go as soon as this returns, so what is queued moves to our own.
  queue_.keep_copies(kCloseCopies);
  for (const auto& lane : bulk_) lane->keep_copy();
  core_->timers.set(*this, now() + seconds(kFlushStall));
  rearm_lanes();  // a stalled lane reads again, to discard
  step_close();
}

bool TcpLink::flushed() const {
  if (!control_.flushed()) return false;
  if (!queue_.empty() && (bulk_alive() || dialling_lanes())) return false;
  return std::all_of(bulk_.begin(), bulk_.end(), [](const auto& l) { return l->flushed(); });
}

void TcpLink::wrote() {
  if (!closing_ || finished_ || shut_write_) return;
  core_->timers.set(*this, now() + seconds(kFlushStall));
  step_close();
}

void TcpLink::step_close() {
  if (!shut_write_ && flushed()) {
    shut_write_ = true;
    for (auto& dial : lane_dials_) dial.reset();
    control_.finish_writing();
    for (const auto& lane : bulk_) lane->finish_writing();
    core_->timers.set(*this, now() + seconds(kLinger));
  }
  // Also ends a link whose peer went away before everything was sent: nobody is left to read it.
  if (all_ended()) shut_down();
}

}  // namespace slipstream
