// x86-64 with AVX-512 F, BW, VL and DQ. CMake gives the flags; elsewhere this file is empty.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

#include <cstddef>

namespace slipstream::kernels {
namespace {

using vec = __m512;
constexpr size_t kLanes = 16;

// The zero-masked forms are the same instructions; GCC 12 warns of its own header in the plain ones (GCC bug 105593).
inline vec load_f16(const char* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
}
inline void store_f16(char* p, vec x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), _mm512_maskz_cvtps_ph(0xffff, x, _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace
}  // namespace slipstream::kernels

#define SLIPSTREAM_F16C
#define SLIPSTREAM_TABLE kAvx512Table
#include "kernels/level.inl"
#endif
