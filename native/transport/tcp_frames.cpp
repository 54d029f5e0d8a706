#include "transport/tcp_frames.h"

#include <cstring>

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
  return frame.length <= kMaxText ? nullptr : "an oversized control frame";
}

const char* objection_to_bulk(const Frame& frame) {
  if (frame.type != FrameType::data) return "a frame that does not belong on a bulk lane";
  if (frame.reserved != 0) return "a frame with reserved bits set";
  if (frame.length <= kEagerBytes) return "an undersized bulk frame";
  return frame.length <= kMaxPayload ? nullptr : "an oversized bulk frame";
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

FrameReader::Next FrameReader::next(Frame& frame, const std::byte*& payload) {
  const size_t have = end_ - begin_;
  if (have < sizeof(Frame)) return Next::more;
  std::memcpy(&frame, buffer_.data() + begin_, sizeof(Frame));
  if (why_ = objection_to_control(frame); why_ != nullptr) return Next::bad;
  if (have < sizeof(Frame) + frame.length) return Next::more;
  payload = buffer_.data() + begin_ + sizeof(Frame);
  begin_ += sizeof(Frame) + frame.length;
  return Next::frame;
}

}  // namespace slipstream
