#include "engine/private_sends.h"

#include <algorithm>

#include "kernels/kernels.h"
#include "transport/process_memory.h"

namespace slipstream {

namespace {

// From here on the caches do not hold what both ends move, and one copy is cheaper than two.
constexpr uint64_t kLeastBytes = 4 << 20;
// Of a fetch by way of this core's cache.
constexpr uint32_t kPart = 128 << 10;

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
  if (is_windowed(request)) return false;
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
    const bool is_read = space == Space::in || request.signature.reduces;
    if (most == SingleCopy::automatic && is_read && !pays(plan, traffic, data, bytes)) return false;
  }
  return true;
}

const std::byte* PrivateSends::bytes_of(Link* link, const Payload& payload, std::byte* dst, bool past_cache) {
  if (payload.remote == 0) return payload.data;
  if (link == nullptr) return nullptr;
  if (dst != nullptr && past_cache) return fetch_past_cache(*link, payload, dst) ? dst : nullptr;
  if (dst == nullptr) dst = room(payload.size);
  return link->fetch(payload, dst) ? dst : nullptr;
}

bool PrivateSends::fetch_past_cache(Link& link, const Payload& payload, std::byte* dst) {
  std::byte* near = room(kPart);
  for (uint32_t done = 0; done < payload.size; done += kPart) {
    Payload part = payload;
    part.remote += done;
    part.size = std::min(payload.size - done, kPart);
    if (!link.fetch(part, near)) return false;
    copy_past_cache(dst + done, near, part.size);
  }
  return true;
}

std::byte* PrivateSends::room(size_t bytes) {
  fetched_.resize(std::max(fetched_.size(), bytes));
  return fetched_.data();
}

}  // namespace slipstream
