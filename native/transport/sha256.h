// SHA-256 (FIPS 180-4), HMAC (RFC 2104), nonces and a comparison that leaks no timing. A few hundred bytes per
// connection pass through here, so it is written to be read, not to be fast.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace slipstream {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  Digest finish();  // the object may not be used again

 private:
  void compress(const std::byte* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  size_t filled_ = 0;
  uint64_t total_ = 0;  // bytes
};

Digest sha256(std::span<const std::byte> bytes);

class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key);
  void update(std::span<const std::byte> bytes) { inner_.update(bytes); }
  void update(std::string_view text) { inner_.update(text); }
  Digest finish();

 private:
  Sha256 inner_;
  Sha256 outer_;
};

// Takes the same time wherever the first difference is.
bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Fills from the kernel's generator; throws Failure(internal) if there is none.
void random_bytes(std::span<std::byte> out);

}  // namespace slipstream
