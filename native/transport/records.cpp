#include "transport/records.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace slipstream {
namespace {

// HKDF-Expand (RFC 5869) of at most 32 bytes.
Digest expand(ByteView key, std::string_view label, ByteView context = {}) {
  static constexpr std::byte kOne{1};
  return hmac_sha256(key, {bytes_of(label), context, ByteView(&kOne, 1)});
}

// HKDF-Extract of the secret with both nonces, of which each side has made one: keys never come twice. Then one chain a
// direction, bound to all that the handshake has agreed on.
Digest chain_of(ByteView secret, ByteView hello, ByteView client_nonce, ByteView server_nonce, bool from_client) {
  std::vector<std::byte> salt(client_nonce.begin(), client_nonce.end());
  salt.insert(salt.end(), server_nonce.begin(), server_nonce.end());
  Digest key = hmac_sha256(salt, {secret});
  const Digest chain = expand(key, from_client ? "slipstream records client" : "slipstream records server", hello);
  wipe(key);
  return chain;
}

}  // namespace

RecordKeys::RecordKeys(const Digest& chain, bool seals, uint64_t records_of_key)
    : gcm_(seals), chain_(chain), records_of_key_(records_of_key) {}

RecordKeys::~RecordKeys() { wipe(chain_); }

void RecordKeys::renew() {
  Digest key = expand(chain_, "slipstream records key");
  gcm_.set_key(std::span(key).first<Gcm::kKey>());
  std::copy_n(key.begin() + Gcm::kKey, base_.size(), base_.begin());
  chain_ = expand(chain_, "slipstream records next");
  wipe(key);
}

Gcm& RecordKeys::next(ByteView header) {
  if (number_ % records_of_key_ == 0) renew();
  auto nonce = base_;
  for (size_t i = 0; i < sizeof(number_); ++i) nonce[i] ^= static_cast<std::byte>(number_ >> (8 * i));
  ++number_;
  gcm_.begin(nonce, header);
  return gcm_;
}

void Sealer::went(size_t bytes) {
  sent_ += bytes;
  if (sent_ == end_) sent_ = end_ = 0;
}

size_t Sealer::seal(std::span<const iovec> parts) {
  size_t left = 0;
  for (const iovec& part : parts) left += part.iov_len;
  left = std::min(left, kRecords * kRecordMost);
  if (!sealed_) sealed_ = std::make_unique_for_overwrite<std::byte[]>(kRecords * (kRecordMost + kRecordExtra));
  const size_t all = left;
  size_t begun = 0;  // of the first part
  while (left > 0) {
    const size_t size = std::min(left, kRecordMost);
    std::byte* to = sealed_.get() + end_;
    const auto length = static_cast<uint32_t>(size);
    std::memcpy(to, &length, sizeof(length));
    Gcm& gcm = keys_.next({to, kRecordHeader});
    to += kRecordHeader;
    for (size_t rest = size; rest > 0;) {
      const iovec& part = parts.front();
      const size_t n = std::min(rest, part.iov_len - begun);
      if (n > 0) gcm.add({static_cast<const std::byte*>(part.iov_base) + begun, n}, to);
      to += n;
      begun += n;
      rest -= n;
      if (begun == part.iov_len) {
        parts = parts.subspan(1);
        begun = 0;
      }
    }
    gcm.seal(to);
    end_ += size + kRecordExtra;
    left -= size;
  }
  return all;
}

std::span<std::byte> Opener::space() {
  if (!buffer_) buffer_ = std::make_unique_for_overwrite<std::byte[]>(kBuffer);
  if (text_ < text_end_) return {};
  if (begin_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  return {buffer_.get() + end_, kBuffer - end_};
}

size_t Opener::text_size() const {
  uint32_t length = 0;
  std::memcpy(&length, buffer_.get() + begin_, sizeof(length));
  return length;
}

bool Opener::possible() const { return text_size() > 0 && text_size() <= kRecordMost; }

bool Opener::whole() const {
  const size_t here = end_ - begin_;
  if (here < kRecordHeader) return false;
  return !possible() || here >= text_size() + kRecordExtra;  // one that cannot be is as good
}

bool Opener::ready() const { return damaged_ || text_ < text_end_ || whole(); }

void Opener::open() {
  const size_t text = begin_ + kRecordHeader;
  if (!possible()) {
    damaged_ = true;
    return;
  }
  const iovec place{buffer_.get() + text, text_size()};
  const size_t size = text_size();
  if (open_into({&place, 1}, 0)) {
    text_ = text;
    text_end_ = text + size;
  }
}

bool Opener::open_into(std::span<const iovec> parts, size_t at) {
  const size_t size = text_size();
  const std::byte* const record = buffer_.get() + begin_;
  const std::byte* from = record + kRecordHeader;
  const std::byte* const end = from + size;
  Gcm& gcm = keys_.next({record, kRecordHeader});
  while (from < end) {
    const iovec& part = parts.front();
    const size_t n = std::min(static_cast<size_t>(end - from), part.iov_len - at);
    if (n > 0) gcm.add({from, n}, static_cast<std::byte*>(part.iov_base) + at);
    from += n;
    at = 0;
    parts = parts.subspan(1);
  }
  damaged_ = !gcm.open(end);
  begin_ += size + kRecordExtra;
  return !damaged_;
}

namespace {

// From `at` in the first one on there is room for so much text, and none of it goes nowhere.
bool have_room(std::span<const iovec> parts, size_t at, size_t size) {
  for (const iovec& part : parts) {
    if (part.iov_base == nullptr) return false;
    const size_t n = part.iov_len - std::exchange(at, 0);
    if (n >= size) return true;
    size -= n;
  }
  return false;
}

}  // namespace

size_t Opener::take(std::span<const iovec> parts, size_t filled, bool alone) {
  size_t taken = 0;
  size_t at = filled;  // in the first part
  for (;;) {
    while (!parts.empty() && at >= parts.front().iov_len) {
      at -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (parts.empty()) return taken;
    if (text_ == text_end_) {
      if (damaged_ || !whole()) return taken;
      const size_t size = text_size();
      if (!alone || !possible() || !have_room(parts, at, size)) {
        open();
      } else if (open_into(parts, at)) {
        at += size;
        taken += size;
      }
      continue;
    }
    const iovec& part = parts.front();
    const size_t n = std::min(part.iov_len - at, text_end_ - text_);
    if (part.iov_base != nullptr) std::memcpy(static_cast<std::byte*>(part.iov_base) + at, buffer_.get() + text_, n);
    text_ += n;
    at += n;
    taken += n;
  }
}

Records::Records(ByteView secret, ByteView hello, ByteView client_nonce, ByteView server_nonce, bool client,
                 uint64_t records_of_key)
    : out(chain_of(secret, hello, client_nonce, server_nonce, client), records_of_key),
      in(chain_of(secret, hello, client_nonce, server_nonce, !client), records_of_key) {}

}  // namespace slipstream
