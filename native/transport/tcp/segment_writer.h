// The segments that a bulk lane has taken and not sent yet: several small ones go out in one system call. Pure, but for
// the call that it describes. Private to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/tcp/io_threads.h"
#include "transport/tcp/outbox.h"

namespace slipstream {

class SegmentWriter {
 public:
  static constexpr size_t kMost = IoCall::kMostParts / 2;  // a header and a payload each

  bool empty() const { return first_ == count_; }
  size_t count() const { return count_ - first_; }
  void clear() { first_ = count_ = at_ = sealed_ = 0; }
  // Of a new connection; `checks`: payloads get a checksum.
  void begin(bool checks) {
    clear();
    place_ = 0;
    checks_ = checks;
  }
  // At most kMost before all are sent.
  void push(const Outbox::Out& segment);
  // Payload that is left of the first one.
  size_t rest() const { return segments_[first_].header.size - sent(); }
  // Some of its payload has gone out.
  bool begun() const { return sent() > 0; }

  // The send of all that is left, or of the beginning. `lend`: the first one's payload alone, without a copy; but its
  // header, which is copied, has a call of its own before. What the call points to stays until went(). The checksums of
  // what goes out for the first time are made by who performs the call.
  void prepare(IoCall& call, bool lend);
  // So much went out, headers included; no more than prepare() asked for.
  void went(size_t bytes);
  // The peer has the message: what is still owed of it is padding, and its memory is not ours any more.
  void forget(uint64_t message);

 private:
  static void seal_segments(void* segments) { static_cast<SegmentWriter*>(segments)->seal_new(); }
  void seal_new();
  size_t sent() const { return at_ > sizeof(SegmentHeader) ? at_ - sizeof(SegmentHeader) : 0; }

  std::array<Outbox::Out, kMost> segments_;  // first_ to count_; data is null once nobody wants it
  size_t first_ = 0;
  size_t count_ = 0;
  size_t sealed_ = 0;   // those before have their checksums
  uint64_t place_ = 0;  // of the next one on its connection
  bool checks_ = false;
  size_t at_ = 0;  // in the first one, of header and payload together
};

}  // namespace slipstream
