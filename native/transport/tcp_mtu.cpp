// Paths that carry small packets and drop large ones without a word: one hop's MTU is smaller than the interfaces say,
// and the messages that should tell are filtered. Handshakes, pings and small frames pass, and nothing else does. What
// shows it is a connection that was made after another one had stalled, and that stalls too before one full packet was
// acknowledged. Then the link's next connections send smaller packets (TCP_MAXSEG, which holds for both directions).
#include "base/log.h"
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr int kSegments[] = {1200, 536};  // bytes of payload: within tunnels on Ethernet; what every path must carry
constexpr uint64_t kGreeting = 512;       // bytes, and more, that a connection says before its first full packet
constexpr double kMemorySeconds = 30;     // two stalls that are further apart have nothing to do with each other
constexpr uint64_t kHeaders = 52;         // of IPv4 and TCP with time stamps

}  // namespace

// A connection stalls: of what we sent, or of what the peer says it sent (`inwards`), nothing is acknowledged.
void TcpLink::suspect_size(const Lane& lane, bool inwards, Time now) {
  if (accepted_ || !repairs() || lane.opened_at() <= stalled_at_) return;  // the side that dials sets the size
  const bool again = now - stalled_at_ < seconds(kMemorySeconds);
  stalled_at_ = now;
  const Passed passed = lane.passed();
  const bool nothing_large = (inwards ? passed.received : passed.acknowledged) < kGreeting + passed.segment;
  if (!again || !nothing_large || (!inwards && lane.unsent() <= kGreeting)) return;
  const uint64_t packet = passed.segment + kHeaders;
  for (const int smaller : kSegments) {
    if (static_cast<uint64_t>(smaller) >= passed.segment) continue;
    segment_ = smaller;
    log_warning(core_->identity.rank, "packets of " + std::to_string(packet) + " bytes do not reach " + name() +
                                          ", small ones do: new connections send at most " +
                                          std::to_string(smaller + kHeaders) +
                                          " (set the MTU of the interfaces to what the network between them carries)");
    return;
  }
  fail({Code::peer_lost,
        peer_,
        {},
        "packets larger than " + std::to_string(packet - 1) + " bytes do not reach " + name() +
            ", small ones do: set the MTU of the interfaces to what the network between them carries"});
}

}  // namespace slipstream
