// A fuzzer's bytes, taken piece by piece; zeros follow when they are used up. And what harnesses say when a promise
// is broken.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>

namespace slipstream::fuzz {

inline void require(bool kept, const char* promise) {
  if (kept) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }
  template <class T>
  T value() {
    static_assert(std::is_trivially_copyable_v<T>);
    T v{};
    const auto taken = bytes(sizeof(T));
    if (!taken.empty()) std::memcpy(&v, taken.data(), taken.size());
    return v;
  }
  uint8_t byte() { return value<uint8_t>(); }
  // 0 to n - 1.
  size_t below(size_t n) { return byte() % n; }
  bool chance(size_t one_in) { return below(one_in) == one_in - 1; }
  // One of `choices`, and now and then anything.
  template <class T, size_t N>
  T one_of(const T (&choices)[N]) {
    const size_t i = below(N + 1);
    return i < N ? choices[i] : value<T>();
  }
  // At most `most` bytes.
  std::span<const std::byte> bytes(size_t most) {
    const auto taken = left_.first(std::min(most, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() { return bytes(left_.size()); }

 private:
  std::span<const std::byte> left_;
};

}  // namespace slipstream::fuzz
