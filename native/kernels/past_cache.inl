// Copies whose stores do not go through the caches. Part of level.inl.
//
// A store that fills a whole cache line leaves the core at once. Of narrower ones the processor gathers a line in one
// of few buffers. While loads from another core's cache are under way, those are given up half filled, and such a copy
// took up to twice as long as one with stores of 64 bytes (2 cores of a Xeon).

#if defined(__AVX512F__)
struct Streamed {
  using Vec = __m512i;
  static Vec load(const char* p) { return _mm512_loadu_si512(p); }
  static void store(char* p, Vec x) { _mm512_stream_si512(reinterpret_cast<Vec*>(p), x); }
};
#elif defined(__AVX2__)
struct Streamed {
  using Vec = __m256i;
  static Vec load(const char* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)); }
  static void store(char* p, Vec x) { _mm256_stream_si256(reinterpret_cast<Vec*>(p), x); }
};
#elif defined(__SSE2__)
struct Streamed {
  using Vec = __m128i;
  static Vec load(const char* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)); }
  static void store(char* p, Vec x) { _mm_stream_si128(reinterpret_cast<Vec*>(p), x); }
};
#endif

void copy_past_cache(void* dst, const void* src, size_t bytes) {
#if defined(__SSE2__)
  constexpr size_t kLine = 64;
  constexpr size_t kVectors = kLine / sizeof(Streamed::Vec);
  auto* to = static_cast<char*>(dst);
  const auto* from = static_cast<const char*>(src);
  const size_t before = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
  const size_t head = bytes < before ? bytes : before;
  __builtin_memcpy(to, from, head);
  size_t done = head;
  for (; done + kLine <= bytes; done += kLine) {
    Streamed::Vec line[kVectors];
    for (size_t i = 0; i < kVectors; ++i) line[i] = Streamed::load(from + done + i * sizeof(Streamed::Vec));
    for (size_t i = 0; i < kVectors; ++i) Streamed::store(to + done + i * sizeof(Streamed::Vec), line[i]);
  }
  _mm_sfence();  // such stores are in no order with others
  __builtin_memcpy(to + done, from + done, bytes - done);
#else
  __builtin_memcpy(dst, src, bytes);
#endif
}
