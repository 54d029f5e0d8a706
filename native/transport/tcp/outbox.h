// Messages on their way out of a link. They are cut into segments as lanes ask for them, kept until the peer has
// acknowledged them, and given to other lanes where one is lost or late. Pure: no sockets, no clock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "transport/tcp/segments.h"

namespace slipstream {

enum class Dealing : uint8_t {
  pull,         // a lane takes the next segment when it can
  round_robin,  // equal segments in turn, whether the lane can or not: for comparison alone
};

class Outbox {
 public:
  static constexpr uint32_t kLeastSegment = 16 << 10;
  static constexpr uint32_t kDealtSegment = 128 << 10;
  static constexpr int kOvertakes = 7;

  struct Out {
    SegmentHeader header;
    const std::byte* data = nullptr;
  };

  explicit Outbox(Dealing dealing = Dealing::pull) : dealing_(dealing) {}

  // `data` must stay until taken() or clear(). With round robin `lanes` is how many there are to deal to, and nothing
  // is urgent.
  void push(const Frame& frame, const std::byte* data, uint64_t cookie, int lanes, int urgency = 0);
  // The next segment for `lane`, at most about `most` bytes: of those that were lost first, then of the message that
  // has begun to leave, then of the most urgent one, the oldest of equals; but no message is overtaken for ever: after
  // kOvertakes others the oldest is next.
  std::optional<Out> pull(int lane, uint32_t most, Time now);
  // The rest of the message that is next if that is at most `most` bytes: a lane sends several such in one call.
  std::optional<Out> pull_rest(int lane, uint32_t most, Time now);
  // A copy of the oldest segment that its lane delivers too late; each is copied once.
  using Late = std::function<bool(int holder, uint32_t size, Time since)>;
  std::optional<Out> pull_late(int lane, const Late& late);
  // The peer has acknowledged message `number`: returns the cookie of its owner, null if it was acknowledged before.
  std::optional<uint64_t> taken(uint64_t number);
  // All of message `number` has left, and so have those before it.
  bool has_left(uint64_t number) const;
  uint64_t oldest_left() const { return base_; }  // the first message that the peer may not have
  // Every segment from now on acknowledges all messages of the other direction before this one.
  void acknowledge(uint64_t below) { acknowledge_ = below; }
  // The highest such acknowledgement that a segment has carried; 0 if it may be lost.
  uint64_t acknowledged() const { return acknowledged_; }
  void forget_acknowledged() { acknowledged_ = 0; }
  // What `lane` took and the peer may not have goes to others, each segment in smaller ones, and each time another one
  // first: also connections that all break before they have carried a whole segment bring something on.
  void lost(int lane);
  void clear();

  bool has_work(int lane) const {
    return !again_.empty() || (dealing_ == Dealing::pull ? waiting_ > 0 && !full() : dealt_to(lane));
  }
  uint64_t waiting() const { return waiting_; }  // bytes that no lane has taken yet
  bool empty() const { return messages_.empty() && backlog_.empty(); }
  uint64_t pushed() const { return pushed_; }      // bytes of all messages
  uint64_t repeated() const { return repeated_; }  // bytes sent again

 private:
  struct Segment {
    uint32_t offset;
    uint32_t size;
    int lane;
    bool copied;  // a second lane carries it too
    Time since;
  };
  struct Message {
    Frame frame;
    const std::byte* data;
    uint64_t cookie;
    uint32_t cut;  // bytes cut off so far
    bool taken;
    std::vector<Segment> segments;
  };
  struct Waiting {
    Frame frame;
    const std::byte* data;
    uint64_t cookie;
    int urgency;
    uint64_t entry;  // how many came before it
  };
  struct Ref {
    uint64_t number;
    uint32_t offset;
  };

  void cut_up(uint64_t number, size_t index, std::vector<Ref>& parts);
  bool dealt_to(int lane) const;
  // The peer may have to keep all that is under way in its buffers: no more than fits there is begun.
  bool full() const;
  Message* find(uint64_t number) {
    return number < base_ || number - base_ >= messages_.size() ? nullptr : &messages_[number - base_];
  }
  // The last message of those that have begun may not have left as a whole.
  bool amid() const { return !messages_.empty() && messages_.back().cut < messages_.back().frame.length; }
  size_t oldest() const;        // of the backlog
  size_t first() const;         // of the backlog: what begins next
  uint32_t next_bytes() const;  // that have not left, of the message that is next; 0: none, or it may not be begun
  Message* next();              // null where there is none
  Out out(uint64_t number, const Segment& segment);
  std::optional<Out> pull_again(int lane, Time now);
  std::optional<Out> pull_dealt(int lane, Time now);

  Dealing dealing_;
  std::deque<Waiting> backlog_;   // not begun: the most urgent first, and the oldest of equals
  uint64_t entries_ = 0;          // that it has had
  int overtakes_ = 0;             // of its oldest one
  std::deque<Message> messages_;  // begun; the first has number base_
  uint64_t base_ = 1;
  uint64_t acknowledge_ = 0;
  uint64_t acknowledged_ = 0;
  uint64_t waiting_ = 0;
  size_t under_way_ = 0;  // capacity of the buffers that all messages need that were begun and not taken
  uint64_t pushed_ = 0;
  uint64_t repeated_ = 0;
  std::deque<Ref> again_;
  double turn_ = 0;  // where in what is lost it begins the next time
  std::vector<std::deque<Ref>> dealt_;
  size_t next_lane_ = 0;
};

}  // namespace slipstream
