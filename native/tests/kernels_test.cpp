// Every kernel of every instruction set this processor has, against scalar references that share nothing with them.
#include "kernels/kernels.h"

#include <cmath>
#include <complex>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "kernels/table.h"
#include "tests/check.h"
#include "tests/kernels_reference.h"

using namespace slipstream;
using kernels::Level;
using kernels::Table;
using reference::decode;
using reference::floating_parts;
using reference::get;
using reference::narrow_bits;
using reference::put;
using reference::put_narrow;
using reference::same;
using reference::same_element;

namespace {

using Bytes = std::vector<unsigned char>;

constexpr DType kNarrow[] = {DType::f16, DType::bf16, DType::f8e4m3, DType::f8e5m2};
constexpr size_t kSizes[] = {0, 1, 7, 64, 1023};

std::vector<const Table*> tables() {
  std::vector<const Table*> all;
  for (int i = 0; i < kernels::kLevels; ++i)
    if (const Table* t = kernels::table_of(static_cast<Level>(i))) all.push_back(t);
  return all;
}

DType dtype_of(int i) { return static_cast<DType>(i); }
int index(DType t) { return static_cast<int>(t); }

Bytes random_bytes(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes out(n);
  for (unsigned char& b : out) b = static_cast<unsigned char>(random());
  return out;
}

void compare(const std::string& what, DType t, const void* got, const void* want, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (same_element(t, got, want, i)) continue;
    check::failed(__FILE__, __LINE__, what + " of " + name_of(t) + " differs at element " + std::to_string(i));
    return;
  }
}

// Random bits of half the operands, small numbers in the rest: the former find NaN, infinity, subnormals and overflow,
// the latter ordinary arithmetic and ties.
Bytes operands(DType t, size_t count, uint64_t seed) {
  Bytes out = random_bytes(count * size_of(t), seed);
  std::mt19937_64 random(seed + 1);
  const bool real = index(t) < kernels::kFloats, is_complex = t == DType::c64 || t == DType::c128;
  for (size_t i = 0; i < count; i += 2) {
    const double value = static_cast<double>(static_cast<int64_t>(random() % 41) - 20) / 8;
    if (t == DType::f64 || t == DType::c128)
      put(out.data(), t == DType::f64 ? i : 2 * i, value);
    else if (t == DType::f32 || t == DType::c64)
      put(out.data(), t == DType::f32 ? i : 2 * i, static_cast<float>(value));
    else if (real)
      put_narrow(t, out.data(), i, value);
    else if (!is_complex && i % 4 == 0)
      std::memset(out.data() + i * size_of(t), static_cast<int>(random() % 2), 1);
  }
  for (size_t i = 0; t == DType::q8 && i < count; ++i) {
    const float scales[] = {1.0f, 0.25f, -3.0f, 0.1f, 0.0f, std::nanf(""), 2.6e36f, 0x1p-125f};
    const float more = 1 + static_cast<float>(random() % 9) / 16;
    put(out.data() + i * size_of(t), 0, scales[random() % 8] * (i % 2 == 0 ? 1 : more));
  }
  if (real && count > 8) {  // NaN against a number on either side, and both
    const double nan = std::nan(""), special[3] = {seed % 2 ? nan : 1.0, seed % 2 ? 2.0 : nan, nan};
    for (size_t k = 0; k < 3; ++k) {
      if (t == DType::f64)
        put(out.data(), k, special[k]);
      else if (t == DType::f32)
        put(out.data(), k, static_cast<float>(special[k]));
      else
        put_narrow(t, out.data(), k, special[k]);
    }
  }
  return out;
}

enum class Alias { none, left, right, both };

