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

const char* name_of(DType t);
const char* name_of(Op op);

}  // namespace slipstream
