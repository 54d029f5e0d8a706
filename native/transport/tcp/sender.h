// The bulk messages that go out over a link: which lane takes which segment, and when one is sent a second time.
// Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "transport/link.h"
#include "transport/tcp/bulk_lane.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/pacing.h"
#include "transport/tcp/timers.h"

namespace slipstream {

class TcpLink;

class Sender final : private Timed {
 public:
  Sender(TcpLink& link, Dealing dealing) : link_(link), outbox_(dealing) {}

  Outbox& outbox() { return outbox_; }
  const Outbox& outbox() const { return outbox_; }

  void push(const Frame& frame, const std::byte* data, uint64_t cookie, int urgency);
  // Idle lanes take what there is; busy ones come back for more.
  void kick();
  // A lane can send: its next segment, if there is one for it.
  std::optional<Outbox::Out> pull(BulkLane& lane, Time now);
  // The peer has acknowledged messages `first` to `last`. False: the link ends, or closes.
  bool acknowledged(uint64_t first, uint64_t last);

  // Bytes that the owner should have under way, and bytes a second that the lanes achieve.
  size_t window() const;
  double rate() const;
  // What lanes have taken in all, and the seconds in which there was something that the peer did not have.
  uint64_t went() const { return outbox_.pushed() - outbox_.waiting(); }
  double busy(Time now) const;

  void stop();  // no maintenance any more

 private:
  struct Turn {
    BulkLane* lane;
    size_t wrote;  // bytes
    bool more;     // its socket may take another segment
  };

  void write_in_turns(std::span<Turn> turns);
  // Maintenance, while something waits that no lane takes.
  void due(Time now) override;
  void maintain_soon(Time now);
  bool too_slow(BulkLane& lane, uint32_t size, Time now);
  void repeat_late(Time now);
  void replace_slow(Time now);

  TcpLink& link_;
  Outbox outbox_;
  Pacing pacing_;
  size_t last_ = 0;          // the lane used last
  bool maintained_ = false;  // the timer is set
  Clock::duration busy_{};   // until the outbox was last empty
  Time busy_since_{};        // if it is not now
};

}  // namespace slipstream
