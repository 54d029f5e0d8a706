#include "engine/geometry.h"

#include "transport/frame.h"

namespace slipstream {

Geometry::Geometry(const Request& request)
    : plan_(*request.plan),
      layouts_(request.spaces),
      dtype_(dtype_of(request)),
      wire_(wire_of(request)),
      element_(size_of(dtype_)),
      chunk_elements_(slipstream::chunk_elements(request)) {
  const auto& steps = plan_.steps();
  for (size_t s = 0; s < steps.size(); ++s) {
    const Step& step = steps[s];
    const Space space = step.kind == StepKind::send ? step.src : step.dst;
    if (one_piece(space, step)) {
      merged_.resize(steps.size());
      merged_[s] = 1;
    }
    for (int b = step.block; b < step.block + step.count; ++b)
      largest_block_ = std::max(largest_block_, block(space, b + 1) - block(space, b));
  }
  chunks_ = std::max<uint64_t>(1, (largest_block_ + chunk_elements_ - 1) / chunk_elements_);
}

// True if all blocks of a step travel as one piece. Both ends of a message must decide alike: only what both know of it
// counts, the sizes of its blocks, and nothing that a rank sees in the other steps of its own plan.
bool Geometry::one_piece(Space space, const Step& step) const {
  if (step.count < 2 || elements(space, step) * element_ > kMaxPayload) return false;
  for (int b = step.block; b < step.block + step.count; ++b)
    if (block(space, b + 1) - block(space, b) > chunk_elements_) return false;
  return true;
}

void Geometry::fold_tmp(uint64_t window) {
  // What is one piece is not cut into chunks. Blocks of uneven sizes get as much each as the largest.
  const uint64_t fold = window * chunk_elements_;
  if (window < chunks_ && merged_.empty() && static_cast<uint64_t>(plan_.blocks()) * fold < elements(Space::tmp))
    tmp_fold_ = fold;
}

uint64_t Geometry::tmp_elements() const {
  if (tmp_fold_ == 0) return elements(Space::tmp);
  return static_cast<uint64_t>(plan_.blocks()) * tmp_fold_;
}

bool Geometry::is_empty(Space space, const Step& step, uint64_t chunk) const {
  for (uint32_t j = 0; j < pieces(step); ++j)
    if (piece(space, step, chunk, j).count != 0) return false;
  return true;
}

uint64_t Geometry::bytes(Space space, const Step& step, uint64_t chunk, uint32_t index) const {
  const Extent whole = piece(space, step, chunk, index);
  if (!is_encoded(step)) return whole.count * element_;
  uint64_t bytes = 0;
  each_block(space, step, whole, [&](uint64_t, uint64_t count) { bytes += wire_bytes(wire_, count); });
  return bytes;
}

uint64_t Geometry::traffic(Space space, const Step& step) const {
  if (!is_encoded(step)) return elements(space, step) * element_;
  uint64_t bytes = 0;
  for (int b = step.block; b < step.block + step.count; ++b)
    bytes += wire_bytes(wire_, block(space, b + 1) - block(space, b));
  return bytes;
}

std::pair<uint64_t, uint64_t> Geometry::traffic(const Plan::Peer& peer) const {
  uint64_t out = 0, in = 0;
  for (const uint32_t s : peer.sends) out += traffic(plan_.steps()[s].src, plan_.steps()[s]);
  for (const uint32_t s : peer.recvs) in += traffic(plan_.steps()[s].dst, plan_.steps()[s]);
  return {out, in};
}

uint64_t Geometry::frames(const Plan::Peer& peer) const {
  uint64_t frames = 0;
  for (const uint32_t s : peer.sends) {
    const Step& step = plan_.steps()[s];
    if (merged(step)) {
      frames += elements(step.src, step) != 0 ? 1 : 0;
      continue;
    }
    for (int b = step.block; b < step.block + step.count; ++b)
      frames += (block(step.src, b + 1) - block(step.src, b) + chunk_elements_ - 1) / chunk_elements_;
  }
  return frames;
}

uint64_t Geometry::received(uint64_t chunk) const {
  uint64_t sum = 0;
  for (const Step& step : plan_.steps())
    if (step.kind == StepKind::recv || step.kind == StepKind::recv_reduce)
      for (uint32_t j = 0; j < pieces(step); ++j) sum += bytes(step.dst, step, chunk, j);
  return sum;
}

}  // namespace slipstream
