// f32 numbers as they travel between hosts. Part of level.inl.
//
// Each format packs and unpacks a block of up to kWireBlock numbers. What is unpacked packs to the same bytes: a scale
// of 16 significant bits times a number of at most 7 is exact, and so is the quotient that gives the scale back.

constexpr uint32_t kLargestFinite = 0x7f7fffffu;

inline uint32_t magnitude(const void* numbers, size_t i) { return load<uint32_t>(numbers, i) & 0x7fffffffu; }

// As in block_int8.inl: NaN is above infinity.
inline uint32_t largest_magnitude(const void* numbers, size_t n) {
  int32_t largest = 0;
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < n; ++i) {
    const int32_t bits = static_cast<int32_t>(magnitude(numbers, i));
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

inline uint32_t largest_finite_magnitude(const void* numbers, size_t n) {
  int32_t largest = 0;
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < n; ++i) {
    const int32_t bits = static_cast<int32_t>(magnitude(numbers, i));
    const int32_t finite = bits < static_cast<int32_t>(kInfinity) ? bits : 0;
    largest = finite > largest ? finite : largest;
  }
  return static_cast<uint32_t>(largest);
}

// A finite number, bounded by `most` in magnitude; others as they are.
inline float bounded(const void* numbers, size_t i, uint32_t most) {
  const uint32_t bits = load<uint32_t>(numbers, i), abs = bits & 0x7fffffffu;
  const uint32_t held = abs < most ? abs : most;
  return float_of((bits & 0x80000000u) | (abs < kInfinity ? held : abs));
}

struct WireBF16 {
  static constexpr size_t kHeader = 0, kWidth = 2;
  static void pack(char* to, const char* from, size_t n) {
    alignas(64) float numbers[kWireBlock];
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i) numbers[i] = bounded(from, i, 0x7f7f0000u);
    pack_narrow<BF16>(to, numbers, n);
  }
  static void unpack(float* numbers, const char* from, size_t n) { unpack_narrow<BF16>(numbers, from, n); }
};

struct WireF16 {
  static constexpr size_t kHeader = sizeof(float), kWidth = 2;
  // Of the largest magnitude: 2^-15 of its power of two once it has f16's 11 bits, so that it becomes 65504 at most.
  // From 2^-102 on everything that f16 holds is a normal f32 number.
  static uint32_t scale_bits(uint32_t largest) {
    const uint32_t rounded = largest + 0xfffu + ((largest >> 13) & 1);
    const uint32_t exponent = (rounded < kInfinity ? rounded : kLargestFinite) >> 23;
    return (exponent < 40 ? 25 : exponent - 15) << 23;
  }
  static void pack(char* to, const char* from, size_t n) {
    const uint32_t scale = scale_bits(largest_finite_magnitude(from, n));
    const float inverse = float_of((254u << 23) - scale);
    alignas(64) float numbers[kWireBlock];
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i) numbers[i] = bounded(from, i, 0x7f7fe000u) * inverse;
    store<uint32_t>(to, 0, scale);
    pack_narrow<F16>(to + kHeader, numbers, n);
  }
  static void unpack(float* numbers, const char* from, size_t n) {
    const float scale = load<float>(from, 0);
    unpack_narrow<F16>(numbers, from + kHeader, n);
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i) numbers[i] *= scale;
  }
};

// The scale that lets the largest magnitude be kMost. A smaller one than kLeast is 0, as are the numbers then; NaN if
// the largest magnitude is not finite.
template <int kMost, uint32_t kLeast>
inline float shared_scale(uint32_t largest) {
  constexpr uint32_t kDropped = 0xff;  // of the 24 bits 16 stay
  constexpr uint32_t kGreatest = bits_of(float_of(kLargestFinite) / kMost) & ~kDropped;
  static_assert(static_cast<double>(float_of(kGreatest)) * kMost <= static_cast<double>(float_of(kLargestFinite)));
  const uint32_t wanted = (bits_of(float_of(largest) / kMost) + kDropped) & ~kDropped;
  const uint32_t held = wanted < kGreatest ? wanted : kGreatest;
  return float_of(largest >= kInfinity ? 0x7fc00000u : held < kLeast ? 0 : held);
}

