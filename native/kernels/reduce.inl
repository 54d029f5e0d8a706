// Reductions of every dtype. Part of level.inl.

// The operators work on scalars and on GNU vectors of floats alike.
struct Sum {
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct Prod {
  template <class T>
  static T of(T a, T b) {
    return a * b;
  }
};
// a if it is NaN; b if that one is NaN, since no comparison holds then.
struct Min {
  template <class T>
  static T of(T a, T b) {
    return ((a <= b) | (a != a)) ? a : b;
  }
};
struct Max {
  template <class T>
  static T of(T a, T b) {
    return ((a >= b) | (a != a)) ? a : b;
  }
};
struct Band {
  template <class T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct Bor {
  template <class T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct Bxor {
  template <class T>
  static T of(T a, T b) {
    return a ^ b;
  }
};

// Integers wrap: sums and products are taken in an unsigned type of at least 32 bits, since narrower ones would be
// promoted to int, whose overflow is undefined.
template <class T, class O>
inline T combine(T a, T b) {
  if constexpr (std::is_integral_v<T> && (std::is_same_v<O, Sum> || std::is_same_v<O, Prod>)) {
    using Wide = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    return static_cast<T>(O::of(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else if constexpr (std::is_integral_v<T> && !(std::is_same_v<O, Min> || std::is_same_v<O, Max>)) {
    return static_cast<T>(O::of(a, b));
  } else {
    return O::template of<T>(a, b);
  }
}

template <class T, class O>
void reduce_plain(void* dst, const void* a, const void* b, size_t count) {
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) store<T>(dst, i, combine<T, O>(load<T>(a, i), load<T>(b, i)));
}

template <class O>
void reduce_bool(void* dst, const void* a, const void* b, size_t count) {
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) {
    const uint8_t x = load<uint8_t>(a, i) != 0, y = load<uint8_t>(b, i) != 0;
    store<uint8_t>(dst, i, static_cast<uint8_t>(O::of(x, y)));
  }
}

// GCC 12 and later form fused multiply-add-subtracts out of a complex product even when told not to contract; a
// product behind this barrier is rounded by itself.
template <class T>
inline T rounded_product(T a, T b) {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
  return __builtin_assoc_barrier(a * b);
#else
  return a * b;
#endif
}

template <class T>
void multiply_complex(void* dst, const void* a, const void* b, size_t count) {
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) {
    const T ar = load<T>(a, 2 * i), ai = load<T>(a, 2 * i + 1);
    const T br = load<T>(b, 2 * i), bi = load<T>(b, 2 * i + 1);
    store<T>(dst, 2 * i, rounded_product(ar, br) - rounded_product(ai, bi));
    store<T>(dst, 2 * i + 1, rounded_product(ar, bi) + rounded_product(ai, br));
  }
}

template <class T>
void add_complex(void* dst, const void* a, const void* b, size_t count) {
  reduce_plain<T, Sum>(dst, a, b, 2 * count);
}

template <class F, class O>
void reduce_narrow(void* dst, const void* a, const void* b, size_t count) {
  using Bits = typename F::Bits;
  SLIPSTREAM_LOOP
  for (size_t i = 0; i < count; ++i) {
    const float x = F::unpack(load<Bits>(a, i)), y = F::unpack(load<Bits>(b, i));
    store<Bits>(dst, i, F::pack(O::of(x, y)));
  }
}

template <class V, class O>
void reduce_vectors(void* dst, const void* a, const void* b, size_t count) {
  using Vec = typename V::Vec;
  constexpr size_t kStep = V::kLanes * sizeof(uint16_t);
  char* d = static_cast<char*>(dst);
  const char *p = static_cast<const char*>(a), *q = static_cast<const char*>(b);
  size_t bytes = count * sizeof(uint16_t);
  for (; bytes >= kStep; bytes -= kStep, d += kStep, p += kStep, q += kStep)
    V::store(d, O::template of<Vec>(V::load(p), V::load(q)));
  if (bytes == 0) return;
  char x[kStep] = {}, y[kStep] = {};
  __builtin_memcpy(x, p, bytes);
  __builtin_memcpy(y, q, bytes);
  V::store(x, O::template of<Vec>(V::load(x), V::load(y)));
  __builtin_memcpy(d, x, bytes);
}

constexpr void fill_row(ReduceFn* row, ReduceFn sum, ReduceFn prod, ReduceFn min, ReduceFn max) {
  row[static_cast<int>(Op::sum)] = row[static_cast<int>(Op::avg)] = sum;
  row[static_cast<int>(Op::prod)] = prod;
  row[static_cast<int>(Op::min)] = min;
  row[static_cast<int>(Op::max)] = max;
}

constexpr void fill_bitwise(ReduceFn* row, ReduceFn band, ReduceFn bor, ReduceFn bxor) {
  row[static_cast<int>(Op::band)] = band;
  row[static_cast<int>(Op::bor)] = bor;
  row[static_cast<int>(Op::bxor)] = bxor;
}

template <class T>
constexpr void fill_plain(Table& table, DType t) {
  ReduceFn* row = table.reduce[static_cast<int>(t)];
  fill_row(row, reduce_plain<T, Sum>, reduce_plain<T, Prod>, reduce_plain<T, Min>, reduce_plain<T, Max>);
  if constexpr (std::is_integral_v<T>)
    fill_bitwise(row, reduce_plain<T, Band>, reduce_plain<T, Bor>, reduce_plain<T, Bxor>);
}

template <class F>
constexpr void fill_narrow(Table& table, DType t) {
  ReduceFn* row = table.reduce[static_cast<int>(t)];
  if constexpr (kHasVectors<F>) {
    using V = typename VectorsOf<F>::Type;
    fill_row(row, reduce_vectors<V, Sum>, reduce_vectors<V, Prod>, reduce_vectors<V, Min>, reduce_vectors<V, Max>);
  } else {
    fill_row(row, reduce_narrow<F, Sum>, reduce_narrow<F, Prod>, reduce_narrow<F, Min>, reduce_narrow<F, Max>);
  }
}

constexpr void fill_reductions(Table& table) {
  fill_plain<double>(table, DType::f64);
  fill_plain<float>(table, DType::f32);
  fill_narrow<F16>(table, DType::f16);
  fill_narrow<BF16>(table, DType::bf16);
  fill_narrow<F8E4M3>(table, DType::f8e4m3);
  fill_narrow<F8E5M2>(table, DType::f8e5m2);
  fill_plain<int8_t>(table, DType::i8);
  fill_plain<int16_t>(table, DType::i16);
  fill_plain<int32_t>(table, DType::i32);
  fill_plain<int64_t>(table, DType::i64);
  fill_plain<uint8_t>(table, DType::u8);
  fill_plain<uint16_t>(table, DType::u16);
  fill_plain<uint32_t>(table, DType::u32);
  fill_plain<uint64_t>(table, DType::u64);
  ReduceFn* boolean = table.reduce[static_cast<int>(DType::boolean)];
  fill_row(boolean, reduce_bool<Bor>, reduce_bool<Band>, reduce_bool<Band>, reduce_bool<Bor>);
  fill_bitwise(boolean, reduce_bool<Band>, reduce_bool<Bor>, reduce_bool<Bxor>);
  fill_row(table.reduce[static_cast<int>(DType::c64)], add_complex<float>, multiply_complex<float>, nullptr, nullptr);
  fill_row(table.reduce[static_cast<int>(DType::c128)], add_complex<double>, multiply_complex<double>, nullptr,
           nullptr);
}
