// What the workers tell each other at the end of a large all-reduce. All get the bitwise or of what each has said.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace slipstream {

class Verdict {
 public:
  explicit Verdict(size_t reducers) : words_(kHeader + 2 * reducers) {}

  std::byte* data() { return reinterpret_cast<std::byte*>(words_.data()); }
  size_t bytes() const { return 8 * words_.size(); }

  // The reducers whose part somebody has not all of.
  void set_lost(uint32_t reducers) { words_[0] = reducers; }
  uint64_t lost() const { return words_[0]; }
  bool is_lost(size_t reducer) const { return (words_[0] >> reducer & 1) != 0; }
  // The reducers that somebody cannot use.
  void set_unusable(size_t reducer) { words_[1] |= uint64_t{1} << reducer; }
  bool is_unusable(size_t reducer) const { return (words_[1] >> reducer & 1) != 0; }
  // Rank 0 alone says these: which session is a reducer's, and which rate it counts with.
  void set_incarnation(size_t reducer, uint64_t incarnation) { words_[kHeader + 2 * reducer] = incarnation; }
  uint64_t incarnation(size_t reducer) const { return words_[kHeader + 2 * reducer]; }
  void set_rate(size_t reducer, double rate) {
    words_[kHeader + 2 * reducer + 1] = static_cast<uint64_t>(rate * kRateUnit);
  }
  double rate(size_t reducer) const { return static_cast<double>(words_[kHeader + 2 * reducer + 1]) / kRateUnit; }

 private:
  static constexpr size_t kHeader = 2;        // words before those of the reducers
  static constexpr double kRateUnit = 65536;  // a rate of 1

  std::vector<uint64_t> words_;
};

}  // namespace slipstream
