#include "lines/neutral.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "capi/table.h"
#include "lines/form.h"
#include "lines/plan.h"

namespace slipstream::lines {

namespace {

size_t bytes_of(int32_t dtype) { return capi::table(SLIPSTREAM_API_VERSION)->dtype_bytes(dtype); }

bool is_signed(int32_t dtype) {
  return dtype == SLIPSTREAM_I8 || dtype == SLIPSTREAM_I16 || dtype == SLIPSTREAM_I32 || dtype == SLIPSTREAM_I64;
}

uint64_t one_of(int32_t dtype) {
  switch (dtype) {
    case SLIPSTREAM_F64:
    case SLIPSTREAM_C128:
      return std::bit_cast<uint64_t>(1.0);
    case SLIPSTREAM_F32:
    case SLIPSTREAM_C64:
      return std::bit_cast<uint32_t>(1.0F);
    case SLIPSTREAM_F16:
      return 0x3C00;
    case SLIPSTREAM_BF16:
      return 0x3F80;
    case SLIPSTREAM_F8E4M3:
      return 0x38;
    case SLIPSTREAM_F8E5M2:
      return 0x3C;
    default:
      return 1;
  }
}

uint64_t highest_of(int32_t dtype) {
  switch (dtype) {
    case SLIPSTREAM_F64:
      return std::bit_cast<uint64_t>(std::numeric_limits<double>::infinity());
    case SLIPSTREAM_F32:
      return std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
    case SLIPSTREAM_F16:
      return 0x7C00;
    case SLIPSTREAM_BF16:
      return 0x7F80;
    case SLIPSTREAM_F8E4M3:
      return 0x7E;  // 448: it has no infinity
    case SLIPSTREAM_F8E5M2:
      return 0x7C;
    case SLIPSTREAM_BOOL:
      return 1;
    default:
      return is_signed(dtype) ? UINT64_MAX >> (65 - 8 * bytes_of(dtype)) : UINT64_MAX;
  }
}

uint64_t lowest_of(int32_t dtype) {
  switch (dtype) {
    case SLIPSTREAM_F64:
      return std::bit_cast<uint64_t>(-std::numeric_limits<double>::infinity());
    case SLIPSTREAM_F32:
      return std::bit_cast<uint32_t>(-std::numeric_limits<float>::infinity());
    case SLIPSTREAM_F16:
      return 0xFC00;
    case SLIPSTREAM_BF16:
      return 0xFF80;
    case SLIPSTREAM_F8E4M3:
      return 0xFE;
    case SLIPSTREAM_F8E5M2:
      return 0xFC;
    default:
      return is_signed(dtype) ? uint64_t{1} << (8 * bytes_of(dtype) - 1) : 0;
  }
}

}  // namespace

void fill_neutral(int32_t dtype, int32_t op, std::vector<std::byte>& memory) {
  if (memory.empty()) return;
  std::memset(memory.data(), 0, memory.size());
  if (op != SLIPSTREAM_PROD && op != SLIPSTREAM_MIN && op != SLIPSTREAM_MAX) return;
  const uint64_t pattern = op == SLIPSTREAM_PROD  ? one_of(dtype)
                           : op == SLIPSTREAM_MIN ? highest_of(dtype)
                                                  : lowest_of(dtype);
  const size_t step = bytes_of(dtype);
  // Of a complex number, the imaginary part stays 0.
  const bool complex = dtype == SLIPSTREAM_C64 || dtype == SLIPSTREAM_C128;
  const size_t bytes = std::min(complex ? step / 2 : step, sizeof pattern);
  for (size_t at = 0; at + step <= memory.size(); at += step) std::memcpy(memory.data() + at, &pattern, bytes);
}

void plan_neutral(std::string_view form, Planned& operation) {
  const Asked asked = asked_in(form);
  plan(asked, operands_in(form), operation);
  for (size_t i = 0; i < operation.calls.size(); ++i) {
    slipstream_call& call = operation.calls[i];
    Pack& pack = operation.packs[i];
    pack.parts.clear();
    pack.memory.resize(call.count * bytes_of(call.dtype));
    fill_neutral(call.dtype, asked.collective == SLIPSTREAM_ALL_REDUCE ? asked.op : SLIPSTREAM_SUM, pack.memory);
    call.src = call.dst = pack.memory.data();
  }
}

}  // namespace slipstream::lines
