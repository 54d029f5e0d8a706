// Sums of short floats, kept as f32 while a windowed work adds to them, and rounded once, at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "engine/work.h"

namespace slipstream {

class WideSums {
 public:
  // `ring_elements`: those of the work's ring (WorkMemory); 0: no sums are kept.
  WideSums(const Request& request, uint64_t ring_elements);

  // True if the sums of this work are kept here.
  explicit operator bool() const { return sums_ != nullptr; }
  // What arrives is the first term of a sum, or one more.
  void set(uint64_t element, const std::byte* data, uint64_t count);
  void add(uint64_t element, const std::byte* data, uint64_t count);
  // Divides and scales sums as the request says, and rounds them into `dst`.
  void finish(uint64_t element, std::byte* dst, uint64_t count);

 private:
  float* at(uint64_t element) const { return sums_.get() + element % ring_elements_ * numbers_of(dtype_); }

  const Request& request_;
  DType dtype_;
  Op op_;
  uint64_t ring_elements_;
  std::unique_ptr<float[]> sums_;
  std::vector<float> term_;  // what is added, as f32
};

}  // namespace slipstream
