// How a tcp link gets on when a way to the peer is cut without a word: nothing is refused or reset, there are just no
// answers. While it has anything under way the link looks at what the kernel knows of each connection. One that TCP
// has asked in vain is given up for one over another path; its segments go to other lanes at once. The control lane,
// and the last lane, are kept until there is a better one: a peer that is gone, or cut off altogether, is the
// engine's to find (by its heartbeat), and a cut that heals costs nothing. A peer that is merely stopped or slow is
// none of this: its machine answers.
#include <algorithm>
#include <utility>

#include "base/log.h"
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr double kWatchSeconds = 0.25;
constexpr double kSilentSeconds = 1;
constexpr double kTrySeconds = 2;   // between two attempts to replace what may recover by itself
constexpr double kMoveSeconds = 1;  // between two moves to a path that has become free
constexpr double kFindSeconds = 0.5;

}  // namespace

// Something has been sent: from now on until all of it is acknowledged.
void TcpLink::watch() {
  if (watched_ || finished_ || closing_ || !repairs() || control_.near()) return;
  watched_ = true;
  core_->timers.set(watcher_, now() + seconds(kWatchSeconds));
}

void TcpLink::look(Time now) {
  watched_ = false;
  if (finished_ || closing_ || goodbye_) return;
  watch_size(now);
  if (control_.unanswered(kSilentSeconds)) replace_cut_control(now);
  if (!finished_) leave_cut_lanes(now);
  if (finished_) return;
  if (!accepted_) spread_lanes(now);
  if (!accepted_) seek_faster_lane(now);
  bool waiting = !outbox_.empty() || !control_.flushed() || control_.unsent() > 0;
  for (const auto& lane : bulk_) waiting = waiting || lane->unsent() > 0;
  if (suspects_size(now)) probe_size(now);
  if (waiting) watch();
}

// The side that dialled dials again; the other one asks for it.
void TcpLink::replace_cut_control(Time now) {
  suspect_size(control_, false, now);
  if (finished_) return;
  if (!accepted_) paths_.failed(control_path_, now);
  if (control_dial_ || now < next_control_try_) return;
  next_control_try_ = now + seconds(kTrySeconds);
  dial_control();
}

// The peer has asked for another control lane than connection number `generation`.
void TcpLink::control_wanted(uint32_t generation) {
  if (finished_ || shut_write_ || control_dial_ || generation < control_generation_) return;
  if (!control_.is_open()) return;
  if (!closing_ && !goodbye_) suspect_size(control_, true, now());
  if (!finished_) dial_control();
}

void TcpLink::leave_cut_lanes(Time now) {
  std::vector<BulkLane*> cut;
  for (const auto& lane : bulk_)
    if (lane->writable() && lane->unanswered(kSilentSeconds)) cut.push_back(lane.get());
  for (const BulkLane* lane : cut) {
    suspect_size(*lane, false, now);
    if (finished_) return;
  }
  if (cut.empty()) return;
  if (!accepted_)
    for (const BulkLane* lane : cut) paths_.failed(lane_paths_[static_cast<size_t>(lane->number())], now);
  for (BulkLane* lane : cut) leave(*lane, now);
  kick();
}

// A lane that is of no use: without others it stays until there is a new one.
void TcpLink::leave(BulkLane& lane, Time now) {
  const auto number = static_cast<size_t>(lane.number());
  const bool others = std::any_of(bulk_.begin(), bulk_.end(), [&](const auto& other) {
    return other.get() != &lane && other->writable() && !other->ended() && !other->unanswered(kSilentSeconds);
  });
  if (!others) {
    if (now < next_lane_try_) return;
    next_lane_try_ = now + seconds(kTrySeconds);
  }
  if (accepted_) {  // the peer dials; it may have nothing to say over this lane, and not know
    Frame frame;
    frame.type = FrameType::cut;
    frame.channel = number;
    frame.seq = lane.far_port();
    control_.send(frame, nullptr);
  }
  if (others) {
    note(TraceEvent::Kind::lane_lost, lane, static_cast<uint32_t>(number) + 1);
    if (lost_++ == 0)
      log_warning(core_->identity.rank, "a connection to " + name() + " gets no answers: others take its work");
    drop(lane);
  }
  if (!accepted_ && number < lane_dials_.size() && !lane_dials_[number]) dial_lane(number);
}

