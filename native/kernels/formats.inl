// The number formats narrower than f32, as pure integer arithmetic without branches, so that compilers vectorise it.
// Part of level.inl. Nothing here depends on subnormal f32 arithmetic: frameworks switch that off ("flush denormals").
//
// Packing makes one NaN of all, positive, quiet and without a payload. Which payload and which sign a sum of two NaNs
// has is up to the processor, and to how the compiler orders the operands.

template <class T>
inline T load(const void* p, size_t i) {
  T value;
  __builtin_memcpy(&value, static_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
inline void store(void* p, size_t i, T value) {
  __builtin_memcpy(static_cast<char*>(p) + i * sizeof(T), &value, sizeof(T));
}

constexpr uint32_t bits_of(float f) { return __builtin_bit_cast(uint32_t, f); }
constexpr float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

// `abs` is the encoding without its sign, of a format with `kMantissa` bits of fraction and exponents biased by kBias.
// Subnormals become normal f32 numbers by a subtraction that is exact.
template <int kMantissa, int kBias>
inline uint32_t widen(uint32_t abs) {
  const uint32_t shifted = abs << (23 - kMantissa);
  const uint32_t normal = shifted + (static_cast<uint32_t>(127 - kBias) << 23);
  constexpr uint32_t kOne = static_cast<uint32_t>(128 - kBias) << 23;
  const uint32_t subnormal = bits_of(float_of(shifted + kOne) - float_of(kOne));
  return abs < (1u << kMantissa) ? subnormal : normal;
}

// The inverse for |f| = float_of(abs) below the format's range, nearest even. For subnormal results the addition of a
// power of two shifts the fraction into place and rounds it.
template <int kMantissa, int kBias>
inline uint32_t narrow(uint32_t abs) {
  constexpr int kShift = 23 - kMantissa;
  const uint32_t odd = (abs >> kShift) & 1;
  const uint32_t normal =
      (abs - (static_cast<uint32_t>(127 - kBias) << 23) + ((1u << (kShift - 1)) - 1) + odd) >> kShift;
  constexpr uint32_t kMagic = static_cast<uint32_t>(127 - kBias + kShift + 1) << 23;
  const uint32_t subnormal = bits_of(float_of(abs) + float_of(kMagic)) - kMagic;
  return abs < (static_cast<uint32_t>(128 - kBias) << 23) ? subnormal : normal;
}

constexpr uint32_t kInfinity = 0x7f800000u;

struct F16 {
  using Bits = uint16_t;
  static float unpack(Bits h) {
    const uint32_t abs = h & 0x7fffu;
    const uint32_t wide = widen<10, 15>(abs);
    // As the processors' own conversions do: a NaN keeps its payload and becomes quiet.
    const uint32_t special = kInfinity | (abs << 13) | (abs > 0x7c00u ? 0x00400000u : 0u);
    return float_of((static_cast<uint32_t>(h & 0x8000u) << 16) | (abs >= 0x7c00u ? special : wide));
  }
  static Bits pack(float f) {
    const uint32_t abs = bits_of(f) & 0x7fffffffu;
    const uint32_t sign = (bits_of(f) >> 16) & 0x8000u;
    const uint32_t finite = narrow<10, 15>(abs);
    const uint32_t packed = sign | (abs >= 0x47800000u ? 0x7c00u : finite);
    return static_cast<Bits>(abs > kInfinity ? 0x7e00u : packed);
  }
};

struct BF16 {
  using Bits = uint16_t;
  static float unpack(Bits h) { return float_of(static_cast<uint32_t>(h) << 16); }
  static Bits pack(float f) {
    const uint32_t u = bits_of(f);
    const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
    return static_cast<Bits>((u & 0x7fffffffu) > kInfinity ? 0x7fc0u : rounded);
  }
};

// No infinity; one NaN for each sign (the "fn" variant of OFP8, which is the one frameworks use).
struct F8E4M3 {
  using Bits = uint8_t;
  static float unpack(Bits h) {
    const uint32_t abs = h & 0x7fu;
    const uint32_t wide = widen<3, 7>(abs);
    return float_of((static_cast<uint32_t>(h & 0x80u) << 24) | (abs == 0x7fu ? 0x7fc00000u : wide));
  }
  static Bits pack(float f) {
    const uint32_t abs = bits_of(f) & 0x7fffffffu;
    const uint32_t sign = (bits_of(f) >> 24) & 0x80u;
    const uint32_t finite = narrow<3, 7>(abs);
    const uint32_t packed = abs >= 0x43f00000u ? 0x7fu : finite;  // 480, the first value beyond NaN's place
    return static_cast<Bits>(packed == 0x7fu ? packed : sign | packed);
  }
};

struct F8E5M2 {
  using Bits = uint8_t;
  static float unpack(Bits h) { return F16::unpack(static_cast<uint16_t>(h << 8)); }
  static Bits pack(float f) {
    const uint32_t abs = bits_of(f) & 0x7fffffffu;
    const uint32_t sign = (bits_of(f) >> 24) & 0x80u;
    const uint32_t finite = narrow<2, 15>(abs);
    const uint32_t packed = sign | (abs >= 0x47800000u ? 0x7cu : finite);
    return static_cast<Bits>(abs > kInfinity ? 0x7fu : packed);
  }
};

// Conversions by hand, between memory and a vector of f32, for the formats that the instruction set favours.
struct NoVectors {};
template <class F>
struct VectorsOf {
  using Type = NoVectors;
};
#if defined(SLIPSTREAM_VECTORS)
template <>
struct VectorsOf<F16> {
  using Type = VectorF16;
};
template <>
struct VectorsOf<BF16> {
  using Type = VectorBF16;
};
#endif

template <class F>
constexpr bool kHasVectors = !std::is_same_v<typename VectorsOf<F>::Type, NoVectors>;

// f32 with every bit that was lost gathered in the last place. Two more bits than the target has are enough for a
// second rounding to be right (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
inline float round_to_odd(double d) {
  const float nearest = static_cast<float>(d);
  const double back = static_cast<double>(nearest);
  const uint32_t away = __builtin_fabs(back) > __builtin_fabs(d) ? 1u : 0u;
  const uint32_t lost = back != d ? 1u : 0u;
  return float_of((bits_of(nearest) - away) | lost);
}
