#include "base/crc32c.h"

#include <array>
#include <cstring>

#include "base/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace slipstream {
namespace crc {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected: the highest bit is the coefficient of x^0

constexpr uint32_t times_x(uint32_t state) { return (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0); }

uint64_t load(const std::byte* data) {
  uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// ---- portable: eight bytes at a time, by eight tables

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = times_x(state);
    tables[0][byte] = state;
  }
  for (size_t i = 1; i < tables.size(); ++i)
    for (uint32_t byte = 0; byte < 256; ++byte)
      tables[i][byte] = (tables[i - 1][byte] >> 8) ^ tables[0][tables[i - 1][byte] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

uint32_t portable(uint32_t state, const std::byte* data, size_t size) {
  for (; size >= 8; data += 8, size -= 8) {
    const uint64_t word = load(data) ^ state;
    state = 0;
    for (size_t i = 0; i < 8; ++i) state ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; ++data, --size) state = (state >> 8) ^ kTables[0][(state ^ std::to_integer<uint32_t>(*data)) & 0xff];
  return state;
}

// ---- by the processor's instruction, which takes 8 bytes, three cycles long, and can begin one in each cycle: so
// three stretches of the data are computed side by side, and then put together

// What `Bytes` zero bytes make of a state. That is linear in its bits, so a table for each of its bytes is enough.
template <size_t Bytes>
class Zeros {
 public:
  Zeros() {
    for (uint32_t bit = 0; bit < 32; ++bit) {
      uint32_t state = 1u << bit;
      for (size_t i = 0; i < Bytes; ++i) state = (state >> 8) ^ kTables[0][state & 0xff];
      for (uint32_t byte = 0; byte < 256; ++byte)
        if (((byte << (bit / 8 * 8)) >> bit & 1u) != 0) tables_[bit / 8][byte] ^= state;
    }
  }
  uint32_t after(uint32_t state) const {
    return tables_[0][state & 0xff] ^ tables_[1][(state >> 8) & 0xff] ^ tables_[2][(state >> 16) & 0xff] ^
           tables_[3][state >> 24];
  }

 private:
  uint32_t tables_[4][256] = {};
};

#if defined(__x86_64__)
#define SLIPSTREAM_CRC_TARGET __attribute__((target("sse4.2,crc32")))
SLIPSTREAM_CRC_TARGET inline uint32_t step8(uint32_t state, const std::byte* data) {
  return static_cast<uint32_t>(_mm_crc32_u64(state, load(data)));
}
SLIPSTREAM_CRC_TARGET inline uint32_t step1(uint32_t state, std::byte data) {
  return _mm_crc32_u8(state, std::to_integer<uint8_t>(data));
}
#elif defined(__aarch64__)
#if defined(__clang__)
#define SLIPSTREAM_CRC_TARGET __attribute__((target("crc")))
#else
#define SLIPSTREAM_CRC_TARGET __attribute__((target("+crc")))
#endif
SLIPSTREAM_CRC_TARGET inline uint32_t step8(uint32_t state, const std::byte* data) {
  return __crc32cd(state, load(data));
}
SLIPSTREAM_CRC_TARGET inline uint32_t step1(uint32_t state, std::byte data) {
  return __crc32cb(state, std::to_integer<uint8_t>(data));
}
#endif

#if defined(SLIPSTREAM_CRC_TARGET)
// As many blocks of three stretches as there are.
template <size_t Stretch>
SLIPSTREAM_CRC_TARGET uint32_t three_ways(uint32_t state, const std::byte*& data, size_t& size) {
  static const Zeros<Stretch> zeros;
  for (; size >= 3 * Stretch; data += 3 * Stretch, size -= 3 * Stretch) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t i = 0; i < Stretch; i += 8) {
      state = step8(state, data + i);
      second = step8(second, data + Stretch + i);
      third = step8(third, data + 2 * Stretch + i);
    }
    state = zeros.after(zeros.after(state) ^ second) ^ third;
  }
  return state;
}

SLIPSTREAM_CRC_TARGET uint32_t instruction(uint32_t state, const std::byte* data, size_t size) {
  state = three_ways<4096>(state, data, size);
  state = three_ways<256>(state, data, size);
  for (; size >= 8; data += 8, size -= 8) state = step8(state, data);
  for (; size > 0; ++data, --size) state = step1(state, *data);
  return state;
}
#endif

