#include "transport/tcp/promotion.h"

#include <algorithm>
#include <utility>

#include "transport/tcp/link.h"

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

bool fit(const BulkLane& lane) { return lane.writable() && !lane.ended() && lane.promoted() == 0; }

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

std::optional<size_t> PromotionPolicy::look(LaneSeen control, std::vector<LaneSeen> lanes, double most, Time now) {
  next_look_ = now + seconds(kLookSeconds);
  const auto since = [](uint64_t& last, uint64_t total) { return total - std::exchange(last, total); };
  control.sent = since(control_sent_, control.sent);
  lanes_.resize(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    lanes[i].sent = since(lanes_[i].sent, lanes[i].sent);
    lanes[i].received = since(lanes_[i].received, lanes[i].received);
  }
  const auto lane = faster_lane(control, lanes, most);
  found_ = lane ? found_ + 1 : 0;
  return found_ >= kLooks && now >= next_promotion_ ? lane : std::nullopt;
}

void PromotionPolicy::promoted(Time now) {
  found_ = 0;
  wait_ = std::clamp(2 * wait_, kLeastWait, kMostWait);
  next_promotion_ = now + seconds(wait_);
}

void ControlPromotion::seek(Time now) {
  const ControlLane& control = link_.control();
  if (!policy_.looks(now) || !link_.context().repairs() || !link_.bulk().spreads() || control.near()) return;
  std::vector<LaneSeen> lanes;
  for (const auto& lane : link_.bulk().all())
    lanes.push_back({lane->rtt(), lane->least_rtt(), fit(*lane) ? lane->seen_rate() : 0, lane->sent(),
                     lane->carried() - lane->sent()});
  const bool other_paths = link_.bulk().placement().paths().usable(now, link_.control_connection().path());
  const auto lane = policy_.look({control.rtt(), control.least_rtt(), 0, control.position(), 0}, std::move(lanes),
                                 other_paths ? 1 : kMostOfAll, now);
  if (lane && promote(*lane)) policy_.promoted(now);
}

bool ControlPromotion::promote(size_t number) {
  const LinkContext& at = link_.context();
  const ControlLane& control = link_.control();
  ControlConnection& connection = link_.control_connection();
  if (at.accepted || at.ends() || at.goodbye || !control.is_open() || control.resuming() || connection.dialling())
    return false;
  const auto& lanes = link_.bulk().all();
  const auto is_fit = [](const auto& lane) { return fit(*lane); };
  if (number >= lanes.size() || !is_fit(lanes[number]) || std::count_if(lanes.begin(), lanes.end(), is_fit) < 2)
    return false;
  if (std::any_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane->promoted() != 0; })) return false;
  lanes[number]->promote(connection.begin_promotion());
  return true;
}

void ControlPromotion::emptied(BulkLane& lane, Connection connection, uint32_t generation) {
  LinkContext& at = link_.context();
  const auto number = static_cast<size_t>(lane.number());
  // The side that dialled has been told that all is read; of this side's last segments nothing is known yet.
  if (at.accepted) link_.sender().outbox().lost(lane.number());
  link_.heard();
  if (generation == kRetired) {
    connection.fd.reset();
  } else if (link_.control_connection().promote(connection, generation, number)) {
    link_.cuts().watch();
  } else {  // the control lane broke meanwhile, and there is, or will be, a newer one
    at.note(TraceEvent::Kind::lane_lost, lane, static_cast<uint32_t>(number) + 1);
    ++at.lost;
    connection.fd.reset();
  }
  if (at.closing) return link_.settle();
  BulkLanes& bulk = link_.bulk();
  if (bulk.may_dial(number)) bulk.dial(number);
  if (!at.accepted && !bulk.alive() && !bulk.dialling()) bulk.dial_missing(true);  // the others broke meanwhile
  link_.sender().kick();
}

bool ControlPromotion::in_doubt(const BulkLane& lane) const {
  return !link_.context().accepted && lane.sent_last() && lane.promoted() == link_.control_connection().generation();
}

bool ControlPromotion::under_way() const {
  const auto& lanes = link_.bulk().all();
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const auto& lane) { return lane->is_open() && !lane->ended() && lane->sent_last(); });
}

}  // namespace slipstream
