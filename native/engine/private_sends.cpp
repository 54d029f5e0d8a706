#include "engine/private_sends.h"

#include <algorithm>

#include "transport/process_memory.h"

namespace slipstream {

namespace {

// From here on the caches do not hold what both ends move, and one copy is cheaper than two.
constexpr uint64_t kLeastBytes = 4 << 20;

struct Traffic {
  uint64_t out = 0;
  uint64_t in = 0;
  size_t sends = 0;
};

Traffic traffic_of(const Plan& plan, const Geometry& geometry) {
  Traffic all;
  for (const Plan::Peer& peer : plan.peers()) {
    const auto [out, in] = geometry.traffic(peer);
    all.out += out;
    all.in += in;
    all.sends += peer.sends.size();
  }
  return all;
}

// What a work sends in one direction only, slots move as fast: both ends copy at the same time. So they do where one
// copy serves several peers. Where pages are small, the kernel needs more time than two copies would.
bool pays(const Plan& plan, const Traffic& traffic, const std::byte* data, uint64_t bytes) {
  return traffic.out >= kLeastBytes && traffic.in >= traffic.out / 2 && plan.batches() == traffic.sends &&
         in_huge_pages(data, bytes);
}

}  // namespace

bool PrivateSends::lends(const Request& request, const Geometry& geometry, const Fabric& fabric) {
  const Plan& plan = *request.plan;
  if (request.signature.reduces || is_windowed(request)) return false;
  if (geometry.largest_block() * geometry.element_bytes() <= kEagerBytes) return false;
  SingleCopy most = SingleCopy::off;
  for (const Plan::Peer& peer : plan.peers())
    if (const Link* link = fabric.up(request.group->ranks[static_cast<size_t>(peer.rank)]);
        link != nullptr && !peer.sends.empty())
      most = std::max(most, link->single_copy());
  if (most == SingleCopy::off) return false;
  const Traffic traffic = traffic_of(plan, geometry);
  for (const Space space : {Space::in, Space::out}) {
    const std::byte* data = request.spaces[static_cast<size_t>(space)].data;
    const uint64_t bytes = geometry.elements(space) * geometry.element_bytes();
    if (data == nullptr || bytes == 0) continue;
    if (!others_can_read(data, bytes)) return false;
    if (most == SingleCopy::automatic && space == Space::in && !pays(plan, traffic, data, bytes)) return false;
  }
  return true;
}

const std::byte* PrivateSends::bytes_of(Link* link, const Payload& payload, std::byte* dst) {
  if (payload.remote == 0) return payload.data;
  if (dst == nullptr) {
    fetched_.resize(std::max<size_t>(fetched_.size(), payload.size));
    dst = fetched_.data();
  }
  return link != nullptr && link->fetch(payload, dst) ? dst : nullptr;
}

}  // namespace slipstream
