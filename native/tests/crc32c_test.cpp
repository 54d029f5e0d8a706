// CRC-32C by every method of this machine, against known answers and against each other.
#include "base/crc32c.h"

#include <random>
#include <string_view>

#include "tests/check.h"

namespace {

using namespace slipstream;

using Bytes = std::vector<std::byte>;

uint32_t by(const crc::Method& method, std::span<const std::byte> bytes, uint32_t before = 0) {
  return ~method.update(~before, bytes.data(), bytes.size());
}

// Bit by bit, from the definition.
uint32_t slowly(std::span<const std::byte> bytes) {
  uint32_t state = ~0u;
  for (const std::byte byte : bytes) {
    state ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~state;
}

Bytes random_bytes_of(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

// RFC 3720, appendix B.4, and the check value of the catalogue of parametrised CRC algorithms.
TEST(known_answers) {
  Bytes zeros(32), ones(32, std::byte{0xff}), up(32), down(32);
  for (size_t i = 0; i < 32; ++i) up[i] = static_cast<std::byte>(i), down[i] = static_cast<std::byte>(31 - i);
  const std::string_view digits = "123456789";
  for (const crc::Method& method : crc::methods()) {
    CHECK_EQ(by(method, zeros), 0x8a9136aau);
    CHECK_EQ(by(method, ones), 0x62a8ab43u);
    CHECK_EQ(by(method, up), 0x46dd794eu);
    CHECK_EQ(by(method, down), 0x113fdb5cu);
    CHECK_EQ(by(method, std::as_bytes(std::span(digits))), 0xe3069283u);
    CHECK_EQ(by(method, {}), 0u);
  }
  CHECK_EQ(crc32c(std::as_bytes(std::span(digits))), 0xe3069283u);
}

TEST(every_method_gives_the_same_at_every_size_and_alignment) {
  const Bytes bytes = random_bytes_of(40'000, 1);
  std::vector<size_t> sizes;
  for (size_t size = 0; size < 1100; ++size) sizes.push_back(size);
  for (const size_t size : {4095, 12287, 12288, 12289, 12300, 13055, 25000, 36000, 39'990}) sizes.push_back(size);
  for (const size_t size : sizes) {
    const auto part = std::span(bytes).subspan(size % 9, size);
    const uint32_t wanted = slowly(part);
    for (const crc::Method& method : crc::methods()) CHECK_EQ(by(method, part), wanted);
  }
}

TEST(a_checksum_goes_on_where_it_stopped) {
  const Bytes bytes = random_bytes_of(9000, 2);
  const uint32_t wanted = slowly(bytes);
  for (const crc::Method& method : crc::methods())
    for (const size_t first : {0, 1, 7, 600, 4097, 8999, 9000})
      CHECK_EQ(by(method, std::span(bytes).subspan(first), by(method, std::span(bytes).first(first))), wanted);
}

TEST(every_single_bit_counts) {
  Bytes bytes = random_bytes_of(1500, 3);
  const uint32_t before = crc32c(bytes);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const std::byte mask{static_cast<uint8_t>(1u << bit % 8)};
    bytes[bit / 8] ^= mask;
    CHECK(crc32c(bytes) != before);
    bytes[bit / 8] ^= mask;
  }
}
