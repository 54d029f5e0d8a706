// The one frame that every transport carries: 32 bytes, little-endian, then `length` bytes of payload.
#pragma once

#include <cstdint>

namespace slipstream {

enum class FrameType : uint8_t {
  data = 1,      // a piece of a collective's step
  ready = 2,     // receiver -> sender: I have submitted this work, send its bulk
  request = 3,   // sender -> receiver: tell me (with `ready`) when you have submitted this work
  credit = 4,    // receiver -> sender: `chunk` bytes of eager data were consumed
  describe = 5,  // payload: my description of this work; compare with yours
  ping = 6,
  pong = 7,
  abort = 8,      // payload: an encoded Error; the sender's session has failed
  goodbye = 9,    // the sender shuts down in good order; nothing follows
  announce = 10,  // sender -> receiver: this send exists, though no bytes of it may come yet
  status = 11,    // payload: what rank `chunk` does about a work that the receiver described
  offer = 16,     // worker -> reducer: I have begun this work; payload: what it is (engine/offer.h)
  // Between the two ends of a tcp link alone; nobody above sees them.
  taken = 12,   // message `channel` of bulk data is here, all of it; with kAllBefore those before it, too
  seen = 13,    // the first `channel` bytes of your control stream have been read
  resume = 14,  // first on a connection that takes an old one's place: as `seen`; go on from there
  cut = 15,     // lane `channel` has been given up; `seq` is the port of the receiver's end of it
};
inline constexpr uint8_t kLastFrameType = 16;

struct Frame {
  FrameType type = FrameType::data;
  uint8_t flags = 0;
  uint16_t stream = 0;     // which of the sender's send steps to this peer, in plan order
  uint32_t length = 0;     // payload bytes
  uint64_t channel = 0;    // the group, or a point-to-point channel of it
  uint32_t seq = 0;        // number of the work in its channel
  uint32_t signature = 0;  // hash of what the sender believes the work to be
  uint32_t chunk = 0;
  uint16_t piece = 0;  // which block of the step's range
  uint16_t reserved = 0;
};
static_assert(sizeof(Frame) == 32);

// In the flags of `taken`.
inline constexpr uint8_t kAllBefore = 1;

// Payloads up to this size may travel at any time; larger ones only after `ready`.
inline constexpr uint32_t kEagerBytes = 16 << 10;
// No payload is larger, whoever sends it.
inline constexpr uint32_t kMaxPayload = 4 << 20;

}  // namespace slipstream
