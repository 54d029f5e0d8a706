// What the ranks of a line tell each other of an operation that some of them have joined, or call differently.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensorflow/ticket.h"

namespace slipstream::tensorflow {

// A block of each rank, one after another. One that is all zeros is of a rank that has joined.
class Explanation {
 public:
  // The longest form, in bytes. It is that of some 40,000 tensors.
  static constexpr size_t kMostForm = 1 << 20;

  // `form_bytes`: of the longest form, as the ranks have told. Throws Failure, if it is above `kMostForm`.
  Explanation(size_t ranks, size_t form_bytes);

  // Of a block.
  size_t bytes() const { return bytes_; }
  std::byte* of(size_t rank) { return memory_.data() + rank * bytes_; }
  // Throws Failure, if the form is longer than the longest that the ranks have told of.
  void write(size_t rank, const Ticket& ticket);

  // Once it has all blocks: why the operation cannot be, or "". `ranks`: the group's, by their numbers in the job.
  std::string problem(const std::vector<int32_t>& ranks) const;
  // Whether ranks are in different functions.
  bool has_functions() const;
  // If there is no problem, and some rank has not joined: the operation's.
  std::string_view form() const;
  std::string label() const;

 private:
  struct Told;
  const Told& told(size_t rank) const;
  size_t first() const;
  std::string_view form(size_t rank) const;
  std::string damage(size_t rank, int32_t number) const;
  std::string without_root(const std::vector<int32_t>& ranks) const;

  const size_t ranks_, bytes_;
  std::vector<std::byte> memory_;
};

}  // namespace slipstream::tensorflow
