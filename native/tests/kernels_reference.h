// Scalar references for the kernels, by value and by search: nothing in here is shared with the code under test.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/dtype.h"

namespace slipstream::reference {

template <class T>
T get(const void* p, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(p) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void put(void* p, size_t i, T value) {
  std::memcpy(static_cast<char*>(p) + i * sizeof(T), &value, sizeof(T));
}

// ---- a reference for the narrow formats: values by ldexp, encodings by rounding to the format's grid

struct Format {
  int exponent_bits, mantissa_bits, bias;
  bool has_infinity;
  double largest;
};

inline Format format_of(DType t) {
  switch (t) {
    case DType::f16:
      return {5, 10, 15, true, 65504.0};
    case DType::bf16:
      return {8, 7, 127, true, std::ldexp(255.0, 120)};
    case DType::f8e4m3:
      return {4, 3, 7, false, 448.0};
    default:
      return {5, 2, 15, true, 57344.0};
  }
}

inline double decode(DType t, uint32_t bits) {
  const Format f = format_of(t);
  const uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  const uint32_t top = (1u << f.exponent_bits) - 1;
  const uint32_t exponent = (bits >> f.mantissa_bits) & top;
  const double sign = (bits >> (f.mantissa_bits + f.exponent_bits)) & 1 ? -1.0 : 1.0;
  if (exponent == top && f.has_infinity) return mantissa ? std::nan("") : sign * HUGE_VAL;
  if (exponent == top && mantissa == (1u << f.mantissa_bits) - 1) return std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << f.mantissa_bits), static_cast<int>(exponent) - f.bias - f.mantissa_bits);
}

// The value that `v` has in format t, to nearest even.
inline double rounded(DType t, double v) {
  const Format f = format_of(t);
  if (std::isnan(v) || v == 0.0) return v;
  if (std::isinf(v)) return f.has_infinity ? v : std::nan("");
  const int exponent = std::max(std::ilogb(v), 1 - f.bias);
  const double r = std::ldexp(std::nearbyint(std::ldexp(v, f.mantissa_bits - exponent)), exponent - f.mantissa_bits);
  if (std::fabs(r) <= f.largest) return r;
  return f.has_infinity ? std::copysign(HUGE_VAL, v) : std::nan("");
}

inline uint32_t narrow_bits(DType t, const void* p, size_t i) {
  return size_of(t) == 2 ? get<uint16_t>(p, i) : get<uint8_t>(p, i);
}

inline bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// The components of element i as doubles (one, or two for complex); false for integers.
inline bool floating_parts(DType t, const void* p, size_t i, double out[2]) {
  out[1] = 0.0;
  switch (t) {
    case DType::f64:
      out[0] = get<double>(p, i);
      return true;
    case DType::f32:
      out[0] = static_cast<double>(get<float>(p, i));
      return true;
    case DType::c64:
      out[0] = static_cast<double>(get<float>(p, 2 * i));
      out[1] = static_cast<double>(get<float>(p, 2 * i + 1));
      return true;
    case DType::c128:
      out[0] = get<double>(p, 2 * i);
      out[1] = get<double>(p, 2 * i + 1);
      return true;
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e5m2:
      out[0] = decode(t, narrow_bits(t, p, i));
      return true;
    default:
      return false;
  }
}

inline bool same_element(DType t, const void* p, const void* q, size_t i) {
  double x[2], y[2];
  if (floating_parts(t, p, i, x) && floating_parts(t, q, i, y)) return same(x[0], y[0]) && same(x[1], y[1]);
  const size_t n = size_of(t);
  if (t == DType::q8) {
    const char *a = static_cast<const char*>(p) + i * n, *b = static_cast<const char*>(q) + i * n;
    return same(static_cast<double>(get<float>(a, 0)), static_cast<double>(get<float>(b, 0))) &&
           std::memcmp(a + 4, b + 4, 64) == 0;
  }
  return std::memcmp(static_cast<const char*>(p) + i * n, static_cast<const char*>(q) + i * n, n) == 0;
}

// ---- references of the reductions: nothing is written where the operation is undefined

template <class T>
bool reference_float(Op op, T a, T b, T& out) {
  if (op == Op::sum || op == Op::avg)
    out = a + b;
  else if (op == Op::prod)
    out = a * b;
  else if (op != Op::min && op != Op::max)
    return false;
  else if (std::isnan(a) || std::isnan(b))
    out = std::numeric_limits<T>::quiet_NaN();
  else if (a == b)
    out = a;
  else
    out = (op == Op::min) == (a < b) ? a : b;
  return true;
}

template <class T>
bool reference_integer(Op op, const void* a, const void* b, void* out, size_t i) {
  const T x = get<T>(a, i), y = get<T>(b, i);
  const auto wide_x = static_cast<uint64_t>(x), wide_y = static_cast<uint64_t>(y);
  switch (op) {
    case Op::sum:
    case Op::avg:
      put(out, i, static_cast<T>(wide_x + wide_y));
      break;
    case Op::prod:
      put(out, i, static_cast<T>(wide_x * wide_y));
      break;
    case Op::min:
      put(out, i, std::min(x, y));
      break;
    case Op::max:
      put(out, i, std::max(x, y));
      break;
    case Op::band:
      put(out, i, static_cast<T>(wide_x & wide_y));
      break;
    case Op::bor:
      put(out, i, static_cast<T>(wide_x | wide_y));
      break;
    case Op::bxor:
      put(out, i, static_cast<T>(wide_x ^ wide_y));
      break;
  }
  return true;
}

