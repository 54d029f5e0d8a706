// The segments that arrive on a bulk lane, one after another: what a call reads next, and where it goes. A header and
// then its payload; the next header comes with the rest of a payload, so that a segment needs one system call. Pure,
// but for the call that it describes. Private to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/tcp/io_threads.h"
#include "transport/tcp/segments.h"

namespace slipstream {

class SegmentReader {
 public:
  // Of a new connection.
  void begin();

  // What is read next; with a payload, its checksum too if it has one. `alone`: nobody else writes where it goes.
  void prepare(IoCall& call, bool alone);
  // So much came, no more than prepare() asked for, with this checksum of the payload so far. Returns how much of it
  // is payload.
  size_t came(size_t bytes, uint32_t crc);

  bool has_header() const { return header_at_ == header_.size(); }
  // Takes the header that has come: segment() is that one now. Returns how many came before it on the connection.
  uint64_t take_header();
  const SegmentHeader& segment() const { return segment_; }

  // The payload of segment() is next, and goes nowhere until put().
  void begin_payload();
  void put(std::byte* into) { into_ = into; }
  void drop() { into_ = nullptr; }  // what is still to come of it goes nowhere
  std::byte* into() const { return into_; }
  bool in_payload() const { return in_payload_; }
  bool dropped() const { return in_payload_ && into_ == nullptr; }
  size_t rest() const { return in_payload_ ? segment_.size - at_ : 0; }  // bytes of payload that have not come
  bool has_payload() const { return in_payload_ && at_ == segment_.size; }
  void end_payload() { in_payload_ = false; }
  uint32_t crc() const { return crc_; }  // of the payload that has come

  // What still comes of this message, or of these bytes of it, goes nowhere.
  void forget(uint64_t message);
  void forget(const SegmentHeader& segment);
  // Both write the same bytes of memory.
  bool overlaps(const SegmentReader& other) const;

 private:
  std::array<std::byte, sizeof(SegmentHeader)> header_{};
  size_t header_at_ = 0;
  uint64_t headers_ = 0;  // that came on this connection
  SegmentHeader segment_;
  bool in_payload_ = false;
  std::byte* into_ = nullptr;  // null: it goes nowhere
  size_t at_ = 0;              // in the payload
  uint32_t crc_ = 0;
};

}  // namespace slipstream