void check_reduce(const Table& table, DType t, Op op, size_t count, size_t shift, Alias alias) {
  const size_t bytes = count * size_of(t);
  const Bytes a = operands(t, count, 2 * count + 11);
  const Bytes b = alias == Alias::both ? a : operands(t, count, 2 * count + 12);
  Bytes want(bytes);
  for (size_t i = 0; i < count; ++i) CHECK(reference::reduce(t, op, a.data(), b.data(), want.data(), i));
  // Three buffers, each at its own odd distance from alignment, with a margin that must stay as it is.
  constexpr size_t kMargin = 64;
  Bytes room[3];
  for (Bytes& r : room) r.assign(bytes + 3 * kMargin, 0xa5);
  unsigned char* dst = room[0].data() + kMargin + shift;
  unsigned char* left = alias == Alias::left || alias == Alias::both ? dst : room[1].data() + kMargin + 3 * shift;
  unsigned char* right = alias == Alias::right || alias == Alias::both ? dst : room[2].data() + kMargin + 5 * shift;
  if (bytes != 0) {
    std::memcpy(left, a.data(), bytes);
    std::memcpy(right, b.data(), bytes);
  }
  table.reduce[index(t)][static_cast<int>(op)](dst, left, right, count);
  compare(name_of(op), t, dst, want.data(), count);
  for (unsigned char* p = room[0].data(); p != dst; ++p) CHECK_EQ(int{*p}, 0xa5);
  for (size_t i = 0; i < kMargin; ++i) CHECK_EQ(int{dst[bytes + i]}, 0xa5);
  if (left != dst) compare("left operand", t, left, a.data(), count);
  if (right != dst) compare("right operand", t, right, b.data(), count);
}

bool is_complex_type(DType t) { return t == DType::c64 || t == DType::c128; }

bool defined(DType t, Op op) {
  if (t == DType::q8) return op == Op::sum || op == Op::avg;
  const bool bitwise = op == Op::band || op == Op::bor || op == Op::bxor;
  if (is_complex_type(t)) return !bitwise && op != Op::min && op != Op::max;
  return index(t) >= kernels::kFloats || !bitwise;
}

}  // namespace

TEST(reductions_are_defined_where_they_have_a_meaning) {
  for (int t = 0; t < kDTypes; ++t) {
    for (int op = 0; op < kOps; ++op) {
      CHECK_EQ(reduce_fn(dtype_of(t), static_cast<Op>(op)) != nullptr, defined(dtype_of(t), static_cast<Op>(op)));
      for (const Table* table : tables())
        CHECK_EQ(table->reduce[t][op] != nullptr, defined(dtype_of(t), static_cast<Op>(op)));
    }
  }
}

TEST(reductions_equal_the_scalar_reference) {
  for (const Table* table : tables())
    for (int t = 0; t < kDTypes; ++t)
      for (int op = 0; op < kOps; ++op) {
        if (!defined(dtype_of(t), static_cast<Op>(op))) continue;
        for (const size_t count : kSizes)
          for (const size_t shift : {0, 1})
            for (const Alias alias : {Alias::none, Alias::left, Alias::right, Alias::both})
              check_reduce(*table, dtype_of(t), static_cast<Op>(op), count, shift, alias);
      }
}

TEST(every_pair_of_f8_reduces_as_the_reference) {
  for (const DType t : {DType::f8e4m3, DType::f8e5m2}) {
    Bytes a(65536), b(65536), want(65536), got(65536);
    for (size_t i = 0; i < a.size(); ++i) {
      a[i] = static_cast<unsigned char>(i);
      b[i] = static_cast<unsigned char>(i >> 8);
    }
    for (const Op op : {Op::sum, Op::prod, Op::min, Op::max}) {
      for (size_t i = 0; i < a.size(); ++i) reference::reduce(t, op, a.data(), b.data(), want.data(), i);
      for (const Table* table : tables()) {
        table->reduce[index(t)][static_cast<int>(op)](got.data(), a.data(), b.data(), a.size());
        compare(name_of(op), t, got.data(), want.data(), a.size());
      }
    }
  }
}