template <class T>
bool reference_complex(Op op, const void* a, const void* b, void* out, size_t i) {
  const T ar = get<T>(a, 2 * i), ai = get<T>(a, 2 * i + 1), br = get<T>(b, 2 * i), bi = get<T>(b, 2 * i + 1);
  if (op == Op::sum || op == Op::avg) {
    put(out, 2 * i, static_cast<T>(ar + br));
    put(out, 2 * i + 1, static_cast<T>(ai + bi));
  } else if (op == Op::prod) {
    // Each product rounded by itself, whatever the compiler may fuse in this file.
    volatile T rr = ar * br, ii = ai * bi, ri = ar * bi, ir = ai * br;
    put(out, 2 * i, static_cast<T>(rr - ii));
    put(out, 2 * i + 1, static_cast<T>(ri + ir));
  } else {
    return false;
  }
  return true;
}

inline void put_narrow(DType t, void* out, size_t i, double value) {
  // By search through all encodings: slow, and independent of the code under test.
  static std::vector<double> decoded[kDTypes];
  std::vector<double>& values = decoded[static_cast<int>(t)];
  if (values.empty())
    for (uint32_t bits = 0; bits < (1u << (8 * size_of(t))); ++bits) values.push_back(decode(t, bits));
  const double want = rounded(t, value);
  // Positive encodings ascend with their value; NaN is last.
  const size_t half = values.size() / 2,
               end = half - (format_of(t).has_infinity ? (1u << format_of(t).mantissa_bits) - 1 : 1);
  size_t bits = std::isnan(want)
                    ? half - 1
                    : static_cast<size_t>(
                          std::lower_bound(values.begin(), values.begin() + static_cast<long>(end), std::fabs(want)) -
                          values.begin());
  if (std::signbit(want)) bits += half;
  if (size_of(t) == 2)
    put(out, i, static_cast<uint16_t>(bits));
  else
    put(out, i, static_cast<uint8_t>(bits));
}

inline bool reference_bool(Op op, const void* a, const void* b, void* out, size_t i) {
  const bool x = get<uint8_t>(a, i) != 0, y = get<uint8_t>(b, i) != 0;
  const bool conjunction = op == Op::prod || op == Op::min || op == Op::band;
  const bool value = op == Op::bxor ? x != y : conjunction ? x && y : x || y;
  put(out, i, static_cast<uint8_t>(value));
  return true;
}

// Block-int8. Products are stored before they are used, whatever the compiler may fuse in this file.
inline void pack_block(const float* numbers, void* block) {
  float largest = 0;
  bool finite = true;
  for (int i = 0; i < 64; ++i) {
    finite = finite && std::isfinite(numbers[i]);
    largest = std::max(largest, std::fabs(numbers[i]));
  }
  const float scale = largest / 127.0f;
  const bool kept = finite && scale >= std::ldexp(1.0f, -125);
  put(block, 0, kept ? scale : finite ? 0.0f : std::nanf(""));
  for (int i = 0; i < 64; ++i) {
    volatile float parts = kept ? numbers[i] * (127.0f / largest) : 0.0f;
    static_cast<int8_t*>(block)[4 + i] = static_cast<int8_t>(std::nearbyint(parts));
  }
}

inline void unpack_block(const void* block, float* numbers) {
  for (int i = 0; i < 64; ++i) {
    volatile float number = static_cast<float>(static_cast<const int8_t*>(block)[4 + i]) * get<float>(block, 0);
    numbers[i] = number;
  }
}

inline bool reference_block(Op op, const void* a, const void* b, void* out, size_t i) {
  if (op != Op::sum && op != Op::avg) return false;
  float sum[64], term[64];
  unpack_block(static_cast<const char*>(a) + 68 * i, sum);
  unpack_block(static_cast<const char*>(b) + 68 * i, term);
  for (int k = 0; k < 64; ++k) sum[k] += term[k];
  pack_block(sum, static_cast<char*>(out) + 68 * i);
  return true;
}

inline bool reduce(DType t, Op op, const void* a, const void* b, void* out, size_t i) {
  switch (t) {
    case DType::f64: {
      double r = 0;
      return reference_float(op, get<double>(a, i), get<double>(b, i), r) && (put(out, i, r), true);
    }
    case DType::f32: {
      float r = 0;
      return reference_float(op, get<float>(a, i), get<float>(b, i), r) && (put(out, i, r), true);
    }
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e5m2: {
      float r = 0;
      const float x = static_cast<float>(decode(t, narrow_bits(t, a, i)));
      const float y = static_cast<float>(decode(t, narrow_bits(t, b, i)));
      if (!reference_float(op, x, y, r)) return false;
      put_narrow(t, out, i, static_cast<double>(r));
      return true;
    }
    case DType::i8:
      return reference_integer<int8_t>(op, a, b, out, i);
    case DType::i16:
      return reference_integer<int16_t>(op, a, b, out, i);
    case DType::i32:
      return reference_integer<int32_t>(op, a, b, out, i);
    case DType::i64:
      return reference_integer<int64_t>(op, a, b, out, i);
    case DType::u8:
      return reference_integer<uint8_t>(op, a, b, out, i);
    case DType::u16:
      return reference_integer<uint16_t>(op, a, b, out, i);
    case DType::u32:
      return reference_integer<uint32_t>(op, a, b, out, i);
    case DType::u64:
      return reference_integer<uint64_t>(op, a, b, out, i);
    case DType::boolean:
      return reference_bool(op, a, b, out, i);
    case DType::c64:
      return reference_complex<float>(op, a, b, out, i);
    case DType::c128:
      return reference_complex<double>(op, a, b, out, i);
    case DType::q8:
      return reference_block(op, a, b, out, i);
  }
  return false;
}

}  // namespace slipstream::reference
