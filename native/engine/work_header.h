// What a frame (transport/frame.h) says between two engines: to which work it belongs, and what it tells of that work.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "transport/frame.h"

namespace slipstream {

enum class MessageType : uint8_t {
  data = static_cast<uint8_t>(FrameType::data),  // a piece of a step
  ready = 2,                                     // receiver -> sender: I have submitted this work, send its bulk
  request = 3,   // sender -> receiver: tell me (with `ready`) when you have submitted this work
  credit = 4,    // receiver -> sender: `chunk` bytes of eager data were consumed
  describe = 5,  // payload: my description of this work; compare with yours
  ping = static_cast<uint8_t>(FrameType::ping),
  pong = static_cast<uint8_t>(FrameType::pong),
  abort = static_cast<uint8_t>(FrameType::abort),  // payload: an encoded Error; the sender's session has failed
  goodbye = static_cast<uint8_t>(FrameType::goodbye),
  announce = 10,  // sender -> receiver: this send exists, though no bytes of it may come yet
  status = 11,    // payload: what rank `chunk` does about a work that the receiver described
  offer = 16,     // worker -> reducer: I have begun this work; payload: what it is (SharedPart::offer)
  board = 17,     // leader -> member of a group: memory for its board; payload: where it is (boards/boards.h)
};
static_assert(static_cast<uint8_t>(MessageType::board) <= kLastFrameType);

// Flags of data.
inline constexpr uint8_t kEagerFlag = 1;   // its sender has not asked
inline constexpr uint8_t kPlacedFlag = 2;  // the bytes are in the receiver's memory already

struct WorkHeader {
  MessageType type = MessageType::data;
  uint8_t flags = 0;
  uint16_t stream = 0;     // which of the sender's send steps to this peer, in plan order
  uint32_t length = 0;     // payload bytes
  uint64_t channel = 0;    // the group, or a point-to-point channel of it
  uint32_t seq = 0;        // number of the work in its channel
  uint32_t signature = 0;  // hash of what the sender believes the work to be
  uint32_t chunk = 0;
  uint16_t piece = 0;  // which block of the step's range
  uint16_t reserved = 0;

  operator Frame() const { return std::bit_cast<Frame>(*this); }
  static WorkHeader of(const Frame& frame) { return std::bit_cast<WorkHeader>(frame); }
};
static_assert(sizeof(WorkHeader) == sizeof(Frame) && offsetof(WorkHeader, length) == offsetof(Frame, length) &&
              offsetof(WorkHeader, reserved) == offsetof(Frame, reserved));

}  // namespace slipstream
