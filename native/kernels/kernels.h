// Arithmetic on buffers: reductions, scaling and casts. Types are erased above this folder: callers hold addresses, a
// DType and an element count. Every function accepts unaligned addresses and a count of zero.
//
// Results do not depend on the instruction set chosen at run time, but for the sign and the payload of a NaN in f32,
// f64, c64 and c128. f16, bf16 and f8 have one NaN: positive, quiet, without a payload.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace slipstream {

// dst[i] = a[i] (op) b[i]. `dst` may be `a` or `b` themselves, but may not overlap them otherwise.
using ReduceFn = void (*)(void* dst, const void* a, const void* b, size_t count);

// The function for (dtype, op); nullptr where it has no meaning: min, max on complex numbers, bitwise on non-integers,
// anything but sum and avg on q8.
//   - Integers wrap around. f16, bf16 and f8 compute in f32 and round to nearest even.
//   - min and max give NaN if either operand is NaN.
//   - bool: sum and max are "or", prod and min are "and"; any non-zero byte is true, results are 0 or 1.
//   - q8 adds in f32 and quantises the block anew.
//   - avg is sum: `divide` does the rest, once, at the end.
ReduceFn reduce_fn(DType dtype, Op op);

// dst = srcs[0] (op) srcs[1] (op) ... from left to right in one pass through memory; the same bits as `n - 1` calls of
// reduce_fn. `dst` may be any of `srcs`; n >= 1. Throws Failure(invalid) where reduce_fn gives nullptr.
void reduce_many(DType dtype, Op op, void* dst, const void* const* srcs, int n, size_t count);

// dst[i] = src[i] * factor; `dst` may be `src`. f64, c128: in f64. f32, c64: the exact product rounded once. f16, bf16,
// f8: in f32. Integers: truncated toward zero, saturated at the limits of the type, 0 for NaN. bool: false if factor is
// 0, else unchanged. q8: each scale is multiplied, the exact product rounded once.
void scale(DType dtype, void* dst, const void* src, size_t count, double factor);

// buf[i] /= divisor (>= 1), as avg needs it: integers truncate toward zero, bool stays as it is, q8 has its scales
// divided.
void divide(DType dtype, void* buf, size_t count, uint64_t divisor);

// Converts between the floating dtypes f64 f32 f16 bf16 f8e4m3 f8e5m2, rounding once to nearest even; NaN stays NaN.
// What f8e4m3 cannot hold, infinity included, becomes NaN: it has no infinity. Equal dtypes of any kind are copied;
// anything else throws Failure(invalid). `dst` may be `src` if the target is not wider than the source.
//
// Between f32 and q8, `count` counts blocks: 64 floats each. A block's scale is its largest magnitude / 127, its int8
// are the numbers * (127 / largest magnitude), rounded to nearest even. A block with NaN or infinity in it gets the
// scale NaN, and so comes back as NaN throughout; one whose scale would be below 2^-125 comes back as zeros.
void cast(DType from, DType to, void* dst, const void* src, size_t count);

// f32 numbers on their way between hosts; `wire` is not exact. What has been decoded is encoded to the bytes that it
// came from, so whoever passes it on changes nothing. No finite number becomes an infinity. In f16 and bf16 infinities
// and NaN stay, number by number; a block of f8 or int8 with one of them is NaN throughout.
//   f16   the largest finite magnitude of a block gets the highest exponent of f16: the scale is 2^-102 at least
//   f8    the scale is the largest magnitude / 448, rounded up to 16 bits; zeros if it were below 2^-116
//   int8  the same with 127 and 2^-125
void encode(WireType wire, void* dst, const void* src, size_t count);
void decode(WireType wire, void* dst, const void* src, size_t count);
// dst[i] = own[i] + decoded[i]; `dst` may be `own`.
void decode_add(WireType wire, void* dst, const void* own, const void* src, size_t count);
// What another rank gets, in place: decodes what it encodes.
void round_to(WireType wire, void* data, size_t count);

// The instruction set in use: "avx512", "avx2", "neon" or "baseline". SLIPSTREAM_CPU=baseline|avx2|avx512 asks for a
// lower one than the processor has; any other value throws Failure(invalid).
const char* cpu_level();

// memcpy, for chunks that fit the cache.
void copy(void* dst, const void* src, size_t bytes);

// memcpy that does not read `dst` into the cache before it writes there, nor keeps it there. For what is not read soon.
// Other threads see what was written as they see that of copy().
void copy_past_cache(void* dst, const void* src, size_t bytes);

// Bytes of the last-level cache of this machine that its ranks may count on: 128 MiB at most; 32 MiB if it does not
// say.
size_t last_level_cache();

}  // namespace slipstream
