// The kernels of one instruction set: include this in a file compiled for it, after defining
//   SLIPSTREAM_TABLE   the name of the Table to define
//   SLIPSTREAM_F16C    if the set converts f16 in hardware (level_avx2.cpp, level_avx512.cpp); and then vec, kLanes,
//                      load_f16, store_f16
// Everything is in an unnamed namespace, and nothing may call a function of the standard library that is not a
// built-in: the linker would be free to give the whole program the copy that was compiled for the newest processor.

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

#include "kernels/convert.inl"
#include "kernels/formats.inl"
#include "kernels/reduce.inl"

}  // namespace

extern constexpr Table SLIPSTREAM_TABLE = make_table();

}  // namespace slipstream::kernels
