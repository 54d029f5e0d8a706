// A message of bulk data travels in segments, each over whichever lane takes it. What the wire says about one.
#pragma once

#include <cstdint>

#include "transport/frame.h"

namespace slipstream {

// 48 bytes, little-endian, then `size` bytes of payload.
struct SegmentHeader {
  Frame frame;           // of the whole message; frame.length is its size
  uint64_t message = 0;  // its number on this link and in this direction, from 1
  uint32_t offset = 0;   // of this segment in the message
  uint32_t size = 0;
};
static_assert(sizeof(SegmentHeader) == 48);

// Null if the header may come over a bulk lane, else what is wrong with it.
const char* objection_to_segment(const SegmentHeader& header);

}  // namespace slipstream
