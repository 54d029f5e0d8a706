// The frames that the two ends of a tcp link send each other about their lanes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "transport/frame.h"

namespace slipstream {

// The meaning of `number` depends on the type:
//   taken   acknowledges bulk message `number`: all of it is here. With kAllBefore: and all messages before it.
//   seen    acknowledges the first `number` bytes of the control stream.
//   resume  begins a connection that takes the place of a broken control lane. As `seen`: the stream goes on from
//   there.
//   cut     lane `number` gets no answers; `detail` is the port of the receiver's end of it. With kGone: its sender has
//           closed it. Comes from the side that cannot connect.
//   lanes   the data of the sender is worth `number` bulk lanes. Comes from the side that cannot connect.
struct LaneControl {
  FrameType type = FrameType::taken;
  uint8_t flags = 0;
  uint16_t unused = 0;
  uint32_t length = 0;  // there is no payload
  uint64_t number = 0;
  uint32_t detail = 0;
  std::array<uint32_t, 3> zero{};

  operator Frame() const { return std::bit_cast<Frame>(*this); }
  static LaneControl of(const Frame& frame) { return std::bit_cast<LaneControl>(frame); }
};
static_assert(sizeof(LaneControl) == sizeof(Frame));

// In the flags of `taken`.
inline constexpr uint8_t kAllBefore = 1;
// In the flags of `cut`.
inline constexpr uint8_t kGone = 1;

}  // namespace slipstream