TEST(many_operands_give_the_bits_of_two_at_a_time) {
  for (const DType t : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::c128, DType::q8}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{1023}, size_t{20011}}) {
      for (int n = 1; n <= 5; ++n) {
        std::vector<Bytes> parts;
        for (int k = 0; k < n; ++k) parts.push_back(operands(t, count, 100 + static_cast<uint64_t>(k)));
        Bytes want = parts[0];
        for (int k = 1; k < n; ++k)
          reduce_fn(t, Op::sum)(want.data(), want.data(), parts[static_cast<size_t>(k)].data(), count);
        for (int alias = -1; alias < n; ++alias) {  // dst apart, then dst = each of the sources
          std::vector<Bytes> work = parts;
          Bytes apart(count * size_of(t));
          std::vector<const void*> sources;
          for (const Bytes& w : work) sources.push_back(w.data());
          unsigned char* dst = alias < 0 ? apart.data() : work[static_cast<size_t>(alias)].data();
          reduce_many(t, Op::sum, dst, sources.data(), n, count);
          compare("reduce_many", t, dst, want.data(), count);
        }
      }
    }
  }
  const void* sources[1] = {nullptr};
  bool refused = false;
  try {
    reduce_many(DType::f32, Op::bxor, nullptr, sources, 1, 0);
  } catch (const Failure& failure) {
    refused = failure.error().code == Code::invalid;
  }
  CHECK(refused);
}

// ---- formats

TEST(every_narrow_encoding_survives_the_way_to_f32_and_back) {
  for (const Table* table : tables())
    for (const DType t : kNarrow) {
      const size_t count = size_t{1} << (8 * size_of(t));
      Bytes all(count * size_of(t)), back(count * size_of(t));
      for (size_t i = 0; i < count; ++i) {
        if (size_of(t) == 2)
          put(all.data(), i, static_cast<uint16_t>(i));
        else
          put(all.data(), i, static_cast<uint8_t>(i));
      }
      std::vector<float> wide(count);
      table->unpack[index(t)](wide.data(), all.data(), count);
      table->pack[index(t)](back.data(), wide.data(), count);
      for (size_t i = 0; i < count; ++i) {
        const double value = decode(t, static_cast<uint32_t>(i));
        CHECK(same(static_cast<double>(wide[i]), value));
        if (!std::isnan(value))
          CHECK_EQ(narrow_bits(t, back.data(), i), static_cast<uint32_t>(i));
        else
          CHECK(std::isnan(decode(t, narrow_bits(t, back.data(), i))));
      }
    }
}

TEST(packing_rounds_to_nearest_even) {
  for (const DType t : kNarrow) {
    // Each value of the format, the middle to its neighbour, and one f32 step to either side; then random bits.
    std::vector<float> in;
    const uint32_t positive = 1u << (8 * size_of(t) - 1);
    for (uint32_t bits = 0; bits + 1 < positive; ++bits) {
      const double x = decode(t, bits), y = decode(t, bits + 1);
      const float middle = static_cast<float>(std::isfinite(y) ? (x + y) / 2 : x * 1.03);
      for (const float f :
           {static_cast<float>(x), middle, std::nextafterf(middle, 0.0f), std::nextafterf(middle, HUGE_VALF)})
        in.insert(in.end(), {f, -f});
    }
    const Bytes random = random_bytes(400000, 5);
    for (size_t i = 0; i < random.size() / sizeof(float); ++i) in.push_back(get<float>(random.data(), i));
    Bytes want(in.size() * size_of(t)), got(in.size() * size_of(t));
    for (size_t i = 0; i < in.size(); ++i) put_narrow(t, want.data(), i, static_cast<double>(in[i]));
    for (const Table* table : tables()) {
      table->pack[index(t)](got.data(), in.data(), in.size());
      compare("pack", t, got.data(), want.data(), in.size());
    }
  }
}

