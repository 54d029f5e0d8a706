// Casts, scaling and division. Part of level.inl.

template <class F>
void unpack_narrow(float* dst, const void* src, size_t count) {
  size_t i = 0;
  if constexpr (kHasVectors<F>) {
    using V = typename VectorsOf<F>::Type;
    const char* s = static_cast<const char*>(src);
    for (; i + V::kLanes <= count; i += V::kLanes) store<typename V::Vec>(dst + i, 0, V::load(s + 2 * i));
  }
  SLIPSTREAM_LOOP
  for (; i < count; ++i) dst[i] = F::unpack(load<typename F::Bits>(src, i));
}

template <class F>
void pack_narrow(void* dst, const float* src, size_t count) {
  size_t i = 0;
  if constexpr (kHasVectors<F>) {
    using V = typename VectorsOf<F>::Type;
    char* d = static_cast<char*>(dst);
    for (; i + V::kLanes <= count; i += V::kLanes) V::store(d + 2 * i, load<typename V::Vec>(src + i, 0));
  }
  SLIPSTREAM_LOOP
  for (; i < count; ++i) store<typename F::Bits>(dst, i, F::pack(src[i]));
}

void unpack_f32(float* dst, const void* src, size_t count) { __builtin_memmove(dst, src, count * sizeof(float)); }
void pack_f32(void* dst, const float* src, size_t count) { __builtin_memmove(dst, src, count * sizeof(float)); }

void unpack_f64(float* dst, const void* src, size_t count) {
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) dst[i] = round_to_odd(load<double>(src, i));
}

void pack_f64(void* dst, const float* src, size_t count) {
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) store<double>(dst, i, static_cast<double>(src[i]));
}

void round_f64(float* dst, const void* src, size_t count) {
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) dst[i] = static_cast<float>(load<double>(src, i));
}

// ---- scale and divide

template <int kParts>
void scale_f64(void* dst, const void* src, size_t count, double factor) {
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < kParts * count; ++i) store<double>(dst, i, load<double>(src, i) * factor);
}

template <int kParts>
void scale_f32(void* dst, const void* src, size_t count, double factor) {
  const float single = static_cast<float>(factor);
  if (static_cast<double>(single) == factor) {  // the same bits, at twice the speed
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < kParts * count; ++i) store<float>(dst, i, load<float>(src, i) * single);
  } else {
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < kParts * count; ++i)
      store<float>(dst, i, static_cast<float>(static_cast<double>(load<float>(src, i)) * factor));
  }
}

// f16, bf16 and f8 pass through f32 a block at a time: short enough to stay in the first-level cache.
constexpr size_t kBlock = 512;

template <class F, class Step>
inline void by_blocks(void* dst, const void* src, size_t count, Step step) {
  using Bits = typename F::Bits;
  alignas(64) float wide[kBlock];
  for (size_t done = 0; done < count; done += kBlock) {
    const size_t n = count - done < kBlock ? count - done : kBlock;
    unpack_narrow<F>(wide, static_cast<const char*>(src) + done * sizeof(Bits), n);
    for (size_t i = 0; i < n; ++i) wide[i] = step(wide[i]);
    pack_narrow<F>(static_cast<char*>(dst) + done * sizeof(Bits), wide, n);
  }
}

template <class F>
void scale_narrow(void* dst, const void* src, size_t count, double factor) {
  const float single = static_cast<float>(factor);
  by_blocks<F>(dst, src, count, [single](float x) { return x * single; });
}

template <class F>
void divide_narrow(void* buf, size_t count, uint64_t divisor) {
  const float single = static_cast<float>(divisor);
  by_blocks<F>(buf, buf, count, [single](float x) { return x / single; });
}

// A 64-bit integer needs the mantissa of a long double; on the processors that have none beyond f64 the limits
// 2^63 and 2^64 are still exact, which is why the upper comparison is made against max + 1.
template <class T>
void scale_integer(void* dst, const void* src, size_t count, double factor) {
  using Wide = std::conditional_t<sizeof(T) == 8, long double, double>;
  constexpr T kMax =
      static_cast<T>(std::is_signed_v<T> ? ~uint64_t{0} >> (65 - 8 * sizeof(T)) : ~uint64_t{0} >> (64 - 8 * sizeof(T)));
  constexpr T kMin = static_cast<T>(std::is_signed_v<T> ? -kMax - 1 : 0);
  constexpr Wide kBeyond = static_cast<Wide>(kMax / 2 + 1) * 2;
  constexpr Wide kLowest = static_cast<Wide>(kMin);
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) {
    const Wide product = static_cast<Wide>(load<T>(src, i)) * static_cast<Wide>(factor);
    const bool high = product >= kBeyond, low = product <= kLowest, fits = (product > kLowest) & !high;
    const T inside = static_cast<T>(fits ? product : Wide{0});
    store<T>(dst, i, high ? kMax : low ? kMin : inside);
  }
}

void scale_bool(void* dst, const void* src, size_t count, double factor) {
  if (factor == 0.0)
    __builtin_memset(dst, 0, count);
  else
    __builtin_memmove(dst, src, count);
}

template <class T, int kParts>
void divide_float(void* buf, size_t count, uint64_t divisor) {
  const T by = static_cast<T>(divisor);
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < kParts * count; ++i) store<T>(buf, i, load<T>(buf, i) / by);
}

template <class T>
void divide_integer(void* buf, size_t count, uint64_t divisor) {
  if constexpr (sizeof(T) == 8) {
    for (size_t i = 0; i < count; ++i) {
      const T value = load<T>(buf, i);
      const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
      const uint64_t quotient = magnitude / divisor;
      store<T>(buf, i, static_cast<T>(value < 0 ? 0 - quotient : quotient));
    }
  } else {
    // Exact: a quotient of two 32-bit integers is farther from the next integer than f64 can round.
    const double by = static_cast<double>(divisor);
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < count; ++i) store<T>(buf, i, static_cast<T>(static_cast<double>(load<T>(buf, i)) / by));
  }
}

void divide_bool(void*, size_t, uint64_t) {}
