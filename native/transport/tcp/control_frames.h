// What may come over a lane, checked before anything is believed. Pure: no sockets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/frame.h"
#include "transport/tcp/checksums.h"

namespace slipstream {

// Longest payload of a control frame that is not data: a description or an error.
inline constexpr uint32_t kMaxText = 8 << 10;

// What begins each frame of a control lane on the wire: 40 bytes, then the payload.
struct ControlHeader {
  Frame frame;
  Check check = {};
};
static_assert(sizeof(ControlHeader) == 40);

// The place of `resume`, which is beside the stream.
inline constexpr uint64_t kResumePlace = ~uint64_t{0};

// Null if the frame may come over a control lane, else what is wrong with it.
const char* objection_to_control(const Frame& frame);

// Cuts the bytes of a control lane into frames. Memory is fixed: one buffer that holds the longest frame.
class FrameReader {
 public:
  enum class Next { frame, more, damaged, bad };

  FrameReader() : buffer_(kBuffer) {}
  // Where the next bytes go; never empty after next() has said `more`.
  std::span<std::byte> space();
  void filled(size_t bytes) { end_ += bytes; }
  // The frame that begins at `place` of the stream. `payload` stays valid until space() is called.
  Next next(uint64_t place, Frame& frame, const std::byte*& payload);
  const char* why() const { return why_; }  // after `bad`
  bool between_frames() const { return begin_ == end_; }
  void clear() { begin_ = end_ = 0; }

 private:
  static constexpr size_t kBuffer = 64 << 10;

  std::vector<std::byte> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
  const char* why_ = "";
};

}  // namespace slipstream