TEST(casts_between_all_floating_dtypes_round_once) {
  constexpr size_t kCount = 5003;
  for (int from = 0; from < kernels::kFloats; ++from) {
    for (int to = 0; to < kernels::kFloats; ++to) {
      const DType f = dtype_of(from), t = dtype_of(to);
      Bytes src = operands(f, kCount, 31), got(kCount * size_of(t)), want(kCount * size_of(t));
      if (f == DType::f64) {  // within the range of the narrower formats, and hair's breadths off their midpoints
        std::mt19937_64 random(3);
        for (size_t i = 3; i < kCount; ++i) {
          const double middle =
              std::ldexp(1.0 + 2 * static_cast<double>(random() % 2048), static_cast<int>(random() % 40) - 30);
          put(src.data(), i, i % 3 == 0 ? middle : std::nextafter(middle, i % 3 == 1 ? 0.0 : HUGE_VAL));
        }
      }
      cast(f, t, got.data(), src.data(), kCount);
      for (size_t i = 0; i < kCount; ++i) {
        double value[2] = {};
        floating_parts(f, src.data(), i, value);
        if (t == DType::f64)
          put(want.data(), i, value[0]);
        else if (t == DType::f32)
          put(want.data(), i, static_cast<float>(value[0]));
        else
          put_narrow(t, want.data(), i, value[0]);
      }
      compare(std::string("cast from ") + name_of(f), t, got.data(), want.data(), kCount);
      if (size_of(t) <= size_of(f)) {
        cast(f, t, src.data(), src.data(), kCount);
        compare("cast in place", t, src.data(), want.data(), kCount);
      }
    }
  }
}

TEST(casts_that_make_no_sense_are_refused) {
  char a[256] = {}, b[256] = {};
  int refused = 0;
  for (int from = 0; from < kDTypes; ++from)
    for (int to = 0; to < kDTypes; ++to) try {
        cast(dtype_of(from), dtype_of(to), a, b, 1);
      } catch (const Failure& failure) {
        CHECK(failure.error().code == Code::invalid);
        ++refused;
      }
  CHECK_EQ(refused, kDTypes * kDTypes - 6 * 6 - 12 - 2);
}

// ---- scale, divide

namespace {

template <class T>
T quotient(T value, uint64_t divisor) {
  if constexpr (std::is_signed_v<T>) return static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(divisor));
  return static_cast<T>(static_cast<uint64_t>(value) / divisor);
}

template <class T>
void check_integers(DType t) {
  using Limits = std::numeric_limits<T>;
  std::vector<T> in = {0, 1, 2, 3, 7, 100, Limits::max(), Limits::min(), static_cast<T>(Limits::max() - 1)};
  if (std::is_signed_v<T>)
    for (const int v : {-1, -3, -7, -100}) in.push_back(static_cast<T>(v));
  const Bytes random = random_bytes(500 * sizeof(T), 9);
  for (size_t i = 0; i < 500; ++i) in.push_back(get<T>(random.data(), i));
  for (const Table* table : tables()) {
    for (const uint64_t divisor : {uint64_t{2}, uint64_t{3}, uint64_t{7}, uint64_t{127}, uint64_t{1} << 31}) {
      std::vector<T> out = in;
      table->divide[index(t)](out.data(), out.size(), divisor);
      for (size_t i = 0; i < in.size(); ++i) CHECK_EQ(+out[i], +quotient(in[i], divisor));
    }
    for (const double factor : {1.0, 0.5, 3.0, -1.0, -2.5, 0.1, 1e30, -1e30, 0.0}) {
      std::vector<T> out(in.size());
      table->scale[index(t)](out.data(), in.data(), in.size(), factor);
      for (size_t i = 0; i < in.size(); ++i) {
        const long double exact = std::trunc(static_cast<long double>(in[i]) * static_cast<long double>(factor));
        const double narrow = std::trunc(static_cast<double>(in[i]) * factor);
        const long double value = sizeof(T) == 8 ? exact : static_cast<long double>(narrow);
        const T want = value >= static_cast<long double>(Limits::max())   ? Limits::max()
                       : value <= static_cast<long double>(Limits::min()) ? Limits::min()
                                                                          : static_cast<T>(value);
        CHECK_EQ(+out[i], +want);
      }
    }
    std::vector<T> out = in;
    table->scale[index(t)](out.data(), out.data(), out.size(), std::nan(""));
    for (const T v : out) CHECK_EQ(+v, +T{0});
  }
}

