#include "transport/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <vector>

#include "base/error.h"

namespace slipstream {
namespace {

void check(bool done, const char* what) {
  if (!done) throw Failure(Code::internal, std::string("libcrypto cannot do ") + what);
}

// A context of our own: no configuration file of this machine changes what it does. It lives as long as the process,
// for threads may need it to the end; so libcrypto is not to clean up before.
OSSL_LIB_CTX* library() {
  static OSSL_LIB_CTX* const context = [] {
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
    OSSL_LIB_CTX* const made = OSSL_LIB_CTX_new();
    check(made != nullptr, "anything");
    return made;
  }();
  return context;
}

const EVP_CIPHER* aes_128_gcm() {
  static EVP_CIPHER* const cipher = EVP_CIPHER_fetch(library(), "AES-128-GCM", nullptr);
  check(cipher != nullptr, "AES-128-GCM");
  return cipher;
}

const unsigned char* raw(const std::byte* bytes) { return reinterpret_cast<const unsigned char*>(bytes); }
unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

}  // namespace

std::string crypto_version() { return OpenSSL_version(OPENSSL_FULL_VERSION_STRING); }

Digest sha256(ByteView bytes) {
  Digest digest{};
  check(EVP_Q_digest(library(), "SHA256", nullptr, bytes.data(), bytes.size(), raw(digest.data()), nullptr) == 1,
        "SHA-256");
  return digest;
}

Digest hmac_sha256(ByteView key, std::initializer_list<ByteView> parts) {
  static constexpr std::byte kNoKey{};
  std::vector<std::byte> text;
  for (const ByteView part : parts) text.insert(text.end(), part.begin(), part.end());
  Digest digest{};
  size_t size = 0;
  const std::byte* const secret = key.empty() ? &kNoKey : key.data();
  check(EVP_Q_mac(library(), "HMAC", nullptr, "SHA256", nullptr, secret, key.size(), raw(text.data()), text.size(),
                  raw(digest.data()), digest.size(), &size) != nullptr,
        "HMAC-SHA256");
  wipe(text);
  return digest;
}

bool equal_constant_time(ByteView a, ByteView b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

void wipe(std::span<std::byte> bytes) { OPENSSL_cleanse(bytes.data(), bytes.size()); }

void random_bytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = ::getrandom(out.data(), out.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Failure(Code::internal, errno_text("getrandom"));
    out = out.subspan(static_cast<size_t>(n));
  }
}

void Gcm::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

Gcm::Gcm(bool seals) : seals_(seals), context_(EVP_CIPHER_CTX_new()) {
  check(context_ && EVP_CipherInit_ex2(context_.get(), aes_128_gcm(), nullptr, nullptr, seals, nullptr) == 1,
        "AES-128-GCM");
}

void Gcm::set_key(std::span<const std::byte, kKey> key) {
  check(EVP_CipherInit_ex2(context_.get(), nullptr, raw(key.data()), nullptr, seals_, nullptr) == 1, "a new key");
}

void Gcm::begin(std::span<const std::byte, kNonce> nonce, ByteView plain) {
  int size = 0;
  check(EVP_CipherInit_ex2(context_.get(), nullptr, nullptr, raw(nonce.data()), seals_, nullptr) == 1 &&
            EVP_CipherUpdate(context_.get(), nullptr, &size, raw(plain.data()), static_cast<int>(plain.size())) == 1,
        "AES-128-GCM");
}

void Gcm::add(ByteView in, std::byte* out) {
  int size = 0;
  check(EVP_CipherUpdate(context_.get(), raw(out), &size, raw(in.data()), static_cast<int>(in.size())) == 1 &&
            static_cast<size_t>(size) == in.size(),
        "AES-128-GCM");
}

void Gcm::seal(std::byte* tag) {
  int size = 0;
  check(EVP_CipherFinal_ex(context_.get(), nullptr, &size) == 1 &&
            EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_GET_TAG, kTag, tag) == 1,
        "AES-128-GCM");
}

bool Gcm::open(const std::byte* tag) {
  int size = 0;
  std::array<std::byte, kTag> expected{};
  std::copy_n(tag, kTag, expected.begin());
  check(EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_AEAD_SET_TAG, kTag, expected.data()) == 1, "AES-128-GCM");
  return EVP_CipherFinal_ex(context_.get(), nullptr, &size) == 1;
}

}  // namespace slipstream
