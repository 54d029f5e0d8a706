// The bulk messages that come over a link: where they lie until their owner has a place, and what has been
// acknowledged. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "transport/link.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/receive_buffers.h"
#include "transport/tcp/timers.h"
#include "transport/tcp/watermark.h"

namespace slipstream {

class TcpLink;

class Receiver final : private Timed {
 public:
  explicit Receiver(TcpLink& link) : link_(link) {}

  Inbox& inbox() { return inbox_; }
  uint64_t repeated() const { return inbox_.repeated(); }  // bytes that came again

  enum class Destination { found, full, none };  // none: the link ends
  // Where the payload of a segment goes; null: it is dropped.
  Destination destination(const SegmentHeader& segment, std::byte*& into);
  // All of a segment is in its place.
  void complete(const SegmentHeader& segment);
  // The owner gives the memory of a message back.
  void release(const Payload& payload);

  // Segments that carried acknowledgements may be lost: sends these acknowledgements again.
  void acknowledge_again();
  // No segment follows that could carry acknowledgements: sends those that wait for one.
  void acknowledge_rest();

  void stop();  // no acknowledgements any more
  void clear() { inbox_.clear(); }

 private:
  void due(Time) override { acknowledge(); }
  void complete(uint64_t message);
  void took(uint64_t message, bool soon);
  void acknowledge();
  void acknowledge_later();

  TcpLink& link_;
  Inbox inbox_;
  ReceiveBuffers buffers_;
  std::unordered_map<uint64_t, uint64_t> kept_;  // messages in buffers that the owner has: by buffer
  Watermark taken_;                              // the messages that have come and need no buffer any more
  bool waits_ = false;                           // acknowledgements wait for a segment of ours
};

}  // namespace slipstream
