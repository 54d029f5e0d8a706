// What an encrypted connection carries: records, each sealed with AES-128-GCM, in both directions with keys of their
// own (docs/architecture.md, "Encryption"). Below frames and segments, which know nothing of it. Pure: no sockets.
//
// A record is the length of its text (u32), the text, encrypted, and a tag over both. Its nonce is its number, which is
// not sent: what was changed, left out, repeated or moved does not open. Nothing is given to anybody before its tag was
// right.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "transport/crypto.h"

namespace slipstream {

inline constexpr size_t kRecordMost = 64 << 10;  // bytes of text
inline constexpr size_t kRecordHeader = sizeof(uint32_t);
inline constexpr size_t kRecordExtra = kRecordHeader + Gcm::kTag;
// Records that one key seals: 64 GiB, which keeps far below what AES-GCM is good for.
inline constexpr uint64_t kRecordsOfKey = 1 << 20;

// The keys of one direction, one after another: each chain gives a key and the next chain, and is forgotten.
class RecordKeys {
 public:
  RecordKeys(const Digest& chain, bool seals, uint64_t records_of_key);
  ~RecordKeys();
  RecordKeys(const RecordKeys&) = delete;
  RecordKeys& operator=(const RecordKeys&) = delete;

  // Begins the next record.
  Gcm& next(ByteView header);

 private:
  void renew();

  Gcm gcm_;
  Digest chain_;
  std::array<std::byte, Gcm::kNonce> base_{};  // of the nonces
  uint64_t number_ = 0;                        // of the next record
  const uint64_t records_of_key_;
};

// Seals what is to be sent.
class Sealer {
 public:
  explicit Sealer(const Digest& chain, uint64_t records_of_key = kRecordsOfKey) : keys_(chain, true, records_of_key) {}

  // Sealed and not sent yet.
  std::span<const std::byte> waiting() const { return {sealed_.get() + sent_, end_ - sent_}; }
  void went(size_t bytes);
  // Seals the parts, or their beginning: how many bytes of text. Only if nothing is waiting.
  size_t seal(std::span<const iovec> parts);

 private:
  static constexpr size_t kRecords = 4;  // at once

  RecordKeys keys_;
  std::unique_ptr<std::byte[]> sealed_;
  size_t sent_ = 0;
  size_t end_ = 0;
};

// Opens what has come.
class Opener {
 public:
  explicit Opener(const Digest& chain, uint64_t records_of_key = kRecordsOfKey) : keys_(chain, false, records_of_key) {}

  // Where the next bytes from the socket go; never empty once take() has given less than it was asked for.
  std::span<std::byte> space();
  void filled(size_t bytes) { end_ += bytes; }
  // Fills the parts with text, but for their first `filled` bytes: how much it was. Text goes nowhere where a part is
  // null. `alone`: nobody else writes there, so that what follows the text may be overwritten by text that is not
  // intact, once; it does not count. Else nothing is written but what is.
  size_t take(std::span<const iovec> parts, size_t filled, bool alone);
  // take() would give text, or the data is damaged.
  bool ready() const;
  // The data that came was damaged. Nothing more can be taken.
  bool damaged() const { return damaged_; }

 private:
  static constexpr size_t kBuffer = 4 * (kRecordMost + kRecordExtra);

  size_t text_size() const;  // of the record at begin_, which may be of any size
  bool possible() const;     // it has a size that a record may have
  bool whole() const;        // that record is here
  void open();
  bool open_into(std::span<const iovec> parts, size_t at);  // as much as the record has, from `at` on

  RecordKeys keys_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t text_ = 0;  // text_ to text_end_: of the record before begin_, not taken yet
  size_t text_end_ = 0;
  size_t begin_ = 0;  // begin_ to end_: as it came
  size_t end_ = 0;
  bool damaged_ = false;
};

// Both directions of a connection. The two may be used by two threads at once.
struct Records {
  // Of a connection whose handshake began with `hello` and the server's `nonce`; `client`: this is the side that
  // dialled.
  Records(ByteView secret, ByteView hello, ByteView client_nonce, ByteView server_nonce, bool client,
          uint64_t records_of_key = kRecordsOfKey);

  Sealer out;
  Opener in;
};

}  // namespace slipstream
