#include "engine/step_operator.h"

#include <algorithm>

namespace slipstream {

StepOperator::StepOperator(const Request& request, const Geometry& geometry, const WorkMemory& memory,
                           ScaledInput& scaled, Terms terms)
    : request_(request),
      geometry_(geometry),
      memory_(memory),
      scaled_(scaled),
      terms_(terms),
      reduce_(reduce_fn(geometry.dtype(), op_of(request))),
      wide_(request, memory.ring_elements()) {}

void StepOperator::apply(const Step& step, uint64_t chunk) {
  for (uint32_t j = 0; j < geometry_.pieces(step); ++j) {
    Geometry::Extent to = geometry_.piece(step.dst, step, chunk, j);
    if (request_.ragged) to.count = std::min(to.count, geometry_.piece(step.src, step, chunk, j).count);
    if (to.count == 0) continue;
    if (step.kind == StepKind::finish) {
      finish(step, to);
      continue;
    }
    std::byte* dst = memory_.at(step.dst, to.offset);
    const std::byte* src = scaled_.read(step, at(step.src, step, chunk, j), to.count);
    if (step.kind == StepKind::reduce)
      reduce_(dst, dst, src, to.count);
    else if (src != dst)
      copy_of(step)(dst, src, to.count * geometry_.element_bytes());
    // It is the same on all ranks, whoever has it from where.
    if (step.src == Space::in) round_moved(step, to);
  }
}

void StepOperator::finish(const Step& step, const Geometry::Extent& to) {
  std::byte* dst = memory_.at(step.dst, to.offset);
  if (wide_) return wide_.finish(to.offset, dst, to.count);
  if (request_.divisor > 1) divide(geometry_.dtype(), dst, to.count, request_.divisor);
  if (request_.postscale != 1.0) scale(geometry_.dtype(), dst, dst, to.count, request_.postscale);
  if (terms_.rounds && step.given) round(step, to);
}

void StepOperator::round_moved(const Step& step, const Geometry::Extent& to) const {
  if (terms_.rounds && !request_.signature.reduces) round(step, to);
}

void StepOperator::round(const Step& step, const Geometry::Extent& to) const {
  std::byte* dst = memory_.at(step.dst, to.offset);
  geometry_.each_block(step.dst, step, to, [&](uint64_t before, uint64_t count) {
    round_to(geometry_.wire(), dst + before * sizeof(float), count);
  });
}

void StepOperator::absorb(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data, size_t bytes) {
  if (geometry_.is_encoded(step))
    absorb_encoded(step, chunk, piece, data);
  else
    absorb_exact(step, chunk, piece, data, bytes);
}

void StepOperator::absorb_exact(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data, size_t bytes) {
  const Geometry::Extent to = geometry_.piece(step.dst, step, chunk, piece);
  std::byte* dst = memory_.at(step.dst, to.offset);
  const bool first = step.kind == StepKind::recv;
  if (wide_) {
    if (first)
      wide_.set(to.offset, data, to.count);
    else
      wide_.add(to.offset, data, to.count);
  } else if (first) {
    if (data != dst && bytes > 0) copy_of(step)(dst, data, bytes);
  } else {
    const std::byte* own = scaled_.read(step, at(step.src, step, chunk, piece), to.count);
    const bool lower = step.peer < request_.plan->rank();  // the lower rank's partial sum stands on the left
    reduce_(dst, lower ? data : own, lower ? own : data, to.count);
  }
}

void StepOperator::absorb_encoded(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data) {
  const Geometry::Extent to = geometry_.piece(step.dst, step, chunk, piece);
  std::byte* dst = memory_.at(step.dst, to.offset);
  const std::byte* own = nullptr;
  if (step.kind == StepKind::recv_reduce) own = scaled_.read(step, at(step.src, step, chunk, piece), to.count);
  geometry_.each_block(step.dst, step, to, [&](uint64_t before, uint64_t count) {
    const uint64_t at_byte = before * sizeof(float);
    if (own == nullptr)
      decode(geometry_.wire(), dst + at_byte, data, count);
    else
      decode_add(geometry_.wire(), dst + at_byte, own + at_byte, data, count);
    data += wire_bytes(geometry_.wire(), count);
  });
}

}  // namespace slipstream
