#include "kernels/kernels.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/cpu_features.h"
#include "base/error.h"
#include "kernels/table.h"

namespace slipstream {

namespace kernels {

namespace {

bool has(Level level) {
  if (level == Level::baseline) return true;
#if defined(__x86_64__)
  const CpuFeatures cpu = cpu_features();
  const bool avx2 = cpu.avx2 && cpu.f16c;
  if (level == Level::avx2) return avx2;
  return avx2 && cpu.avx512f && cpu.avx512bw && cpu.avx512vl && cpu.avx512dq;
#else
  return false;
#endif
}

const char* name_of(Level level) {
  switch (level) {
    case Level::avx512:
      return "avx512";
    case Level::avx2:
      return "avx2";
    case Level::baseline:
      break;
  }
#if defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

struct Chosen {
  Level level;
  const Table* table;
};

// Chosen on first use, once for the process.
const Chosen& chosen() {
  static const Chosen choice = [] {
    const Level level = choose_level(std::getenv("SLIPSTREAM_CPU"));
    return Chosen{level, table_of(level)};
  }();
  return choice;
}

}  // namespace

const Table* table_of(Level level) {
  if (!has(level)) return nullptr;
#if defined(__x86_64__)
  if (level == Level::avx512) return &kAvx512Table;
  if (level == Level::avx2) return &kAvx2Table;
#endif
  return &kBaselineTable;
}

Level choose_level(const char* wanted) {
  int highest = kLevels - 1;
  if (wanted != nullptr && *wanted != '\0') {
    const std::string word = wanted;
    if (word == "baseline")
      highest = 0;
    else if (word == "avx2")
      highest = 1;
    else if (word != "avx512")
      throw Failure(Code::invalid, "SLIPSTREAM_CPU=" + word + ": use baseline, avx2 or avx512, or unset it");
  }
  while (!has(static_cast<Level>(highest))) --highest;
  return static_cast<Level>(highest);
}

}  // namespace kernels

namespace {

const kernels::Table& table() { return *kernels::chosen().table; }

bool is_floating(DType t) { return static_cast<int>(t) < kernels::kFloats; }

}  // namespace

ReduceFn reduce_fn(DType dtype, Op op) { return table().reduce[static_cast<int>(dtype)][static_cast<int>(op)]; }

void reduce_many(DType dtype, Op op, void* dst, const void* const* srcs, int n, size_t count) {
  const ReduceFn fn = reduce_fn(dtype, op);
  if (fn == nullptr) throw Failure(Code::invalid, std::string(name_of(op)) + " is not defined for " + name_of(dtype));
  if (n < 1) throw Failure(Code::invalid, "reduce_many needs at least one source");
  const size_t element = size_of(dtype);
  if (n == 1) return copy(dst, srcs[0], count * element);
  // Partial results stay in a tile of the first-level cache; only the last operand's turn writes dst, which may
  // therefore be any of the sources.
  alignas(64) std::byte tile[8192];
  const size_t step = sizeof(tile) / element;
  for (size_t done = 0; done < count; done += step) {
    const size_t m = std::min(step, count - done);
    const size_t offset = done * element;
    const auto at = [offset, srcs](int k) { return static_cast<const std::byte*>(srcs[k]) + offset; };
    const void* left = at(0);
    for (int k = 1; k + 1 < n; ++k) {
      fn(tile, left, at(k), m);
      left = tile;
    }
    fn(static_cast<std::byte*>(dst) + offset, left, at(n - 1), m);
  }
}

void scale(DType dtype, void* dst, const void* src, size_t count, double factor) {
  if (count != 0) table().scale[static_cast<int>(dtype)](dst, src, count, factor);
}

void divide(DType dtype, void* buf, size_t count, uint64_t divisor) {
  if (divisor > 1) table().divide[static_cast<int>(dtype)](buf, count, divisor);
}

void cast(DType from, DType to, void* dst, const void* src, size_t count) {
  if (from == to) {
    if (count != 0) std::memmove(dst, src, count * size_of(from));
    return;
  }
  if (from == DType::q8 && to == DType::f32) return table().unpack_blocks(dst, src, count);
  if (from == DType::f32 && to == DType::q8) return table().pack_blocks(dst, src, count);
  if (!is_floating(from) || !is_floating(to))
    throw Failure(Code::invalid, std::string("no cast from ") + name_of(from) + " to " + name_of(to));
  const kernels::Table& t = table();
  const auto unpack = from == DType::f64 && to == DType::f32 ? t.round_f64 : t.unpack[static_cast<int>(from)];
  const auto pack = t.pack[static_cast<int>(to)];
  alignas(64) float wide[1024];
  for (size_t done = 0; done < count; done += std::size(wide)) {
    const size_t n = std::min(std::size(wide), count - done);
    unpack(wide, static_cast<const std::byte*>(src) + done * size_of(from), n);
    pack(static_cast<std::byte*>(dst) + done * size_of(to), wide, n);
  }
}

void encode(WireType wire, void* dst, const void* src, size_t count) {
  table().encode[static_cast<int>(wire) - 1](dst, src, count);
}

void decode(WireType wire, void* dst, const void* src, size_t count) {
  table().decode[static_cast<int>(wire) - 1](dst, src, count);
}

void decode_add(WireType wire, void* dst, const void* own, const void* src, size_t count) {
  table().decode_add[static_cast<int>(wire) - 1](dst, own, src, count);
}

void round_to(WireType wire, void* data, size_t count) {
  constexpr uint64_t kNumbers = 8 * kWireBlock;  // the encoded ones stay in the first-level cache
  std::byte encoded[wire_bytes(WireType::f16, kNumbers)];
  auto* numbers = static_cast<std::byte*>(data);
  for (size_t done = 0; done < count; done += kNumbers) {
    const size_t n = std::min<size_t>(kNumbers, count - done);
    encode(wire, encoded, numbers + done * sizeof(float), n);
    decode(wire, numbers + done * sizeof(float), encoded, n);
  }
}

const char* cpu_level() { return kernels::name_of(kernels::chosen().level); }

void copy(void* dst, const void* src, size_t bytes) {
  if (bytes != 0) std::memcpy(dst, src, bytes);
}

void copy_past_cache(void* dst, const void* src, size_t bytes) {
  if (bytes != 0) table().copy_past_cache(dst, src, bytes);
}

size_t last_level_cache() {
  // sysconf(_SC_LEVEL3_CACHE_SIZE) counts the caches of all sockets on some virtual machines. What the system says of
  // one cache may be that of a whole socket, too, of whose cores a virtual machine has a few.
  static const size_t bytes = [] {
    constexpr size_t kMost = size_t{128} << 20;
    size_t kib = 0;
    if (std::FILE* file = std::fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re")) {
      if (std::fscanf(file, "%zuK", &kib) != 1) kib = 0;
      std::fclose(file);
    }
    return kib != 0 ? std::min(kib << 10, kMost) : size_t{32} << 20;
  }();
  return bytes;
}

}  // namespace slipstream
