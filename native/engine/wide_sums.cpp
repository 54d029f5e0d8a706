#include "engine/wide_sums.h"

#include "kernels/kernels.h"

namespace slipstream {

namespace {

bool is_short_float(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f8e4m3 || dtype == DType::f8e5m2 ||
         dtype == DType::q8;
}

}  // namespace

WideSums::WideSums(const Request& request, uint64_t ring_elements)
    : request_(request), dtype_(dtype_of(request)), op_(op_of(request)), ring_elements_(ring_elements) {
  if (ring_elements != 0 && is_short_float(dtype_)) sums_.reset(new float[ring_elements * numbers_of(dtype_)]);
}

void WideSums::set(uint64_t element, const std::byte* data, uint64_t count) {
  cast(dtype_, DType::f32, at(element), data, count);
}

void WideSums::add(uint64_t element, const std::byte* data, uint64_t count) {
  const uint64_t numbers = count * numbers_of(dtype_);
  float* sum = at(element);
  term_.resize(numbers);
  cast(dtype_, DType::f32, term_.data(), data, count);
  reduce_fn(DType::f32, op_)(sum, term_.data(), sum, numbers);
}

void WideSums::finish(uint64_t element, std::byte* dst, uint64_t count) {
  const uint64_t numbers = count * numbers_of(dtype_);
  float* sum = at(element);
  if (request_.divisor > 1) divide(DType::f32, sum, numbers, request_.divisor);
  if (request_.postscale != 1.0) scale(DType::f32, sum, sum, numbers, request_.postscale);
  cast(DType::f32, dtype_, dst, sum, count);
}

}  // namespace slipstream