// The result of an f64 computation on the elements of `src`, each then rounded to t.
Bytes by_element(DType t, const Bytes& src, const std::function<double(double)>& f) {
  Bytes out(src.size());
  const bool pairs = is_complex_type(t);
  const size_t count = src.size() / size_of(t) * (pairs ? 2 : 1);
  const DType part = t == DType::c64 ? DType::f32 : t == DType::c128 ? DType::f64 : t;
  for (size_t i = 0; i < count; ++i) {
    double x[2] = {};
    floating_parts(part, src.data(), i, x);
    if (part == DType::f64)
      put(out.data(), i, f(x[0]));
    else if (part == DType::f32)
      put(out.data(), i, static_cast<float>(f(x[0])));
    else
      put_narrow(t, out.data(), i, static_cast<double>(static_cast<float>(f(x[0]))));
  }
  return out;
}

}  // namespace

TEST(integers_scale_and_divide_toward_zero) {
  check_integers<int8_t>(DType::i8);
  check_integers<int16_t>(DType::i16);
  check_integers<int32_t>(DType::i32);
  check_integers<int64_t>(DType::i64);
  check_integers<uint8_t>(DType::u8);
  check_integers<uint16_t>(DType::u16);
  check_integers<uint32_t>(DType::u32);
  check_integers<uint64_t>(DType::u64);
}

TEST(floats_scale_and_divide_with_one_rounding) {
  for (int i = 0; i < kDTypes; ++i) {
    const DType t = dtype_of(i);
    if (i >= kernels::kFloats && !is_complex_type(t)) continue;
    for (const size_t count : kSizes) {
      const Bytes src = operands(t, count, 77);
      for (const Table* table : tables()) {
        for (const double factor : {0.25, 3.0, 0.1, -1.0 / 3}) {
          // f16 and narrower take the factor as f32.
          const bool narrow = size_of(t) <= 2;
          const double used = narrow ? static_cast<double>(static_cast<float>(factor)) : factor;
          const Bytes want = by_element(t, src, [used](double x) { return x * used; });
          Bytes got(src.size() + 1);
          table->scale[i](got.data() + 1, src.data(), count, factor);
          compare("scale", t, got.data() + 1, want.data(), count);
        }
        for (const uint64_t divisor : {2, 3, 5, 8}) {
          const double by = static_cast<double>(divisor);
          const Bytes want = by_element(t, src, [by](double x) { return x / by; });
          Bytes got = src;
          table->divide[i](got.data(), count, divisor);
          compare("divide", t, got.data(), want.data(), count);
        }
      }
    }
  }
}

TEST(the_public_scale_and_divide_take_every_dtype) {
  for (int i = 0; i < kDTypes; ++i) {
    const DType t = dtype_of(i);
    const Bytes src = operands(t, 64, 3);
    Bytes got = src;
    scale(t, got.data(), src.data(), 64, 1.0);
    compare("scale by one", t, got.data(), src.data(), 64);
    divide(t, got.data(), 64, 1);
    compare("divide by one", t, got.data(), src.data(), 64);
    scale(t, nullptr, nullptr, 0, 2.0);
  }
  unsigned char truth[3] = {0, 1, 1};
  divide(DType::boolean, truth, 3, 4);
  CHECK_EQ(truth[0] + 2 * truth[1] + 4 * truth[2], 6);
  scale(DType::boolean, truth, truth, 3, 0.25);
  CHECK_EQ(truth[0] + 2 * truth[1] + 4 * truth[2], 6);
  scale(DType::boolean, truth, truth, 3, 0.0);
  CHECK_EQ(truth[0] + truth[1] + truth[2], 0);
}

