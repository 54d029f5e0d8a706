// The kernels of one instruction set: include this in a file compiled for it, after defining
//   SLIPSTREAM_TABLE   the name of the Table to define
//   SLIPSTREAM_VECTORS if the set has hand-written conversions, the structs VectorF16 and VectorBF16
// Everything is in an unnamed namespace, and nothing may call a function of the standard library that is not a
// built-in: the linker would be free to give the whole program the copy that was compiled for the newest processor.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "kernels/table.h"

// dst may be a or b, and then iterations are still independent; without this, vectorised loops would be guarded by
// overlap tests that fail for exactly that case.
#if defined(__clang__)
#define SLIPSTREAM_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define SLIPSTREAM_LOOP _Pragma("GCC ivdep")
#endif

namespace slipstream::kernels {
namespace {

// clang-format off: each needs those before it
#include "kernels/formats.inl"
#include "kernels/reduce.inl"
#include "kernels/block_int8.inl"
#include "kernels/convert.inl"
#include "kernels/wire.inl"
#include "kernels/past_cache.inl"
#include "kernels/table.inl"
// clang-format on

}  // namespace

extern constexpr Table SLIPSTREAM_TABLE = make_table();

}  // namespace slipstream::kernels
