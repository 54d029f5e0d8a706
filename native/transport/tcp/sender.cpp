#include "transport/tcp/sender.h"

#include <algorithm>
#include <span>
#include <vector>

#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr double kMaintenanceSeconds = 0.002;
constexpr double kPatience = 0.03;  // seconds that a slow lane leaves work to faster ones
constexpr size_t kNearWindow = 1 << 20;
constexpr double kWindowSeconds = 0.25;
constexpr size_t kLeastWindow = 8 << 20;
constexpr size_t kMostWindow = 32 << 20;

}  // namespace

void Sender::push(const Frame& frame, const std::byte* data, uint64_t cookie, int urgency) {
  if (outbox_.empty()) busy_since_ = now();
  outbox_.push(frame, data, cookie, link_.bulk().count(), urgency);
  link_.cuts().watch();
  kick();
}

void Sender::kick() {
  // Where there are threads to share much with, the poller collects the lanes that can.
  const bool together = link_.context().core->batch.shares() && outbox_.waiting() >= IoThreads::kWorthWaking;
  const auto& lanes = link_.bulk().all();
  const size_t first = last_ + 1;
  std::vector<Turn> turns;
  for (size_t i = 0; i < lanes.size(); ++i) {
    BulkLane& lane = *lanes[(first + i) % lanes.size()];
    if (!lane.idle() || !outbox_.has_work(lane.number())) continue;
    if (together && !lane.pause().active()) continue;
    turns.push_back({&lane, 0, true});
    if (!lane.near()) continue;
    write_in_turns(turns);  // within a machine there are no paths to spread over, and every connection costs
    turns.clear();
  }
  if (!turns.empty()) write_in_turns(turns);
  link_.bulk().update();
}

// A lane whose socket has room for all that waits may not take it from the others: their paths would be idle.
void Sender::write_in_turns(std::span<Turn> turns) {
  const Time start = now();
  for (bool more = true; more;) {
    more = false;
    for (Turn& turn : turns) {
      if (!turn.more || (turn.lane->idle() && !outbox_.has_work(turn.lane->number()))) continue;
      const size_t before = turn.wrote;
      turn.more = turn.lane->write_segment(turn.wrote, start);
      if (turn.wrote > before) last_ = static_cast<size_t>(turn.lane->number());
      more = more || turn.more;
    }
  }
  for (const Turn& turn : turns) turn.lane->end_turn(turn.wrote, start);
}

std::optional<Outbox::Out> Sender::pull(BulkLane& lane, Time now) {
  const BulkLanes& lanes = link_.bulk();
  // Within a machine there are no paths to spread over, and every call costs.
  const uint32_t size = lane.near() ? kMaxPayload : lane.pace().segment(outbox_.waiting(), lanes.open());
  auto pause = LanePause::Reason::none;
  if (lanes.spreads() && !lane.near()) {
    if (too_slow(lane, size, now)) pause = LanePause::Reason::others_are_faster;
    if (lane.has_enough(lanes.open(), now)) pause = LanePause::Reason::has_enough;
  }
  lane.pause().set(pause, now);
  auto found = pause == LanePause::Reason::none ? outbox_.pull(lane.number(), size, now) : std::nullopt;
  if (found) pacing_.fed(now);
  // Who checks what comes may leave a lane with what it carries: also within a machine late segments take others then.
  if (!found && !outbox_.empty() && lanes.spreads() && (!lane.near() || lane.checks() || lane.encrypted()))
    maintain_soon(now);
  return found;
}

bool Sender::acknowledged(uint64_t first, uint64_t last) {
  const LinkContext& at = link_.context();
  if (!outbox_.has_left(last)) {
    link_.protocol_error("an acknowledgement of data that this rank has not sent");
    return false;
  }
  bool news = false;
  for (uint64_t number = std::max(first, outbox_.oldest_left()); number <= last; ++number) {
    const auto cookie = outbox_.taken(number);
    if (!cookie) continue;
    news = true;
    if (outbox_.empty()) busy_ += now() - busy_since_;
    for (const auto& lane : link_.bulk().all()) lane->forget_out(number);
    at.core->events.sent(link_, *cookie);
    if (at.ends()) return false;
  }
  if (news && outbox_.waiting() > 0) kick();
  return !at.ends();
}

// A slow lane's segment takes long, and the others go on meanwhile. Within a machine caches decide instead.
size_t Sender::window() const {
  if (link_.control().near()) return kNearWindow;
  return static_cast<size_t>(std::clamp(rate() * kWindowSeconds, double(kLeastWindow), double(kMostWindow)));
}

double Sender::rate() const {
  double rate = 0;
  for (const auto& lane : link_.bulk().all()) rate += lane->pace().rate();
  return rate;
}

double Sender::busy(Time now) const {
  const auto lately = outbox_.empty() ? Clock::duration{} : now - busy_since_;
  return std::chrono::duration<double>(busy_ + lately).count();
}

void Sender::stop() { link_.context().core->timers.cancel(*this); }

// ---- maintenance

void Sender::maintain_soon(Time now) {
  if (maintained_) return;
  maintained_ = true;
  link_.context().core->timers.set(*this, now + seconds(kMaintenanceSeconds));
}

void Sender::due(Time now) {
  maintained_ = false;
  if (link_.context().ends() || outbox_.empty()) return;
  kick();
  repeat_late(now);
  replace_slow(now);
  if (!outbox_.empty()) maintain_soon(now);
}

bool Sender::too_slow(BulkLane& lane, uint32_t size, Time now) {
  const double rate = lane.pace().rate();
  if (rate == 0 || outbox_.waiting() == 0) return false;
  if (lane.pause().leaves_work_for(seconds(kPatience), now)) return false;  // the faster ones may stand still
  const auto& lanes = link_.bulk().all();
  if (pacing_.load_is_old(now)) {
    Pacing::Load load;
    for (const auto& one : lanes) {
      if (!one->writable()) continue;  // what it achieved says nothing any more
      load.rate += one->pace().rate();
      load.backlog += static_cast<double>(one->unsent());
    }
    pacing_.set_load(load, now);
  }
  return pacing_.is_slow(rate, static_cast<size_t>(link_.bulk().open())) &&
         pacing_.holds_up(rate, lane.unsent(), size, outbox_.waiting());
}

// An idle lane sends a segment again that is late where it is: it may be quicker here.
void Sender::repeat_late(Time now) {
  if (!pacing_.repeats(now)) return;
  const auto& lanes = link_.bulk().all();
  for (const auto& lane : lanes) {
    if (!lane->idle() || outbox_.has_work(lane->number())) continue;
    const auto late = [&](int holder, uint32_t size, Time since) {
      const BulkLane& other = *lanes[static_cast<size_t>(holder)];
      const auto state = [&] { return Pacing::Holder{other.pace().rate(), other.unsent()}; };
      return pacing_.is_late(lane->pace().rate(), size, since, now, state);
    };
    if (const auto copy = outbox_.pull_late(lane->number(), late)) lane->start(*copy);
  }
}

void Sender::replace_slow(Time now) {
  if (!pacing_.compares(now)) return;
  std::vector<Pacing::Lane> lanes;
  for (const auto& lane : link_.bulk().all()) lanes.push_back({lane->seen_rate(), lane->is_open()});
  if (const auto slow = pacing_.far_behind(lanes, link_.context().repairs())) link_.bulk().replace(*slow, now);
}

}  // namespace slipstream
