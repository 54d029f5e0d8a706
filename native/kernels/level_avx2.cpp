// x86-64 with AVX2 and F16C. CMake gives the flags; elsewhere this file is empty.
#if defined(__AVX2__) && defined(__F16C__)
#include <immintrin.h>

#include <cstddef>

namespace slipstream::kernels {
namespace {

struct VectorF16 {
  using Vec = __m256;
  static constexpr size_t kLanes = 8;
  static Vec load(const char* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))); }
  static void store(char* p, Vec x) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    const __m256 plain = _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), _mm256_cvtps_ph(plain, _MM_FROUND_TO_NEAREST_INT));
  }
};

struct VectorBF16 {
  using Vec = __m256;
  static constexpr size_t kLanes = 8;
  static Vec load(const char* p) {
    const __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
  }
  static void store(char* p, Vec x) {
    const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, half), 16);
    const __m256i quiet = _mm256_set1_epi32(0x7fc0);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i out = _mm256_blendv_epi8(rounded, quiet, nan);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(out, out), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i_u*>(p), _mm256_castsi256_si128(packed));
  }
};

}  // namespace
}  // namespace slipstream::kernels

#define SLIPSTREAM_VECTORS
#define SLIPSTREAM_TABLE kAvx2Table
#include "kernels/level.inl"
#endif
