// How small messages come to the fastest lane. Routers choose a connection's path by its ports, so the control lane may
// have got the slowest one. The side that dialled looks once a second, while the link is in use, and promotes a bulk
// lane that is faster: its connection becomes the control lane's, and a new one is dialled in its place.
//
// Nothing is lost or said twice by that. Each side ends its part of the bulk lane with a last word (promotion()), the
// other side only after it has read the first one's; then the connection is empty but for what follows that word. It
// begins like every connection that takes the control lane's place: with what each side has read of the control stream.
// Whatever breaks meanwhile is repaired as ever, and a newer control connection beats a promotion under way.
#include "transport/tcp_promote.h"

#include <algorithm>
#include <utility>

#include "transport/frame.h"
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr double kLookSeconds = 1;
constexpr int kLooks = 2;         // in a row that find a faster lane
constexpr double kLeastWait = 5;  // seconds between two promotions; it doubles with each
constexpr double kMostWait = 80;
constexpr double kMostOfAll = 0.25;          // of all lanes' rate together, of a lane that may go
constexpr double kLeastGain = 0.0005;        // seconds
constexpr uint64_t kLeastControl = 1 << 10;  // bytes since the last look, for a round trip that is of now
constexpr uint64_t kLeastBulk = 256 << 10;

}  // namespace

std::optional<size_t> faster_lane(const LaneSeen& control, std::span<const LaneSeen> lanes, double most) {
  if (control.rtt == 0 || control.sent < kLeastControl) return std::nullopt;
  double rates = 0;
  bool quiet = true;
  for (const LaneSeen& lane : lanes) {
    rates += lane.rate;
    quiet = quiet && lane.sent == 0 && lane.received == 0;
  }
  std::optional<size_t> best;
  double least = std::min(control.rtt / 2, control.rtt - kLeastGain);
  for (size_t i = 0; i < lanes.size(); ++i) {
    const LaneSeen& lane = lanes[i];
    if (lane.rate == 0 || lane.rate > most * rates || (!quiet && lane.sent < kLeastBulk)) continue;
    const double alone = lane.least_rtt + kEagerBytes / lane.rate;
    const double there = quiet ? alone : std::max(lane.rtt, alone);
    if (there >= least) continue;
    least = there;
    best = i;
  }
  return best;
}

void TcpLink::seek_faster_lane(Time now) {
  if (now < next_seek_ || !repairs() || !spreads() || control_.near()) return;
  next_seek_ = now + seconds(kLookSeconds);
  const auto since = [](uint64_t& last, uint64_t total) { return total - std::exchange(last, total); };
  said_.resize(bulk_.size());
  const LaneSeen control{control_.rtt(), control_.least_rtt(), 0, since(control_said_, control_.said()), 0};
  std::vector<LaneSeen> lanes(bulk_.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    const BulkLane& lane = *bulk_[i];
    const bool fit = lane.writable() && !lane.ended() && !lane.promoted();
    lanes[i] = {lane.rtt(), lane.least_rtt(), fit ? lane.seen_rate() : 0, since(said_[i].sent, lane.sent()),
                since(said_[i].received, lane.carried() - lane.sent())};
  }
  const auto lane = faster_lane(control, lanes, paths_.usable(now, control_path_) ? 1 : kMostOfAll);
  faster_looks_ = lane ? faster_looks_ + 1 : 0;
  if (faster_looks_ < kLooks || now < next_promotion_ || !promote(*lane)) return;
  faster_looks_ = 0;
  promotion_wait_ = std::clamp(2 * promotion_wait_, kLeastWait, kMostWait);
  next_promotion_ = now + seconds(promotion_wait_);
}

bool TcpLink::promote(size_t number) {
  if (accepted_ || finished_ || closing_ || goodbye_ || !control_.is_open() || control_.resuming() || control_dial_)
    return false;
  const auto fit = [](const auto& lane) { return lane->writable() && !lane->ended() && !lane->promoted(); };
  if (number >= bulk_.size() || !fit(bulk_[number]) || std::count_if(bulk_.begin(), bulk_.end(), fit) < 2) return false;
  if (std::any_of(bulk_.begin(), bulk_.end(), [](const auto& lane) { return lane->promoted() != 0; })) return false;
  bulk_[number]->promote(++generation_);
  return true;
}

// Both sides have said their last on the lane.
void TcpLink::lane_promoted(BulkLane& lane, Connection connection, uint32_t generation) {
  const auto number = static_cast<size_t>(lane.number());
  // The side that dialled has been told that all is read; of this side's last segments nothing is known yet.
  if (accepted_) outbox_.lost(lane.number());
  heard();
  if (accepted_ ? generation > generation_ : generation == generation_) {
    generation_ = control_generation_ = generation;
    if (!accepted_) control_path_ = lane_paths_[number];
    promoted_from_ = static_cast<uint32_t>(number) + 1;
    control_dial_.reset();
    // The peer may not have read that yet, and is not to take the end of the old connection for one.
    if (accepted_) former_control_ = control_.release().fd;
    control_.resume(std::move(connection));
    watch();
  } else {  // the control lane broke meanwhile, and there is, or will be, a newer one
    note(TraceEvent::Kind::lane_lost, lane, static_cast<uint32_t>(number) + 1);
    ++lost_;
    connection.fd.reset();
  }
  if (closing_) return step_close();
  if (!accepted_ && !lane_dials_[number]) dial_lane(number);
  kick();
}

// The lane's connection goes, and what it carried to other lanes.
void TcpLink::drop(BulkLane& lane) {
  const bool doubt = !accepted_ && lane.said_last() && lane.promoted() == generation_;
  outbox_.lost(lane.number());
  lane.shut();
  outbox_.untell();  // its segments may not have arrived, nor what they said
  if (!closing_) owe_words();
  // The peer may have made it its control lane: another one ends the doubt.
  if (doubt && !closing_ && !goodbye_ && !control_dial_ && control_.is_open()) dial_control();
}

// This side has said its last on a lane, and waits for the peer's.
bool TcpLink::changes_control() const {
  return std::any_of(bulk_.begin(), bulk_.end(),
                     [](const auto& lane) { return lane->is_open() && !lane->ended() && lane->said_last(); });
}

}  // namespace slipstream
