// Paths that carry small packets and drop large ones without a word: one hop's MTU is smaller than the interfaces say,
// and the messages that should tell are filtered. Handshakes, pings and small frames pass, and nothing else does. The
// cure is TCP_MAXSEG, which holds for both directions, on the link's next connections.
//
// What hints at it is a connection that was made after another one had stalled, and that stalls too before one full
// packet was acknowledged. Short outages can look like that. So from the first stall on something small is said four
// times a second. If all the time that the second connection is silent another one between the same addresses is
// answered, the size is to blame. Else smaller packets are merely tried: after a while lanes send large ones again, one
// lane at a time, and are judged in their turn.
#include <algorithm>

#include "base/log.h"
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr int kSegments[] = {1200, 536};  // bytes of payload: within tunnels on Ethernet; what every path must carry
constexpr uint64_t kGreeting = 512;       // bytes, and more, that a connection says before its first full packet
constexpr double kMemorySeconds = 30;     // two stalls that are further apart have nothing to do with each other
constexpr uint64_t kHeaders = 52;         // of IPv4 and TCP with time stamps
constexpr int kTimeStamps = 12;           // bytes that TCP_MAXSEG counts and TCP_INFO does not
constexpr double kApartSeconds = 0.6;     // looks that are further apart may miss an outage between them
constexpr double kSlackSeconds = 0.1;     // of the kernel's clock, which counts in ticks
constexpr double kEnlargeSeconds = 2;     // between two lanes: the first is judged before the second follows

// The next smaller size; 0: there is none.
int below(uint64_t segment) {
  for (const int smaller : kSegments)
    if (static_cast<uint64_t>(smaller) < segment) return smaller;
  return 0;
}

std::string bytes(uint64_t segment) { return std::to_string(segment + kHeaders) + " bytes"; }

// Of packets on connections with such a TCP_MAXSEG.
std::string limited(int most) { return bytes(static_cast<uint64_t>(most - kTimeStamps)); }

constexpr const char* kCure = "set the MTU of the interfaces to what the network between them carries";

}  // namespace

bool TcpLink::suspects_size(Time now) const {
  return stalled_at_ != Time{} && now - stalled_at_ < seconds(kMemorySeconds);
}

// A connection stalls: of what we sent, or of what the peer says it sent (`inwards`), nothing is acknowledged.
void TcpLink::suspect_size(const Lane& lane, bool inwards, Time now) {
  if (accepted_ || !repairs() || lane.near() || lane.opened_at() <= stalled_at_)
    return;  // the side that dials sets the size
  const bool again = suspects_size(now);
  stalled_at_ = now;
  if (!again) return probe_size(now);
  const Passed passed = lane.passed();
  const bool nothing_large = (inwards ? passed.received : passed.acknowledged) < kGreeting + passed.segment;
  if (!nothing_large || (!inwards && lane.unsent() <= kGreeting)) return;
  if (small_data_passes(lane, inwards, now)) return size_proven(passed.segment);
  if (segment_ == 0 || static_cast<uint64_t>(segment_) >= passed.segment) try_size(below(passed.segment), now);
}

// While this connection was silent, every look has found that another one was answered.
bool TcpLink::small_data_passes(const Lane& lane, bool inwards, Time now) const {
  const Passed passed = lane.passed();
  const Time silent_since = now - seconds((inwards ? passed.unheard : passed.unanswered) - kSlackSeconds);
  const auto shows = [&](const Lane& other) {
    return &other != &lane && other.answered_since() <= silent_since && other.same_way(lane);
  };
  return shows(control_) || std::any_of(bulk_.begin(), bulk_.end(), [&](const auto& other) { return shows(*other); });
}

void TcpLink::size_proven(uint64_t segment) {
  const int smaller = below(segment);
  if (smaller == 0)
    return fail(
        {Code::peer_lost,
         peer_,
         {},
         "packets larger than " + bytes(segment - 1) + " do not reach " + name() + ", small ones do: " + kCure});
  if (proven_segment_ == 0 || smaller < proven_segment_) {
    proven_segment_ = smaller;
    log_warning(core_->identity.rank, "packets of " + bytes(segment) + " do not reach " + name() +
                                          ", small ones do: new connections send at most " + limited(smaller) + " (" +
                                          kCure + ")");
  }
  if (segment_ != 0 && segment_ < smaller) return;  // that is still being tried
  segment_ = smaller;
  trial_ends_ = Time::max();
}

// `segment` 0: no smaller one is left, and none has helped.
void TcpLink::try_size(int segment, Time now) {
  segment_ = segment == 0 ? proven_segment_ : segment;
  trial_ends_ = segment == 0 ? Time::max() : now + seconds(core_->options.patience_seconds);
  log_info(core_->identity.rank,
           "connections to " + name() +
               " stall: " + (segment == 0 ? "smaller packets do not help" : "trying packets of " + limited(segment)));
}

// Ends a trial, and gives lanes the size of those times back.
void TcpLink::watch_size(Time now) {
  if (accepted_ || now - answers_at_ < seconds(kApartSeconds / 4)) return;
  std::optional<Time> before;
  if (now - answers_at_ < seconds(kApartSeconds)) before = answers_at_;
  answers_at_ = now;
  control_.look_at_answers(before);
  for (const auto& lane : bulk_) lane->look_at_answers(before);
  if (now >= trial_ends_) {
    segment_ = proven_segment_;
    trial_ends_ = Time::max();
    stalled_at_ = now;  // the next stall is judged
  }
  if (now < next_move_ || dialling_lanes()) return;
  for (size_t i = 0; i < lane_dials_.size() && i < bulk_.size(); ++i) {
    const int size = lane_segments_[i];
    if (size == 0 || (segment_ != 0 && size >= segment_) || !bulk_[i]->is_open()) continue;
    next_move_ = now + seconds(kEnlargeSeconds);
    return dial_lane(i);  // it takes the old one's place when it is there
  }
}

void TcpLink::probe_size(Time now) {
  watch_size(now);
  control_.probe();
  watch();
}

}  // namespace slipstream
