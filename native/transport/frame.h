// The header of every message between two ranks: 32 bytes, little-endian, then `length` bytes of payload. A transport
// reads the type and the length. The other bytes belong to its user, who lays a header of its own over the frame
// (engine/work_header.h is the engine's); transports carry them as they are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slipstream {

// The types that transports know. The others up to kLastFrameType are control messages of the user.
enum class FrameType : uint8_t {
  data = 1,     // the only type whose payload may be bulk (longer than kEagerBytes)
  ping = 6,     // asks for a pong
  pong = 7,     // dropped if the peer reads nothing
  abort = 8,    // the sender has failed; its last frame. Payload: why, in the user's words
  goodbye = 9,  // the sender leaves in good order; its last frame. Payload: a reason in plain text, or nothing
  // Between the two ends of a tcp link (transport/tcp/lane_control.h); the user never sees them.
  taken = 12,
  seen = 13,
  resume = 14,
  cut = 15,
  lanes = 18,
};
inline constexpr uint8_t kLastFrameType = 18;

struct alignas(8) Frame {
  FrameType type = FrameType::data;
  std::array<std::byte, 3> before_length{};  // the user's
  uint32_t length = 0;                       // bytes of payload
  std::array<std::byte, 22> after_length{};  // the user's
  uint16_t reserved = 0;
};
static_assert(sizeof(Frame) == 32);

// Payloads up to this size are never held back; larger ones are bulk.
inline constexpr uint32_t kEagerBytes = 16 << 10;
// No bulk that a link takes at once (Link::takes_at_once) is larger.
inline constexpr uint32_t kAtOnceBytes = 64 << 10;
// No reason is longer, of an abort or a goodbye: a link always has room for one.
inline constexpr uint32_t kMostReasonBytes = 4320;
// No payload is larger, whoever sends it.
inline constexpr uint32_t kMaxPayload = 4 << 20;

}  // namespace slipstream
