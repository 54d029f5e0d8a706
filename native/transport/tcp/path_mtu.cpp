#include "transport/tcp/path_mtu.h"

namespace slipstream {
namespace {

constexpr int kSegments[] = {1200, 536};  // bytes of payload: within tunnels on Ethernet; what every path must carry
constexpr uint64_t kGreeting = 512;       // bytes, and more, that a connection says before its first full packet
constexpr double kMemorySeconds = 30;     // two stalls that are further apart have nothing to do with each other
constexpr double kApartSeconds = 0.6;     // looks that are further apart may miss an outage between them

// The next smaller size; 0: there is none.
int below(uint64_t segment) {
  for (const int smaller : kSegments)
    if (static_cast<uint64_t>(smaller) < segment) return smaller;
  return 0;
}

}  // namespace

bool PathMtu::suspects(Time now) const { return stalled_at_ != Time{} && now - stalled_at_ < seconds(kMemorySeconds); }

PathMtu::Finding PathMtu::stalled(const Stall& stall, Time now, Clock::duration trial) {
  if (stall.opened_at <= stalled_at_) return Finding::nothing;
  const bool again = suspects(now);
  stalled_at_ = now;
  if (!again) return Finding::suspected;
  if (stall.passed >= kGreeting + stall.segment || stall.waiting <= kGreeting) return Finding::nothing;
  const int smaller = below(stall.segment);
  if (stall.others_pass) {
    if (smaller == 0) return Finding::hopeless;
    const bool news = proven_ == 0 || smaller < proven_;
    if (news) proven_ = smaller;
    if (segment_ == 0 || segment_ >= smaller) {  // else that is still being tried
      segment_ = smaller;
      trial_ends_ = Time::max();
    }
    return news ? Finding::proven : Finding::nothing;
  }
  if (segment_ != 0 && static_cast<uint64_t>(segment_) < stall.segment) return Finding::nothing;
  segment_ = smaller == 0 ? proven_ : smaller;
  trial_ends_ = smaller == 0 ? Time::max() : now + trial;
  return smaller == 0 ? Finding::useless : Finding::tried;
}

void PathMtu::end_trial(Time now) {
  if (now < trial_ends_) return;
  segment_ = proven_;
  trial_ends_ = Time::max();
  stalled_at_ = now;
}

bool PathMtu::looks(Time now) const { return now - looked_at_ >= seconds(kApartSeconds / 4); }

std::optional<Time> PathMtu::look(Time now) {
  const Time before = looked_at_;
  looked_at_ = now;
  return now - before < seconds(kApartSeconds) ? std::optional(before) : std::nullopt;
}

void PathMtu::connected(size_t lane, int segment) {
  if (lane >= lanes_.size()) lanes_.resize(lane + 1);
  lanes_[lane] = segment;
}

std::optional<size_t> PathMtu::lane_to_enlarge(const std::function<bool(size_t)>& is_open) const {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (lanes_[i] == 0 || (segment_ != 0 && lanes_[i] >= segment_) || !is_open(i)) continue;
    return i;
  }
  return std::nullopt;
}

}  // namespace slipstream
