// x86-64 with AVX2 and F16C. CMake gives the flags; elsewhere this file is empty.
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

#include <cstddef>

namespace slipstream::kernels {
namespace {

using vec = __m256;
constexpr size_t kLanes = 8;

inline vec load_f16(const char* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))); }
inline void store_f16(char* p, vec x) {
  _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace
}  // namespace slipstream::kernels

#define SLIPSTREAM_F16C
#define SLIPSTREAM_TABLE kAvx2Table
#include "kernels/level.inl"
#endif
