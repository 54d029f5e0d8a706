#include "transport/tcp/segment_reader.h"

#include <algorithm>
#include <cstring>

namespace slipstream {

void SegmentReader::begin() {
  header_at_ = 0;
  headers_ = 0;
  in_payload_ = false;
}

void SegmentReader::prepare(IoCall& call, bool alone) {
  call.out = false;
  call.timed = false;
  call.flags = 0;
  call.count = 0;
  if (dropped())
    call.parts[call.count++] = {nullptr, std::min(rest(), IoCall::kMostDropped)};
  else if (in_payload_)
    call.parts[call.count++] = {into_ + at_, rest()};
  if (!dropped()) call.parts[call.count++] = {header_.data() + header_at_, header_.size() - header_at_};
  call.alone = alone;
  call.first = nullptr;
  call.checks = in_payload_ && !dropped() && segment_.check.payload != 0;
  call.crc = crc_;
}

size_t SegmentReader::came(size_t bytes, uint32_t crc) {
  const size_t payload = std::min(bytes, rest());
  crc_ = crc;
  at_ += payload;
  header_at_ += bytes - payload;
  return payload;
}

uint64_t SegmentReader::take_header() {
  std::memcpy(&segment_, header_.data(), sizeof(SegmentHeader));
  header_at_ = 0;
  return headers_++;
}

void SegmentReader::begin_payload() {
  in_payload_ = true;
  into_ = nullptr;
  at_ = 0;
  crc_ = 0;
}

void SegmentReader::forget(uint64_t message) {
  if (in_payload_ && segment_.message == message) into_ = nullptr;
}

void SegmentReader::forget(const SegmentHeader& segment) {
  if (in_payload_ && segment_.message == segment.message && segment_.offset < segment.offset + segment.size &&
      segment.offset < segment_.offset + segment_.size)
    into_ = nullptr;
}

bool SegmentReader::overlaps(const SegmentReader& other) const {
  return in_payload_ && other.in_payload_ && into_ != nullptr && other.into_ != nullptr &&
         into_ < other.into_ + other.segment_.size && other.into_ < into_ + segment_.size;
}

}  // namespace slipstream
