// Messages on their way into a link: segments in any order, over any lane, some of them twice. Pure: no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "transport/tcp/segments.h"
#include "transport/tcp/watermark.h"

namespace slipstream {

class Inbox {
 public:
  // No peer has that many messages under way, nor numbers so far apart.
  static constexpr uint64_t kMostAhead = 1 << 20;

  struct Message {
    Frame frame;
    std::byte* into = nullptr;  // null until it has a place
    uint64_t hold = 0;          // the buffer that is its place, if it is one
    bool placed = false;
    uint32_t left = 0;  // bytes that have not come
    struct Part {
      uint32_t offset;
      uint32_t size;
      bool done;
      bool shared;  // it has begun to come more than once, so two lanes may write its bytes
      uint32_t end() const { return offset + size; }
    };
    std::vector<Part> parts;
  };
  enum class SegmentState {
    fresh,     // the first segment of its message: it needs a place
    wanted,    // its bytes are wanted
    repeated,  // they are here already, or come in other segments
    nonsense,  // it contradicts what came before
  };

  // A segment's header has come. What was lost may come again in smaller segments than before.
  SegmentState begin(const SegmentHeader& header);
  // The segment's bytes are still wanted: none of them is here. Where some are, it was cut up, and all of it comes in
  // smaller segments.
  bool wants(const SegmentHeader& header);
  // Other lanes may have written what this segment's lane has.
  bool shared(const SegmentHeader& header);
  // All bytes of a segment have come and lie in their place. True: the message is complete; collect it with finish().
  bool complete(const SegmentHeader& header);
  // The message, null if it is complete or never began.
  Message* find(uint64_t number);
  void finish(uint64_t number);
  void clear() { open_.clear(); }
  const std::map<uint64_t, Message>& open() const { return open_; }
  uint64_t repeated() const { return repeated_; }  // bytes that came again

 private:
  // Whether any part of the segment is so.
  bool any_part(const SegmentHeader& header, bool (*is)(const Message::Part&));

  std::map<uint64_t, Message> open_;
  Watermark done_;
  uint64_t repeated_ = 0;
};

}  // namespace slipstream
