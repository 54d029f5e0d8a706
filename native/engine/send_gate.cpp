#include "engine/send_gate.h"

#include <cstring>

namespace slipstream {

namespace {

constexpr size_t kHeader = 3;  // region, offset, bytes

}  // namespace

std::vector<uint64_t> encode_placement(const Link::Shared& out, uint64_t out_bytes, const Plan& plan,
                                       const Plan::Peer& peer, const Geometry& geometry) {
  std::vector<uint64_t> table = {out.region, out.offset, out_bytes};
  for (const uint32_t s : peer.recvs) {
    const Step& step = plan.steps()[s];
    table.push_back(sender_may_write(step, geometry) ? geometry.block(step.dst, step.block) * geometry.element_bytes()
                                                     : SendGate::kNowhere);
  }
  return table;
}

void SendGate::set_ready(std::span<const std::byte> placement, Link& link, const Plan& plan, const Plan::Peer& peer,
                         const Geometry& geometry) {
  ready_ = true;
  const size_t sends = peer.sends.size();
  std::vector<uint64_t> table(placement.size() / sizeof(uint64_t));
  if (table.size() != kHeader + sends) return;
  std::memcpy(table.data(), placement.data(), table.size() * sizeof(uint64_t));
  const Link::Shared out{table[0], table[1]};
  const uint64_t out_bytes = table[2];
  try {
    if (link.remote(out, out_bytes) == nullptr) return;
  } catch (const Failure&) {
    return;  // this process cannot map it: the peer copies from memory of this one
  }
  out_ = out;
  places_.assign(sends, kNowhere);
  for (size_t i = 0; i < sends; ++i) {
    const Step& step = plan.steps()[peer.sends[i]];
    const uint64_t bytes = geometry.elements(step.src, step) * geometry.element_bytes();
    const uint64_t offset = table[kHeader + i];
    if (step.count == 1 && offset <= out_bytes && bytes <= out_bytes - offset) places_[i] = offset;
  }
}

}  // namespace slipstream