struct WireF8 {
  static constexpr size_t kHeader = sizeof(float), kWidth = 1;
  static void pack(char* to, const char* from, size_t n) {
    const float scale = shared_scale<448, 0x05800000u>(largest_magnitude(from, n));
    const bool some = scale > 0.0f;  // not NaN either
    const float inverse = some ? 1.0f / scale : 0.0f;
    const uint32_t mask = scale == scale ? 0xffu : 0u;
    uint8_t packed[kWireBlock];
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i)
      packed[i] = static_cast<uint8_t>(F8E4M3::pack(load<float>(from, i) * inverse) & mask);
    store<float>(to, 0, scale);
    __builtin_memcpy(to + kHeader, packed, n);
  }
  static void unpack(float* numbers, const char* from, size_t n) {
    const float scale = load<float>(from, 0);
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i) numbers[i] = F8E4M3::unpack(load<uint8_t>(from + kHeader, i)) * scale;
  }
};

struct WireInt8 {
  static constexpr size_t kHeader = sizeof(float), kWidth = 1;
  static void pack(char* to, const char* from, size_t n) {
    const float scale = shared_scale<127, 0x01000000u>(largest_magnitude(from, n));
    const bool some = scale > 0.0f;
    const float inverse = some ? 1.0f / scale : 0.0f;
    const uint32_t mask = some ? 0xffu : 0u;
    int8_t rounded[kWireBlock];
    // As in block_int8.inl: the addition rounds to an integer, nearest even.
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i)
      rounded[i] = static_cast<int8_t>(bits_of(load<float>(from, i) * inverse + 12582912.0f) & mask);
    store<float>(to, 0, scale);
    __builtin_memcpy(to + kHeader, rounded, n);
  }
  static void unpack(float* numbers, const char* from, size_t n) {
    const float scale = load<float>(from, 0);
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i) numbers[i] = static_cast<float>(load<int8_t>(from + kHeader, i)) * scale;
  }
};

template <class F>
constexpr size_t kWireBlockBytes = F::kHeader + F::kWidth * kWireBlock;

template <class F>
void encode_wire(void* dst, const void* src, size_t count) {
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  for (size_t done = 0; done < count; done += kWireBlock, to += kWireBlockBytes<F>, from += kWireBlock * sizeof(float))
    F::pack(to, from, count - done < kWireBlock ? count - done : kWireBlock);
}

// use(at, numbers, n): `at` bytes of f32 numbers have been before.
template <class F, class Use>
inline void each_unpacked(const void* src, size_t count, Use use) {
  alignas(64) float numbers[kWireBlock];
  const char* from = static_cast<const char*>(src);
  for (size_t done = 0; done < count; done += kWireBlock, from += kWireBlockBytes<F>) {
    const size_t n = count - done < kWireBlock ? count - done : kWireBlock;
    F::unpack(numbers, from, n);
    use(done * sizeof(float), numbers, n);
  }
}

template <class F>
void decode_wire(void* dst, const void* src, size_t count) {
  each_unpacked<F>(src, count, [dst](size_t at, const float* numbers, size_t n) {
    __builtin_memcpy(static_cast<char*>(dst) + at, numbers, n * sizeof(float));
  });
}

template <class F>
void decode_add_wire(void* dst, const void* own, const void* src, size_t count) {
  each_unpacked<F>(src, count, [dst, own](size_t at, const float* numbers, size_t n) {
    char* to = static_cast<char*>(dst) + at;
    const char* mine = static_cast<const char*>(own) + at;
    SLIPSTREAM_LOOP
    for (size_t i = 0; i < n; ++i) store<float>(to, i, load<float>(mine, i) + numbers[i]);
  });
}

template <class F>
constexpr void fill_wire(Table& table, WireType wire) {
  const int index = static_cast<int>(wire) - 1;
  table.encode[index] = encode_wire<F>;
  table.decode[index] = decode_wire<F>;
  table.decode_add[index] = decode_add_wire<F>;
}

constexpr void fill_wires(Table& table) {
  fill_wire<WireBF16>(table, WireType::bf16);
  fill_wire<WireF16>(table, WireType::f16);
  fill_wire<WireF8>(table, WireType::f8);
  fill_wire<WireInt8>(table, WireType::int8);
}