// The peer has left a lane, by the number of its port on this side: there may be a new one by now.
void TcpLink::cut_by_peer(uint64_t number, uint32_t port) {
  if (accepted_ || number >= lane_paths_.size() || number >= bulk_.size()) return;
  BulkLane& lane = *bulk_[number];
  if (!lane.is_open() || lane.near_port() != port) return;
  const Time at = now();
  suspect_size(lane, true, at);
  if (finished_) return;
  paths_.failed(lane_paths_[number], at);
  leave(lane, at);
  kick();
}

// ---- which lane goes where

std::vector<Paths::Lane> TcpLink::lanes_and_paths(size_t but) const {
  std::vector<Paths::Lane> found(lane_dials_.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (i == but) continue;
    const bool open = i < bulk_.size() && bulk_[i]->is_open();
    if (lane_dials_[i])
      found[i] = {dial_paths_[i], -1};
    else if (open)
      found[i] = {lane_paths_[i], achieved_[i].rate};
  }
  return found;
}

Dial::Target TcpLink::target_by(std::vector<std::string> addresses) const {
  return {target_.peer, std::move(addresses), target_.port};
}

void TcpLink::dial_lane(size_t number) { dial_lane(number, paths_.pick(lanes_and_paths(number), now())); }

void TcpLink::dial_lane(size_t number, size_t path, double delay) {
  dial_paths_[number] = path;
  // Where there is another path, a silent one may not keep the lane waiting.
  const bool others = paths_.usable(now(), path);
  lane_dials_[number] = std::make_unique<Dial>(
      core_, target_by({paths_.address(path)}), Purpose::lane, static_cast<uint32_t>(number) + 1, token_,
      [this, number](Dial::Result r) { lane_dialled(number, std::move(r)); },
      DialTerms{others ? Dial::kImpatience : core_->options.connect_seconds, delay, segment_, {}});
}

void TcpLink::see_what_lanes_achieve(Time now) {
  const double took = std::chrono::duration<double>(now - std::exchange(achieved_at_, now)).count();
  for (size_t i = 0; i < std::min(achieved_.size(), bulk_.size()); ++i) {
    Achieved& lane = achieved_[i];
    const uint64_t carried = bulk_[i]->carried();
    if (lane.carried) lane.rate = static_cast<double>(carried - *lane.carried) / took;
    lane.carried = carried;
  }
}

// Lanes that could not be had before are dialled again, and a path that has come back gets some of the others.
void TcpLink::spread_lanes(Time now) {
  if (now >= next_find_) {
    next_find_ = now + seconds(kFindSeconds);
    see_what_lanes_achieve(now);
    for (size_t i = 0; i < lane_dials_.size(); ++i)
      if (!lane_dials_[i] && (i >= bulk_.size() || !bulk_[i]->is_open())) dial_lane(i);
  }
  if (now < next_move_ || dialling_lanes()) return;
  const auto move = paths_.move(lanes_and_paths(Paths::kNone), now);
  if (!move) return;
  next_move_ = now + seconds(kMoveSeconds);
  dial_lane(move->lane, move->path);  // it takes the old one's place when it is there
}

// A lane was far too slow: if it had its path for itself, that is not where the new one goes.
void TcpLink::avoid_path_of(size_t number, Time now) {
  if (accepted_ || number >= lane_paths_.size()) return;
  const auto lanes = lanes_and_paths(number);
  const size_t path = lane_paths_[number];
  if (std::none_of(lanes.begin(), lanes.end(), [&](const auto& lane) { return lane.path == path; }))
    paths_.failed(path, now);
}

}  // namespace slipstream