// ---- block-int8

namespace {

constexpr size_t kBlock = numbers_of(DType::q8);

float scale_of(const Bytes& blocks, size_t k) { return get<float>(blocks.data() + k * size_of(DType::q8), 0); }

}  // namespace

TEST(blocks_keep_numbers_within_half_a_unit) {
  std::mt19937_64 random(4);
  std::normal_distribution<float> normal;
  for (const size_t count : {size_t{0}, size_t{1}, size_t{2}, size_t{79}}) {
    std::vector<float> in(count * kBlock), out(in.size());
    for (float& x : in) x = normal(random) * (random() % 50 == 0 ? 100.0f : 1.0f);
    Bytes want(count * size_of(DType::q8));
    for (size_t k = 0; k < count; ++k)
      reference::pack_block(in.data() + k * kBlock, want.data() + k * size_of(DType::q8));
    for (const Table* table : tables()) {
      Bytes packed(want.size() + 2, 0xa5);
      Bytes shifted(in.size() * sizeof(float) + 1);
      if (count != 0) std::memcpy(shifted.data() + 1, in.data(), in.size() * sizeof(float));
      table->pack_blocks(packed.data() + 1, shifted.data() + 1, count);
      CHECK_EQ(int{packed.front()}, 0xa5);
      CHECK_EQ(int{packed.back()}, 0xa5);
      compare("pack", DType::q8, packed.data() + 1, want.data(), count);
      table->unpack_blocks(out.data(), packed.data() + 1, count);
      for (size_t i = 0; i < in.size(); ++i) CHECK(std::fabs(out[i] - in[i]) <= scale_of(want, i / kBlock) * 0.5001f);
    }
    std::vector<float> place = in;
    cast(DType::f32, DType::q8, place.data(), place.data(), count);
    compare("cast in place", DType::q8, place.data(), want.data(), count);
    cast(DType::q8, DType::f32, place.data(), want.data(), count);
    CHECK(place == out);
  }
}

TEST(blocks_show_what_they_cannot_hold) {
  constexpr size_t kCount = 6;
  std::vector<float> in(kCount * kBlock, 1.0f), out(in.size());
  const auto number = [&in](size_t block, size_t i) -> float& { return in[block * kBlock + i]; };
  number(0, 5) = std::nanf("");
  number(1, 63) = -HUGE_VALF;
  number(2, 0) = 127.0f;
  number(2, 1) = -63.5f;  // ties: to even
  number(2, 2) = 62.5f;
  for (size_t i = 0; i < kBlock; ++i) {
    number(3, i) = 0x1p-119f;  // its scale would be below 2^-125
    number(4, i) = -0.0f;
    number(5, i) = 127 * 0x1p-125f;
  }
  for (const Table* table : tables()) {
    Bytes packed(kCount * size_of(DType::q8));
    table->pack_blocks(packed.data(), in.data(), kCount);
    table->unpack_blocks(out.data(), packed.data(), kCount);
    for (size_t i = 0; i < 2 * kBlock; ++i) CHECK(std::isnan(out[i]));
    for (size_t i = 4; i < 2 * size_of(DType::q8); ++i)
      if (i % size_of(DType::q8) >= 4) CHECK_EQ(int{packed[i]}, 0);
    CHECK_EQ(out[2 * kBlock], 127.0f);
    CHECK_EQ(out[2 * kBlock + 1], -64.0f);
    CHECK_EQ(out[2 * kBlock + 2], 62.0f);
    CHECK_EQ(out[3 * kBlock - 1], 1.0f);
    for (size_t i = 3 * kBlock; i < 5 * kBlock; ++i) CHECK(same(static_cast<double>(out[i]), 0.0));
    CHECK_EQ(out.back(), 127 * 0x1p-125f);
  }
}

