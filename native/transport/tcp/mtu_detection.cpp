#include "transport/tcp/mtu_detection.h"

#include <algorithm>

#include "base/log.h"
#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr uint64_t kHeaders = 52;      // of IPv4 and TCP with time stamps
constexpr int kTimeStamps = 12;        // bytes that TCP_MAXSEG counts and TCP_INFO does not
constexpr double kSlackSeconds = 0.1;  // of the kernel's clock, which counts in ticks

std::string bytes(uint64_t segment) { return std::to_string(segment + kHeaders) + " bytes"; }

// Of packets on connections with such a TCP_MAXSEG.
std::string limited(int most) { return bytes(static_cast<uint64_t>(most - kTimeStamps)); }

constexpr const char* kCure = "set the MTU of the interfaces to what the network between them carries";

}  // namespace

void MtuDetection::stalled(const Lane& lane, bool inwards, Time now) {
  const LinkContext& at = link_.context();
  if (at.accepted || !at.repairs() || lane.near()) return;  // the side that dials sets the size
  const Passed passed = lane.passed();
  const PathMtu::Stall stall{.opened_at = lane.opened_at(),
                             .passed = inwards ? passed.received : passed.acknowledged,
                             .waiting = inwards ? UINT64_MAX : lane.unsent(),
                             .segment = passed.segment,
                             .others_pass = small_data_passes(lane, passed, inwards, now)};
  const std::string to = " to " + at.name();
  switch (mtu_.stalled(stall, now, seconds(at.core->options.patience_seconds))) {
    case PathMtu::Finding::nothing:
      return;
    case PathMtu::Finding::suspected:
      return probe(now);
    case PathMtu::Finding::tried:
      return log_info(at.core->identity.rank,
                      "connections" + to + " stall: trying packets of " + limited(mtu_.segment()));
    case PathMtu::Finding::useless:
      return log_info(at.core->identity.rank, "connections" + to + " stall: smaller packets do not help");
    case PathMtu::Finding::proven:
      return at.warn("packets of " + bytes(stall.segment) + " do not reach " + at.name() +
                     ", small ones do: new connections send at most " + limited(mtu_.proven()) + " (" + kCure + ")");
    case PathMtu::Finding::hopeless:
      return link_.fail({Code::peer_lost,
                         at.peer(),
                         {},
                         "packets larger than " + bytes(stall.segment - 1) + " do not reach " + at.name() +
                             ", small ones do: " + kCure});
  }
}

// While this connection was silent, every look has found that another one was answered.
bool MtuDetection::small_data_passes(const Lane& lane, const Passed& passed, bool inwards, Time now) const {
  const Time silent_since = now - seconds((inwards ? passed.unheard : passed.unanswered) - kSlackSeconds);
  const auto shows = [&](const Lane& other) {
    return &other != &lane && other.answered_since() <= silent_since && other.same_way(lane);
  };
  const auto& lanes = link_.bulk().all();
  return shows(link_.control()) ||
         std::any_of(lanes.begin(), lanes.end(), [&](const auto& other) { return shows(*other); });
}

void MtuDetection::look(Time now) {
  if (link_.context().accepted || !mtu_.looks(now)) return;
  const std::optional<Time> before = mtu_.look(now);
  link_.control().look_at_answers(before);
  for (const auto& lane : link_.bulk().all()) lane->look_at_answers(before);
  mtu_.end_trial(now);
  link_.bulk().enlarge(now);
}

void MtuDetection::probe(Time now) {
  look(now);
  link_.control().probe();
  link_.cuts().watch();
}

}  // namespace slipstream
