// What the transport needs of libcrypto: SHA-256, HMAC, AES-128-GCM and a comparison that leaks no timing. And nonces,
// which come from the kernel.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_cipher_ctx_st;

namespace slipstream {

using ByteView = std::span<const std::byte>;
using Digest = std::array<std::byte, 32>;

inline ByteView bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

// Of libcrypto: "3.0.17".
std::string crypto_version();

Digest sha256(ByteView bytes);
// Of the parts, one after another.
Digest hmac_sha256(ByteView key, std::initializer_list<ByteView> parts);

// Takes the same time wherever the first difference is.
bool equal_constant_time(ByteView a, ByteView b);
// Overwrites what was secret.
void wipe(std::span<std::byte> bytes);
// Fills from the kernel's generator; throws Failure(internal) if there is none.
void random_bytes(std::span<std::byte> out);

// AES-128-GCM with one key at a time, either to seal or to open. Not thread-safe. Throws Failure(internal) if libcrypto
// does not do what it should.
class Gcm {
 public:
  static constexpr size_t kKey = 16;
  static constexpr size_t kNonce = 12;
  static constexpr size_t kTag = 16;

  explicit Gcm(bool seals);
  void set_key(std::span<const std::byte, kKey> key);
  // One message: its nonce, never twice with a key, and what is authenticated and not encrypted; then the rest in
  // parts, each of which comes out as long as it goes in, perhaps in its place; then the tag.
  void begin(std::span<const std::byte, kNonce> nonce, ByteView plain);
  void add(ByteView in, std::byte* out);
  void seal(std::byte* tag);
  bool open(const std::byte* tag);  // false: what came out is worth nothing

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  const bool seals_;
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
};

}  // namespace slipstream