TEST(blocks_scale_and_divide_by_their_scales) {
  constexpr size_t kCount = 333;
  const Bytes src = operands(DType::q8, kCount, 5);
  const auto check = [&src](const char* what, const Bytes& got, const std::function<double(double)>& f) {
    Bytes want = src;
    for (size_t k = 0; k < kCount; ++k) {
      const float scale = static_cast<float>(f(static_cast<double>(scale_of(src, k))));
      const float held = !std::isfinite(scale) ? std::nanf("") : std::fabs(scale) < 0x1p-125f ? 0.0f : scale;
      put(want.data() + k * size_of(DType::q8), 0, held);
    }
    compare(what, DType::q8, got.data(), want.data(), kCount);
  };
  for (const Table* table : tables()) {
    for (const double factor : {1.0, 0.5, -0.1, 1e3, 0.0, std::nan("")}) {
      Bytes got(src.size());
      table->scale[index(DType::q8)](got.data(), src.data(), kCount, factor);
      check("scale", got, [factor](double x) { return x * factor; });
      got = src;
      table->scale[index(DType::q8)](got.data(), got.data(), kCount, factor);
      check("scale in place", got, [factor](double x) { return x * factor; });
    }
    Bytes got = src;
    table->divide[index(DType::q8)](got.data(), kCount, 3);
    check("divide", got, [](double x) { return x / 3; });
  }
}

// ---- dispatch

TEST(the_level_can_be_lowered_but_not_misspelt) {
  CHECK(kernels::choose_level("baseline") == Level::baseline);
  CHECK(kernels::choose_level("") == kernels::choose_level(nullptr));
  CHECK(kernels::choose_level("avx2") <= Level::avx2);
  CHECK(kernels::table_of(kernels::choose_level(nullptr)) != nullptr);
  bool refused = false;
  try {
    kernels::choose_level("AVX9");
  } catch (const Failure& failure) {
    refused = failure.error().code == Code::invalid && std::strstr(failure.what(), "SLIPSTREAM_CPU") != nullptr;
  }
  CHECK(refused);
  const std::string level = cpu_level();
  CHECK(level == "avx512" || level == "avx2" || level == "baseline" || level == "neon");
}

// Ranks with other processors compute the same sums: their bits must be equal.
TEST(every_level_has_the_same_nan_in_narrow_formats) {
  for (const DType t : kNarrow) {
    const size_t count = 4099;
    const Bytes a = random_bytes(count * size_of(t), 5), b = random_bytes(count * size_of(t), 6);
    const size_t nan = t == DType::f16 ? 0x7e00 : t == DType::bf16 ? 0x7fc0 : 0x7f;
    for (const Op op : {Op::sum, Op::prod, Op::min, Op::max}) {
      Bytes first;
      for (const Table* table : tables()) {
        Bytes out(a.size());
        table->reduce[index(t)][static_cast<int>(op)](out.data(), a.data(), b.data(), count);
        if (first.empty()) first = out;
        CHECK(out == first);
        size_t other = 0;
        for (size_t i = 0; i < count; ++i) {
          const size_t bits = narrow_bits(t, out.data(), i);
          other += std::isnan(decode(t, bits)) && bits != nan;
        }
        CHECK_EQ(other, size_t{0});
      }
    }
  }
}

TEST(copies_past_the_cache_are_whole_wherever_they_begin) {
  CHECK(last_level_cache() >= 64 << 10 && last_level_cache() <= 128 << 20);
  const Bytes from = random_bytes(1000, 7);
  for (size_t at = 0; at < 130; at += 13)
    for (size_t offset = 0; offset < 70; offset += 9)
      for (const size_t bytes : {0, 1, 63, 64, 65, 127, 128, 300, 800}) {
        Bytes to(1000, 0xa5);
        copy_past_cache(to.data() + at, from.data() + offset, bytes);
        for (size_t i = 0; i < to.size(); ++i)
          CHECK(to[i] == (i >= at && i < at + bytes ? from[offset + i - at] : 0xa5));
      }
}
