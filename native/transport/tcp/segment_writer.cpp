#include "transport/tcp/segment_writer.h"

#include <sys/socket.h>

#include <algorithm>

namespace slipstream {
namespace {

constexpr std::array<std::byte, 64 << 10> kPadding{};  // stands for bytes that nobody wants any more

void add(IoCall& call, const void* data, size_t size) { call.parts[call.count++] = {const_cast<void*>(data), size}; }

}  // namespace

void SegmentWriter::push(const Outbox::Out& segment) {
  if (empty()) clear();
  segments_[count_++] = segment;
}

void SegmentWriter::prepare(IoCall& call, bool lend) {
  call.flags = 0;
  call.count = 0;
  call.checks = false;
  call.first = sealed_ < count_ ? &SegmentWriter::seal_segments : nullptr;
  call.context = this;
  size_t at = at_;
  for (size_t i = first_; i < count_; ++i, at = 0) {
    const Outbox::Out& segment = segments_[i];
    if (at < sizeof(SegmentHeader)) {
      add(call, reinterpret_cast<const std::byte*>(&segment.header) + at, sizeof(SegmentHeader) - at);
      at = sizeof(SegmentHeader);
    }
    if (lend && segment.data != nullptr) {
      call.flags = call.count > 0 ? MSG_MORE : MSG_ZEROCOPY;
      if (call.count > 0) return;
    }
    const size_t sent = at - sizeof(SegmentHeader);
    const size_t rest = segment.header.size - sent;
    if (segment.data != nullptr)
      add(call, segment.data + sent, rest);
    else
      add(call, kPadding.data(), std::min(rest, kPadding.size()));
    if (lend || (segment.data == nullptr && rest > kPadding.size())) return;
  }
}

void SegmentWriter::seal_new() {
  for (; sealed_ < count_; ++sealed_) {
    Outbox::Out& segment = segments_[sealed_];
    const bool checked = checks_ && segment.data != nullptr;
    segment.header.check.payload = checked ? payload_check({segment.data, segment.header.size}) : 0;
    seal(segment.header, place_++);
  }
}

void SegmentWriter::went(size_t bytes) {
  at_ += bytes;
  while (first_ < count_) {
    const size_t size = sizeof(SegmentHeader) + segments_[first_].header.size;
    if (at_ < size) return;
    at_ -= size;
    ++first_;
  }
}

void SegmentWriter::forget(uint64_t message) {
  for (size_t i = first_; i < count_; ++i)
    if (segments_[i].header.message == message) segments_[i].data = nullptr;
}

}  // namespace slipstream