// ---- by products of polynomials, 256 bytes at a time: V. Gopal et al., "Fast CRC Computation for Generic Polynomials
// Using PCLMULQDQ Instruction", Intel 2009, with vectors of four times the width

#if defined(__x86_64__)
constexpr uint64_t power_of_x(size_t n) {
  uint32_t state = 0x80000000;
  for (size_t i = 0; i < n; ++i) state = times_x(state);
  return uint64_t{state} << 1;
}

// Moves 128 bits forward by so many bits: its two halves are multiplied by these.
template <size_t Bits>
struct Forward {
  static constexpr uint64_t kLow = power_of_x(Bits + 32);
  static constexpr uint64_t kHigh = power_of_x(Bits - 32);
};

#define SLIPSTREAM_FOLD_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2,crc32")))

template <size_t Bits>
SLIPSTREAM_FOLD_TARGET inline __m512i fold(__m512i x, __m512i next) {
  const __m512i by =
      _mm512_set_epi64(Forward<Bits>::kHigh, Forward<Bits>::kLow, Forward<Bits>::kHigh, Forward<Bits>::kLow,
                       Forward<Bits>::kHigh, Forward<Bits>::kLow, Forward<Bits>::kHigh, Forward<Bits>::kLow);
  const __m512i low = _mm512_clmulepi64_epi128(x, by, 0x00);
  const __m512i high = _mm512_clmulepi64_epi128(x, by, 0x11);
  return _mm512_ternarylogic_epi64(low, high, next, 0x96);
}

template <size_t Bits>
SLIPSTREAM_FOLD_TARGET inline __m128i fold(__m128i x, __m128i next) {
  const __m128i by = _mm_set_epi64x(Forward<Bits>::kHigh, Forward<Bits>::kLow);
  const __m128i low = _mm_clmulepi64_si128(x, by, 0x00);
  const __m128i high = _mm_clmulepi64_si128(x, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

SLIPSTREAM_FOLD_TARGET uint32_t folding(uint32_t state, const std::byte* data, size_t size) {
  if (size < 512) return instruction(state, data, size);
  __m512i x[4];
  for (size_t i = 0; i < 4; ++i) x[i] = _mm512_loadu_si512(data + 64 * i);
  x[0] = _mm512_xor_si512(x[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(state))));
  data += 256, size -= 256;
  for (; size >= 256; data += 256, size -= 256)
    for (size_t i = 0; i < 4; ++i) x[i] = fold<2048>(x[i], _mm512_loadu_si512(data + 64 * i));
  __m512i one = fold<512>(fold<512>(fold<512>(x[0], x[1]), x[2]), x[3]);
  for (; size >= 64; data += 64, size -= 64) one = fold<512>(one, _mm512_loadu_si512(data));
  alignas(64) std::byte rest[64];
  _mm512_store_si512(rest, one);
  const auto part = [&rest](size_t i) { return reinterpret_cast<__m128i*>(rest + 16 * i); };
  const __m128i last = fold<128>(fold<128>(fold<128>(*part(0), *part(1)), *part(2)), *part(3));
  _mm_store_si128(part(0), last);
  // What is left stands for all bytes so far: its checksum is theirs.
  return instruction(step8(step8(0, rest), rest + 8), data, size);
}
#endif

std::vector<Method> find_methods() {
  std::vector<Method> found;
#if defined(__x86_64__)
  const CpuFeatures cpu = cpu_features();
  if (cpu.sse42 && cpu.pclmul && cpu.avx512f && cpu.avx512vl && cpu.vpclmulqdq)
    found.push_back({"vpclmulqdq", folding});
  if (cpu.sse42) found.push_back({"sse4.2", instruction});
#elif defined(__aarch64__)
  if ((::getauxval(AT_HWCAP) & HWCAP_CRC32) != 0) found.push_back({"armv8", instruction});
#endif
  found.push_back({"portable", portable});
  return found;
}

}  // namespace

const std::vector<Method>& methods() {
  static const std::vector<Method> found = find_methods();
  return found;
}

}  // namespace crc

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
  static const auto update = crc::methods().front().update;
  return ~update(~before, bytes.data(), bytes.size());
}

}  // namespace slipstream
