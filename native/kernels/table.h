// All functions that one instruction set provides. The same source (level.inl) is compiled once per set; each
// compilation has its own unnamed namespace, so that no code built for a newer processor is shared with the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "kernels/kernels.h"

namespace slipstream::kernels {

inline constexpr int kFloats = 6;  // the first DTypes: f64 f32 f16 bf16 f8e4m3 f8e5m2

struct Table {
  ReduceFn reduce[kDTypes][kOps];
  // To f32. From f64 this rounds to odd, so that a second rounding, by `pack`, gives what one rounding would have.
  void (*unpack[kFloats])(float* dst, const void* src, size_t count);
  void (*pack[kFloats])(void* dst, const float* src, size_t count);
  void (*round_f64)(float* dst, const void* src, size_t count);  // to f32, nearest even
  void (*scale[kDTypes])(void* dst, const void* src, size_t count, double factor);
  void (*divide[kDTypes])(void* buf, size_t count, uint64_t divisor);
  void (*unpack_blocks)(void* dst, const void* src, size_t count);  // q8 to f32
  void (*pack_blocks)(void* dst, const void* src, size_t count);
  // Of the WireTypes from bf16 on, by their codes less one.
  void (*encode[kWireTypes - 1])(void* dst, const void* src, size_t count);
  void (*decode[kWireTypes - 1])(void* dst, const void* src, size_t count);
  void (*decode_add[kWireTypes - 1])(void* dst, const void* own, const void* src, size_t count);
  void (*copy_past_cache)(void* dst, const void* src, size_t bytes);
};

enum class Level : uint8_t { baseline = 0, avx2 = 1, avx512 = 2 };
inline constexpr int kLevels = 3;

extern const Table kBaselineTable;
#if defined(__x86_64__)
extern const Table kAvx2Table;
extern const Table kAvx512Table;
#endif

// nullptr where this processor, or this build, has no such level.
const Table* table_of(Level level);

// The level that SLIPSTREAM_CPU=`wanted` selects (nullptr: unset). Throws Failure(invalid) on an unknown word.
Level choose_level(const char* wanted);

}  // namespace slipstream::kernels
