// The formats in which f32 numbers travel between hosts, on every instruction set that this processor has.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/table.h"
#include "tests/check.h"

using namespace slipstream;
using kernels::Level;
using kernels::Table;

namespace {

using Bytes = std::vector<unsigned char>;
using Floats = std::vector<float>;

constexpr WireType kWires[] = {WireType::bf16, WireType::f16, WireType::f8, WireType::int8};
constexpr size_t kCounts[] = {0, 1, 7, 255, 256, 257, 512, 1023};
constexpr float kMost = std::numeric_limits<float>::max();

int index(WireType wire) { return static_cast<int>(wire) - 1; }

std::vector<const Table*> tables() {
  std::vector<const Table*> all;
  for (int i = 0; i < kernels::kLevels; ++i)
    if (const Table* t = kernels::table_of(static_cast<Level>(i))) all.push_back(t);
  return all;
}

float of_bits(uint32_t bits) {
  float found;
  std::memcpy(&found, &bits, sizeof found);
  return found;
}

// Numbers that are hard in one way or another; the last kinds have infinities and NaN, too.
constexpr int kKinds = 12, kFiniteKinds = 10;

Floats numbers(int kind, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed * 100 + static_cast<uint64_t>(kind));
  std::normal_distribution<float> normal;
  Floats found(count);
  for (float& x : found) {
    const float sign = random() % 2 != 0 ? 1.0f : -1.0f;
    switch (kind) {
      case 0:
        x = normal(random);
        break;
      case 1:
        x = sign * std::ldexp(1 + static_cast<float>(random() % 4096) / 4096, static_cast<int>(random() % 250) - 125);
        break;
      case 2:
        x = sign * of_bits(static_cast<uint32_t>(random() % 0x00800000));
        break;  // subnormal
      case 3:
        x = sign * of_bits(0x7f7fffff - static_cast<uint32_t>(random() % 70000));
        break;
      case 4:
        x = random() % 3 == 0 ? sign * kMost : normal(random);
        break;
      case 5:
        x = sign * 0.0f;
        break;
      case 6:
        x = sign * std::ldexp(normal(random), -118);
        break;  // about where scales would be too small
      case 7:
        x = sign * std::ldexp(static_cast<float>(random() % 1000), -126);
        break;
      case 8:
        x = sign * static_cast<float>(random() % 256) / 2;
        break;  // ties
      case 9:
        x = sign * std::ldexp(4095.0f, static_cast<int>(random() % 2));
        break;  // rounds to a power of two
      case 10:
        x = of_bits(static_cast<uint32_t>(random()));
        break;
      default:
        x = random() % 40 == 0 ? (random() % 2 != 0 ? sign * HUGE_VALF : std::nanf("")) : normal(random);
    }
  }
  return found;
}

// With one byte before and after that must stay as they are; the first is at an odd address.
Bytes encoded(const Table& table, WireType wire, const Floats& in) {
  const size_t bytes = wire_bytes(wire, in.size());
  Bytes shifted(in.size() * sizeof(float) + 1), room(bytes + 2, 0xa5);
  if (!in.empty()) std::memcpy(shifted.data() + 1, in.data(), in.size() * sizeof(float));
  table.encode[index(wire)](room.data() + 1, shifted.data() + 1, in.size());
  CHECK_EQ(int{room.front()}, 0xa5);
  CHECK_EQ(int{room.back()}, 0xa5);
  return {room.begin() + 1, room.end() - 1};
}

Floats decoded(const Table& table, WireType wire, const Bytes& bytes, size_t count) {
  Bytes room(count * sizeof(float) + 2, 0xa5);
  Bytes shifted(bytes.size() + 1);
  if (!bytes.empty()) std::memcpy(shifted.data() + 1, bytes.data(), bytes.size());
  table.decode[index(wire)](room.data() + 1, shifted.data() + 1, count);
  CHECK_EQ(int{room.front()}, 0xa5);
  CHECK_EQ(int{room.back()}, 0xa5);
  Floats found(count);
  if (count != 0) std::memcpy(found.data(), room.data() + 1, count * sizeof(float));
  return found;
}

bool alike(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

void note(bool good, const char* what, WireType wire, int kind, size_t count) {
  if (!good)
    check::failed(__FILE__, __LINE__,
                  std::string(what) + ": " + name_of(wire) + ", kind " + std::to_string(kind) + ", " +
                      std::to_string(count) + " numbers");
}

template <class F>
void each_case(F f) {
  for (const WireType wire : kWires)
    for (int kind = 0; kind < kKinds; ++kind)
      for (const size_t count : kCounts)
        for (uint64_t seed = 0; seed < 5; ++seed) f(wire, kind, count, numbers(kind, count, seed));
}

// The largest error that a finite number x of a block whose largest magnitude is `largest` may have.
double bound(WireType wire, double x, double largest) {
  const double cut = 1 + 0x1p-14;
  switch (wire) {
    case WireType::bf16:
      return std::max(std::fabs(x) * 0x1p-8, 0x1p-134);
    case WireType::f16:
      return std::max({std::fabs(x) * 0x1p-11, largest * 0x1p-39, 0x1p-126});
    case WireType::f8:
      return std::max({std::fabs(x) * 0x1p-4, largest / 448 * 0x1p-10, 448 * 0x1p-116}) * cut;
    default:
      return std::max(largest / 254, 127 * 0x1p-125) * cut;
  }
}

}  // namespace

TEST(what_has_been_decoded_encodes_to_the_same_bytes) {
  for (const Table* table : tables())
    each_case([table](WireType wire, int kind, size_t count, const Floats& in) {
      const Bytes bytes = encoded(*table, wire, in);
      const Floats back = decoded(*table, wire, bytes, count);
      note(encoded(*table, wire, back) == bytes, "not the same bytes", wire, kind, count);
      note(alike(decoded(*table, wire, encoded(*table, wire, back), count), back), "not the same bits", wire, kind,
           count);
    });
}

