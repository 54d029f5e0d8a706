// Block-int8 (q8): reductions, casts, scaling and division. Part of level.inl.

constexpr size_t kNumbers = numbers_of(DType::q8);
constexpr size_t kBlockBytes = size_of(DType::q8);
static_assert(kBlockBytes == sizeof(float) + kNumbers);

// A scale as it may stand in a block. From 2^-125 on no number that decides about a block is subnormal.
inline float usable(float scale) {
  const uint32_t abs = bits_of(scale) & 0x7fffffffu;
  return abs >= kInfinity ? float_of(0x7fc00000u) : abs < 0x01000000u ? 0.0f : scale;
}

// The largest magnitude of a block's numbers, as bits: integers compare as the floats do, NaN above infinity, and
// without an order of evaluation to respect.
inline uint32_t largest_bits(const void* numbers) {
  int32_t largest = 0;
  for (size_t i = 0; i < kNumbers; ++i) {
    const int32_t bits = static_cast<int32_t>(load<uint32_t>(numbers, i) & 0x7fffffffu);
    largest = bits > largest ? bits : largest;
  }
  return static_cast<uint32_t>(largest);
}

// `block` may be where `numbers` are.
inline void pack_block(void* block, const void* numbers) {
  const float largest = float_of(largest_bits(numbers));
  const float scale = usable(largest / 127.0f);
  const bool some = scale > 0.0f;  // not NaN either
  const float inverse = some ? 127.0f / largest : 0.0f;
  const uint32_t mask = some ? 0xffu : 0u;
  int8_t rounded[kNumbers];
  // Adding 1.5 * 2^23 rounds to an integer, nearest even, and leaves it in the low bits.
  for (size_t i = 0; i < kNumbers; ++i)
    rounded[i] = static_cast<int8_t>(bits_of(load<float>(numbers, i) * inverse + 12582912.0f) & mask);
  store<float>(block, 0, scale);
  __builtin_memcpy(static_cast<char*>(block) + sizeof(float), rounded, kNumbers);
}

inline void unpack_block(void* numbers, const void* block) {
  const float scale = load<float>(block, 0);
  int8_t packed[kNumbers];
  __builtin_memcpy(packed, static_cast<const char*>(block) + sizeof(float), kNumbers);
  for (size_t i = 0; i < kNumbers; ++i) store<float>(numbers, i, static_cast<float>(packed[i]) * scale);
}

constexpr size_t kWideBytes = kNumbers * sizeof(float);

void pack_blocks(void* dst, const void* src, size_t count) {
  for (size_t k = 0; k < count; ++k)
    pack_block(static_cast<char*>(dst) + k * kBlockBytes, static_cast<const char*>(src) + k * kWideBytes);
}

void unpack_blocks(void* dst, const void* src, size_t count) {
  for (size_t k = 0; k < count; ++k)
    unpack_block(static_cast<char*>(dst) + k * kWideBytes, static_cast<const char*>(src) + k * kBlockBytes);
}

void add_blocks(void* dst, const void* a, const void* b, size_t count) {
  alignas(64) float sum[kNumbers], term[kNumbers];
  for (size_t at = 0; at < count * kBlockBytes; at += kBlockBytes) {
    unpack_block(sum, static_cast<const char*>(a) + at);
    unpack_block(term, static_cast<const char*>(b) + at);
    for (size_t i = 0; i < kNumbers; ++i) sum[i] += term[i];
    pack_block(static_cast<char*>(dst) + at, sum);
  }
}

void scale_blocks(void* dst, const void* src, size_t count, double factor) {
  if (dst != src) __builtin_memmove(dst, src, count * kBlockBytes);
  for (size_t k = 0; k < count; ++k) {
    char* block = static_cast<char*>(dst) + k * kBlockBytes;
    store<float>(block, 0, usable(static_cast<float>(static_cast<double>(load<float>(block, 0)) * factor)));
  }
}

void divide_blocks(void* buf, size_t count, uint64_t divisor) {
  const float by = static_cast<float>(divisor);
  for (size_t k = 0; k < count; ++k) {
    char* block = static_cast<char*>(buf) + k * kBlockBytes;
    store<float>(block, 0, usable(load<float>(block, 0) / by));
  }
}

constexpr void fill_blocks(Table& table) {
  ReduceFn* row = table.reduce[static_cast<int>(DType::q8)];
  row[static_cast<int>(Op::sum)] = row[static_cast<int>(Op::avg)] = add_blocks;
  table.scale[static_cast<int>(DType::q8)] = scale_blocks;
  table.divide[static_cast<int>(DType::q8)] = divide_blocks;
  table.unpack_blocks = unpack_blocks;
  table.pack_blocks = pack_blocks;
}
