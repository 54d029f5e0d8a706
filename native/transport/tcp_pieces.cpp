#include "transport/tcp_pieces.h"

#include <sys/socket.h>

#include <algorithm>

namespace slipstream {
namespace {

constexpr std::array<std::byte, 64 << 10> kPadding{};  // stands for bytes that nobody wants any more

void add(IoCall& call, const void* data, size_t size) { call.parts[call.count++] = {const_cast<void*>(data), size}; }

}  // namespace

void Pieces::push(const Outbox::Out& piece) {
  if (empty()) clear();
  pieces_[count_++] = piece;
}

void Pieces::prepare(IoCall& call, bool lend) {
  call.flags = 0;
  call.count = 0;
  call.checks = false;
  call.first = sealed_ < count_ ? &Pieces::seal_pieces : nullptr;
  call.context = this;
  size_t at = at_;
  for (size_t i = first_; i < count_; ++i, at = 0) {
    const Outbox::Out& piece = pieces_[i];
    if (at < sizeof(SegmentHeader)) {
      add(call, reinterpret_cast<const std::byte*>(&piece.header) + at, sizeof(SegmentHeader) - at);
      at = sizeof(SegmentHeader);
    }
    if (lend && piece.data != nullptr) {
      call.flags = call.count > 0 ? MSG_MORE : MSG_ZEROCOPY;
      if (call.count > 0) return;
    }
    const size_t sent = at - sizeof(SegmentHeader);
    const size_t rest = piece.header.size - sent;
    if (piece.data != nullptr)
      add(call, piece.data + sent, rest);
    else
      add(call, kPadding.data(), std::min(rest, kPadding.size()));
    if (lend || (piece.data == nullptr && rest > kPadding.size())) return;
  }
}

void Pieces::seal_new() {
  for (; sealed_ < count_; ++sealed_) {
    Outbox::Out& piece = pieces_[sealed_];
    const bool checked = checks_ && piece.data != nullptr;
    piece.header.check.payload = checked ? payload_check({piece.data, piece.header.size}) : 0;
    seal(piece.header, place_++);
  }
}

void Pieces::went(size_t bytes) {
  at_ += bytes;
  while (first_ < count_) {
    const size_t size = sizeof(SegmentHeader) + pieces_[first_].header.size;
    if (at_ < size) return;
    at_ -= size;
    ++first_;
  }
}

void Pieces::forget(uint64_t message) {
  for (size_t i = first_; i < count_; ++i)
    if (pieces_[i].header.message == message) pieces_[i].data = nullptr;
}

}  // namespace slipstream
