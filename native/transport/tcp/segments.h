// A message of bulk data travels in segments, each over whichever lane takes it. This is the header of one.
#pragma once

#include <cstdint>

#include "transport/frame.h"
#include "transport/tcp/checksums.h"

namespace slipstream {

// 64 bytes, little-endian, then `size` bytes of payload.
struct SegmentHeader {
  Frame frame;           // of the whole message; frame.length is its size
  uint64_t message = 0;  // its number on this link and in this direction, from 1
  uint32_t offset = 0;   // of this segment in the message
  uint32_t size = 0;
  uint64_t taken = 0;  // all messages of the other direction before this one have been taken
  Check check = {};
};
static_assert(sizeof(SegmentHeader) == 64);

// The last header on a bulk lane whose connection becomes the control lane's, the `generation`th (from 1) since the
// first: only the control stream follows. With kRetired nothing does, and the connection ends.
SegmentHeader promotion(uint32_t generation);
bool is_promotion(const SegmentHeader& header);
inline constexpr uint32_t kRetired = UINT32_MAX;

// Null if the header may begin a segment, else what is wrong with it.
const char* objection_to_segment(const SegmentHeader& header);

}  // namespace slipstream
