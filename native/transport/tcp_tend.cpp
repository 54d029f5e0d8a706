// How a tcp link looks after its lanes while it has something under way: late segments go out a second time on a
// lane that has nothing to do, and a lane that stays far behind the others is given up for a new one.
#include <algorithm>
#include <iterator>
#include <vector>

#include "base/log.h"
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr double kLookSeconds = 0.5;
constexpr int kSlowLooks = 10;           // so long a lane may be far behind
constexpr double kFarBehind = 1.0 / 16;  // of the lanes' median rate
constexpr size_t kNearWindow = 1 << 20;
constexpr double kWindowSeconds = 0.25;
constexpr size_t kLeastWindow = 8 << 20;
constexpr size_t kMostWindow = 32 << 20;
constexpr double kLoadSeconds = 0.002;
constexpr double kPatience = 0.03;  // seconds that a slow lane leaves work to faster ones
constexpr double kLongSeconds = 1;  // after which a segment is late whatever its lane once achieved
constexpr double kSlackSeconds = 0.002;
constexpr double kLateSeconds = 0.01;
constexpr double kLateFactor = 3;
constexpr double kCopySeconds = 0.005;
constexpr double kDrainedSeconds = 0.01;

}  // namespace

void TcpLink::tend(Time now) {
  tended_ = false;
  if (finished_ || closing_ || outbox_.empty()) return;
  kick();
  copy_late(now);
  watch_pace(now);
  if (outbox_.empty()) return;
  tended_ = true;
  core_->timers.set(tender_, now + seconds(kTendSeconds));
}

// Whether the other lanes would be done with all there is before this one is with what it has and a segment more.
bool TcpLink::too_slow(BulkLane& lane, uint32_t size, Time now) {
  const double rate = lane.pace().rate();
  if (rate == 0 || outbox_.waiting() == 0) return false;
  if (lane.has_declined_for(seconds(kPatience), now)) return false;  // the faster ones may stand still
  if (now - load_.at > seconds(kLoadSeconds)) {
    load_ = {now, 0, 0};
    for (const auto& one : bulk_) {
      if (!one->writable()) continue;  // what it achieved says nothing any more
      load_.rate += one->pace().rate();
      load_.backlog += static_cast<double>(one->unsent());
    }
  }
  if (rate > load_.rate / 2 / static_cast<double>(bulk_.size())) return false;  // no slower than most
  const double here = (static_cast<double>(lane.unsent()) + size) / rate;
  const double all = (static_cast<double>(outbox_.waiting()) + load_.backlog) / load_.rate;
  return here > all + kSlackSeconds;
}

// A lane has nothing to do and another one is late with what it took: it may be quicker here. Only when nothing else
// has been waiting for a while: a copy must not take the place of something new.
void TcpLink::copy_late(Time now) {
  if (now < next_copy_) return;
  next_copy_ = now + seconds(kCopySeconds);
  const bool idle = now - fed_ > seconds(kDrainedSeconds);
  for (const auto& lane : bulk_) {
    if (!lane->idle() || outbox_.has_work(lane->number())) continue;
    const auto late = [&](int holder, uint32_t size, Time since) {
      if (now - since > seconds(kLongSeconds)) return true;
      const double rate = lane->pace().rate();
      if (!idle || rate == 0) return false;
      const BulkLane& other = *bulk_[static_cast<size_t>(holder)];
      const double there = (static_cast<double>(other.unsent()) + size) / std::max(other.pace().rate(), 1.0);
      const double age = std::chrono::duration<double>(now - since).count();
      return std::max(there, age / kLateFactor) > kLateFactor * size / rate + kLateSeconds;
    };
    if (const auto copy = outbox_.pull_late(lane->number(), late)) lane->start(*copy);
  }
}

void TcpLink::watch_pace(Time now) {
  if (now < next_look_) return;
  next_look_ = now + seconds(kLookSeconds);
  std::vector<double> seen(bulk_.size());
  for (size_t i = 0; i < bulk_.size(); ++i) seen[i] = bulk_[i]->seen_rate();
  std::vector<double> rates;
  std::copy_if(seen.begin(), seen.end(), std::back_inserter(rates), [](double rate) { return rate > 0; });
  if (rates.size() < 3) return;
  std::nth_element(rates.begin(), rates.begin() + static_cast<ptrdiff_t>(rates.size() / 2), rates.end());
  const double median = rates[rates.size() / 2];
  slow_.resize(bulk_.size());
  for (const auto& lane : bulk_) {
    const auto number = static_cast<size_t>(lane->number());
    const bool behind = lane->is_open() && seen[number] > 0 && seen[number] < kFarBehind * median;
    slow_[number] = behind ? slow_[number] + 1 : 0;
    if (slow_[number] < kSlowLooks || !repairs()) continue;
    slow_[number] = 0;
    ++replaced_;
    if (replaced_ == 1)
      log_warning(core_->identity.rank, "lane " + std::to_string(number + 1) + " to " + name() +
                                            " is far slower than the others: a new connection takes its place");
    note(TraceEvent::Kind::lane_replaced, *lane, static_cast<uint32_t>(number) + 1);
    avoid_path_of(number, now);
    drop(*lane);
    // The side that dialled dials again; the other one sees the end and does the same.
    if (!accepted_ && number < lane_dials_.size() && !lane_dials_[number]) dial_lane(number);
    kick();
    return;  // one at a time
  }
}

// A slow lane's segment takes long, and the others go on meanwhile. Within a machine caches decide instead.
size_t TcpLink::window() const {
  if (control_.near()) return kNearWindow;
  return static_cast<size_t>(std::clamp(rate() * kWindowSeconds, double(kLeastWindow), double(kMostWindow)));
}

double TcpLink::rate() const {
  double rate = 0;
  for (const auto& lane : bulk_) rate += lane->pace().rate();
  return rate;
}

LinkStatistics TcpLink::statistics() const {
  LinkStatistics found;
  found.peer = peer_;
  found.lost = lost_;
  found.replaced = replaced_;
  found.repeated = outbox_.repeated();
  found.dropped = inbox_.repeated();
  found.damaged = damaged_;
  found.encrypted = core_->identity.encrypt;
  found.lanes.resize(bulk_.size() + 1);
  found.lanes[0].control = true;
  control_.describe(found.lanes[0]);
  for (size_t i = 0; i < bulk_.size(); ++i) bulk_[i]->describe(found.lanes[i + 1]);
  return found;
}

}  // namespace slipstream
