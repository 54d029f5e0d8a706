// An Error as bytes, for abort frames: code u8, rank i32, u16 + host, u16 + text. Little-endian, bounded.
#pragma once

#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cut.h"
#include "base/error.h"
#include "transport/frame.h"

namespace slipstream {

inline constexpr size_t kMostErrorHost = 255;
inline constexpr size_t kMostErrorText = 4000;
static_assert(1 + 4 + 2 + kMostErrorHost + 2 + kMostErrorText <= kMostReasonBytes);

inline std::vector<std::byte> encode_error(const Error& error) {
  std::vector<std::byte> out;
  const auto put = [&out](const void* data, size_t n) {
    const auto* p = static_cast<const std::byte*>(data);
    out.insert(out.end(), p, p + n);
  };
  const auto put_text = [&put](const std::string& s, size_t most) {
    const std::string bounded = cut(s, most);
    const auto n = static_cast<uint16_t>(bounded.size());
    put(&n, sizeof(n));
    put(bounded.data(), n);
  };
  const auto code = static_cast<uint8_t>(error.code);
  const auto rank = static_cast<int32_t>(error.rank);
  put(&code, sizeof(code));
  put(&rank, sizeof(rank));
  put_text(error.host, kMostErrorHost);
  put_text(error.text, kMostErrorText);
  return out;
}

inline std::optional<Error> decode_error(std::span<const std::byte> in) {
  const auto take = [&in](void* data, size_t n) {
    if (in.size() < n) return false;
    if (n > 0) std::memcpy(data, in.data(), n);
    in = in.subspan(n);
    return true;
  };
  const auto take_text = [&take](std::string& s) {
    uint16_t n = 0;
    if (!take(&n, sizeof(n))) return false;
    s.resize(n);
    return take(s.data(), n);
  };
  uint8_t code = 0;
  int32_t rank = -1;
  Error error;
  if (!take(&code, sizeof(code)) || !take(&rank, sizeof(rank)) || !take_text(error.host) || !take_text(error.text))
    return std::nullopt;
  if (code == 0 || code > static_cast<uint8_t>(Code::internal)) return std::nullopt;
  error.code = static_cast<Code>(code);
  error.rank = rank;
  return error;
}

}  // namespace slipstream
