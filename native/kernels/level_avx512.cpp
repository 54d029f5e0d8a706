// x86-64 with AVX-512 F, BW, VL and DQ. CMake gives the flags; elsewhere this file is empty.
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

#include <cstddef>

namespace slipstream::kernels {
namespace {

// The zero-masked forms are the same instructions; GCC 12 warns of its own header in the plain ones (GCC bug 105593).
constexpr __mmask16 kAll = 0xffff;

struct VectorF16 {
  using Vec = __m512;
  static constexpr size_t kLanes = 16;
  static Vec load(const char* p) {
    return _mm512_maskz_cvtph_ps(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
  }
  static void store(char* p, Vec x) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    const __m512 plain = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), nan);
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), _mm512_maskz_cvtps_ph(kAll, plain, _MM_FROUND_TO_NEAREST_INT));
  }
};

// Not AVX512_BF16's conversion: that one flushes subnormals.
struct VectorBF16 {
  using Vec = __m512;
  static constexpr size_t kLanes = 16;
  static Vec load(const char* p) {
    const __m256i u = _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAll, _mm512_maskz_cvtepu16_epi32(kAll, u), 16));
  }
  static void store(char* p, Vec x) {
    const __m512i u = _mm512_castps_si512(x), high = _mm512_maskz_srli_epi32(kAll, u, 16);
    const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), odd);
    const __m512i rounded = _mm512_maskz_srli_epi32(kAll, _mm512_add_epi32(u, half), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i out = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), _mm512_maskz_cvtepi32_epi16(kAll, out));
  }
};

}  // namespace
}  // namespace slipstream::kernels

#define SLIPSTREAM_VECTORS
#define SLIPSTREAM_TABLE kAvx512Table
#include "kernels/level.inl"
#endif
