#include "transport/tcp/control_frames.h"

#include <cstddef>
#include <cstring>

#include "transport/tcp/lane_control.h"
#include "transport/tcp/segments.h"

namespace slipstream {
namespace {

bool known(FrameType type) {
  const auto code = static_cast<uint8_t>(type);
  return code >= 1 && code <= kLastFrameType;
}

}  // namespace

const char* objection_to_control(const Frame& frame) {
  if (!known(frame.type)) return "a frame of an unknown type";
  if (frame.reserved != 0) return "a frame with reserved bits set";
  if (frame.type == FrameType::data) return frame.length <= kEagerBytes ? nullptr : "an oversized eager frame";
  if ((frame.type >= FrameType::taken && frame.type <= FrameType::cut) || frame.type == FrameType::lanes)
    return frame.length == 0 ? nullptr : "a link's own frame with a payload";
  return frame.length <= kMaxText ? nullptr : "an oversized control frame";
}

SegmentHeader promotion(uint32_t generation) {
  SegmentHeader header;
  header.frame = LaneControl{.type = FrameType::resume, .detail = generation};
  return header;
}

bool is_promotion(const SegmentHeader& header) {
  const uint32_t generation = LaneControl::of(header.frame).detail;
  const SegmentHeader wanted = promotion(generation);
  return generation != 0 && std::memcmp(&header, &wanted, offsetof(SegmentHeader, check)) == 0;
}

const char* objection_to_segment(const SegmentHeader& header) {
  if (header.frame.type != FrameType::data) return "a frame that does not belong on a bulk lane";
  if (header.frame.reserved != 0) return "a frame with reserved bits set";
  if (header.frame.length <= kEagerBytes) return "an undersized bulk frame";
  if (header.frame.length > kMaxPayload) return "an oversized bulk frame";
  if (header.message == 0 || header.size == 0) return "a segment of nothing";
  const bool inside = header.offset < header.frame.length && header.size <= header.frame.length - header.offset;
  return inside ? nullptr : "a segment that is not inside its message";
}

std::span<std::byte> FrameReader::space() {
  if (begin_ == end_) {
    begin_ = end_ = 0;
  } else if (begin_ > 0 && buffer_.size() - end_ < buffer_.size() / 2) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return std::span(buffer_).subspan(end_);
}

FrameReader::Next FrameReader::next(uint64_t place, Frame& frame, const std::byte*& payload) {
  const size_t have = end_ - begin_;
  ControlHeader header;
  if (have < sizeof(header)) return Next::more;
  std::memcpy(&header, buffer_.data() + begin_, sizeof(header));
  if (!intact(header, place)) return Next::damaged;
  frame = header.frame;
  if (why_ = objection_to_control(frame); why_ != nullptr) return Next::bad;
  if (have < sizeof(header) + frame.length) return Next::more;
  payload = buffer_.data() + begin_ + sizeof(header);
  if (header.check.payload != 0 && payload_check({payload, frame.length}) != header.check.payload) return Next::damaged;
  begin_ += sizeof(header) + frame.length;
  return Next::frame;
}

}  // namespace slipstream