TEST(all_instruction_sets_write_the_same_bytes_and_read_the_same_bits) {
  each_case([](WireType wire, int kind, size_t count, const Floats& in) {
    const Bytes bytes = encoded(*tables().front(), wire, in);
    const Floats back = decoded(*tables().front(), wire, bytes, count);
    for (const Table* table : tables()) {
      note(encoded(*table, wire, in) == bytes, "not the bytes of the lowest level", wire, kind, count);
      note(alike(decoded(*table, wire, bytes, count), back), "not the bits of the lowest level", wire, kind, count);
    }
  });
}

TEST(finite_numbers_stay_finite_and_within_the_bound_of_the_format) {
  for (const Table* table : tables())
    each_case([table](WireType wire, int kind, size_t count, const Floats& in) {
      if (kind >= kFiniteKinds) return;
      const Floats back = decoded(*table, wire, encoded(*table, wire, in), count);
      for (size_t begin = 0; begin < count; begin += kWireBlock) {
        const size_t end = std::min<size_t>(count, begin + kWireBlock);
        double largest = 0;
        for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(static_cast<double>(in[i])));
        for (size_t i = begin; i < end; ++i) {
          const double x = static_cast<double>(in[i]), error = std::fabs(static_cast<double>(back[i]) - x);
          if (!std::isfinite(back[i]) || error > bound(wire, x, largest))
            return note(false, "too far", wire, kind, count);
        }
      }
    });
}

TEST(infinities_and_nan_stay_where_the_format_can_say_so) {
  for (const Table* table : tables())
    for (const WireType wire : kWires) {
      Floats in(3 * kWireBlock, 1.0f);
      in[5] = HUGE_VALF;
      in[6] = -HUGE_VALF;
      in[300] = std::nanf("");
      const Floats back = decoded(*table, wire, encoded(*table, wire, in), in.size());
      const bool by_number = wire == WireType::bf16 || wire == WireType::f16;
      for (size_t i = 0; i < in.size(); ++i) {
        if (i >= 2 * kWireBlock)
          CHECK(std::fabs(back[i] - 1.0f) < 0x1p-14f);
        else if (!by_number || i == 300)
          CHECK(std::isnan(back[i]));
        else
          CHECK_EQ(back[i], in[i]);
      }
    }
}

TEST(small_gradients_do_not_underflow_in_f16) {
  for (const Table* table : tables()) {
    Floats in(kWireBlock);
    for (size_t i = 0; i < in.size(); ++i) in[i] = std::ldexp(1.0f + static_cast<float>(i) / 256, -80);
    const Floats back = decoded(*table, WireType::f16, encoded(*table, WireType::f16, in), in.size());
    CHECK(back == in);
  }
}

TEST(what_is_added_is_what_is_decoded) {
  for (const Table* table : tables())
    each_case([table](WireType wire, int kind, size_t count, const Floats& in) {
      if (kind >= kFiniteKinds) return;
      const Bytes bytes = encoded(*table, wire, in);
      const Floats back = decoded(*table, wire, bytes, count);
      Floats own = numbers(0, count, 77), apart(count), want(count);
      for (size_t i = 0; i < count; ++i) want[i] = own[i] + back[i];
      table->decode_add[index(wire)](apart.data(), own.data(), bytes.data(), count);
      note(alike(apart, want), "another sum", wire, kind, count);
      table->decode_add[index(wire)](own.data(), own.data(), bytes.data(), count);
      note(alike(own, want), "another sum in place", wire, kind, count);
    });
}

TEST(rounding_gives_what_others_decode) {
  for (const WireType wire : kWires)
    for (const size_t count : {size_t{0}, size_t{1}, size_t{257}, size_t{100'003}}) {
      Floats in = numbers(0, count, 3), want(count);
      Bytes bytes(wire_bytes(wire, count));
      encode(wire, bytes.data(), in.data(), count);
      decode(wire, want.data(), bytes.data(), count);
      round_to(wire, in.data(), count);
      note(alike(in, want), "rounds otherwise", wire, 0, count);
    }
}

TEST(any_bytes_can_be_decoded) {
  std::mt19937_64 random(9);
  for (const Table* table : tables())
    for (const WireType wire : kWires)
      for (int round = 0; round < 20; ++round) {
        Bytes bytes(wire_bytes(wire, 1000));
        for (unsigned char& b : bytes) b = static_cast<unsigned char>(random());
        CHECK_EQ(decoded(*table, wire, bytes, 1000).size(), size_t{1000});
      }
}

TEST(parts_of_whole_blocks_have_as_many_bytes_as_the_whole) {
  for (const WireType wire : kWires)
    for (const uint64_t count : {0, 1, 255, 256, 257, 100'003}) {
      uint64_t parts = 0;
      for (uint64_t at = 0; at < count; at += 3 * kWireBlock)
        parts += wire_bytes(wire, std::min(count - at, 3 * kWireBlock));
      CHECK_EQ(parts, wire_bytes(wire, count));
    }
  CHECK_EQ(wire_bytes(WireType::int8, 257), uint64_t{257 + 8});
  CHECK_EQ(wire_bytes(WireType::f8, 256), uint64_t{260});
  CHECK_EQ(wire_bytes(WireType::f16, 256), uint64_t{516});
  CHECK_EQ(wire_bytes(WireType::bf16, 3), uint64_t{6});
  CHECK_EQ(wire_bytes(WireType::exact, 3), uint64_t{12});
}
