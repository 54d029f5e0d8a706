// What an x86-64 processor can do and the system lets it. Asked of the processor itself: __builtin_cpu_supports needs
// the compiler's run-time library, and that of zig, which makes our wheels, says no to everything.
#pragma once

#if defined(__x86_64__)

#include <cpuid.h>

#include <cstdint>

namespace slipstream {

struct CpuFeatures {
  bool sse42 = false;
  bool pclmul = false;
  bool f16c = false;
  bool avx2 = false;
  bool avx512f = false;
  bool avx512bw = false;
  bool avx512vl = false;
  bool avx512dq = false;
  bool vpclmulqdq = false;
};

inline CpuFeatures cpu_features() {
  CpuFeatures found;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return found;
  found.sse42 = (c & bit_SSE4_2) != 0;
  found.pclmul = (c & bit_PCLMUL) != 0;
  if ((c & bit_OSXSAVE) == 0) return found;
  // Which registers the system saves: without that, the wide ones must not be touched.
  uint32_t saved = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  const bool ymm = (saved & 0x06) == 0x06;
  const bool zmm = (saved & 0xe6) == 0xe6;
  found.f16c = ymm && (c & bit_F16C) != 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return found;
  found.avx2 = ymm && (b & bit_AVX2) != 0;
  found.avx512f = zmm && (b & bit_AVX512F) != 0;
  found.avx512bw = zmm && (b & bit_AVX512BW) != 0;
  found.avx512vl = zmm && (b & bit_AVX512VL) != 0;
  found.avx512dq = zmm && (b & bit_AVX512DQ) != 0;
  found.vpclmulqdq = ymm && (c & (1u << 10)) != 0;  // clang and gcc give the bit different names
  return found;
}

}  // namespace slipstream

#endif
