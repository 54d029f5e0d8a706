#include "transport/sha256.h"

#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace slipstream {
namespace {

constexpr std::array<uint32_t, 64> kRound{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const std::byte* p) {
  return std::to_integer<uint32_t>(p[0]) << 24 | std::to_integer<uint32_t>(p[1]) << 16 |
         std::to_integer<uint32_t>(p[2]) << 8 | std::to_integer<uint32_t>(p[3]);
}

void store_big_endian(uint32_t value, std::byte* p) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<std::byte>(value >> (24 - 8 * i));
}

}  // namespace

void Sha256::compress(const std::byte* block) {
  std::array<uint32_t, 64> w{};
  for (size_t i = 0; i < 16; ++i) w[i] = load_big_endian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1;
    d = c, c = b, b = a, a = t1 + t2;
  }
  const std::array<uint32_t, 8> add{a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += add[i];
}

void Sha256::update(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), block_.size() - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), n);
    filled_ += n;
    bytes = bytes.subspan(n);
    if (filled_ == block_.size()) {
      compress(block_.data());
      filled_ = 0;
    }
  }
}

Digest Sha256::finish() {
  const uint64_t bits = total_ * 8;
  block_[filled_++] = std::byte{0x80};
  if (filled_ > 56) {
    std::fill(block_.begin() + static_cast<ptrdiff_t>(filled_), block_.end(), std::byte{0});
    compress(block_.data());
    filled_ = 0;
  }
  std::fill(block_.begin() + static_cast<ptrdiff_t>(filled_), block_.end(), std::byte{0});
  store_big_endian(static_cast<uint32_t>(bits >> 32), block_.data() + 56);
  store_big_endian(static_cast<uint32_t>(bits), block_.data() + 60);
  compress(block_.data());
  Digest digest{};
  for (size_t i = 0; i < 8; ++i) store_big_endian(state_[i], digest.data() + 4 * i);
  return digest;
}

Digest sha256(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

HmacSha256::HmacSha256(std::span<const std::byte> key) {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    const Digest digest = sha256(key);
    std::copy(digest.begin(), digest.end(), padded.begin());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  std::array<std::byte, 64> pad{};
  for (size_t i = 0; i < pad.size(); ++i) pad[i] = padded[i] ^ std::byte{0x36};
  inner_.update(pad);
  for (size_t i = 0; i < pad.size(); ++i) pad[i] = padded[i] ^ std::byte{0x5c};
  outer_.update(pad);
}

Digest HmacSha256::finish() {
  outer_.update(inner_.finish());
  return outer_.finish();
}

bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  // volatile: the compiler may not stop at the first difference.
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i)
    difference = static_cast<uint8_t>(difference | std::to_integer<uint8_t>(a[i] ^ b[i]));
  return difference == 0;
}

void random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::getrandom(out.data(), out.size(), 0);
    if (n < 0) {
      if (errno == EINTR) continue;
      throw Failure(Code::internal, errno_text("getrandom"));
    }
    out = out.subspan(static_cast<size_t>(n));
  }
}

}  // namespace slipstream
