// The element types and reductions every layer speaks of. The numeric values cross the wire and the
// Python boundary (slipstream.base.dtypes mirrors them): append, never renumber.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

enum class DType : uint8_t {
  f64 = 0,
  f32 = 1,
  f16 = 2,
  bf16 = 3,
  f8e4m3 = 4,
  f8e5m2 = 5,
  i8 = 6,
  i16 = 7,
  i32 = 8,
  i64 = 9,
  u8 = 10,
  u16 = 11,
  u32 = 12,
  u64 = 13,
  boolean = 14,
  c64 = 15,
  c128 = 16,
  q8 = 17,  // block-int8: an element is an f32 scale and 64 int8, which stand for scale * int8
};
inline constexpr int kDTypes = 18;

enum class Op : uint8_t { sum = 0, prod = 1, min = 2, max = 3, avg = 4, band = 5, bor = 6, bxor = 7 };
inline constexpr int kOps = 8;

constexpr size_t size_of(DType t) {
  constexpr uint8_t sizes[kDTypes] = {8, 4, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 8, 16, 68};
  return sizes[static_cast<int>(t)];
}

// Numbers in an element.
constexpr size_t numbers_of(DType t) { return t == DType::q8 ? 64 : 1; }

// As what the numbers of f32 data travel between hosts. The codes cross the wire and the Python boundary, too.
//   bf16: plain. The others: blocks of kWireBlock numbers, the last one as short as it is, each after its f32 scale.
//   A number stands for scale * number: f16, whose scale is a power of two; f8 (e4m3); int8.
enum class WireType : uint8_t { exact = 0, bf16 = 1, f16 = 2, f8 = 3, int8 = 4 };
inline constexpr int kWireTypes = 5;
inline constexpr uint64_t kWireBlock = 256;

// Bytes of so many numbers on the wire. Parts that begin at whole blocks have as many together as the whole.
constexpr uint64_t wire_bytes(WireType wire, uint64_t count) {
  constexpr uint8_t widths[kWireTypes] = {4, 2, 2, 1, 1};
  const bool scaled = wire == WireType::f16 || wire == WireType::f8 || wire == WireType::int8;
  return count * widths[static_cast<int>(wire)] + (scaled ? (count + kWireBlock - 1) / kWireBlock * sizeof(float) : 0);
}

const char* name_of(DType t);
const char* name_of(Op op);
const char* name_of(WireType wire);

}  // namespace slipstream
