#include "engine/private_sends.h"

#include <unistd.h>

#include <algorithm>

#include "kernels/kernels.h"
#include "transport/process_memory.h"

namespace slipstream {

namespace {

// Two processes on two cores of a Xeon, time of one copy by the kernel over that of two by way of slots, where both
// send and where one does: 0.3 and 0.6 up to 1 MiB; up to 16 MiB 0.5 and 1.0 in huge pages, 0.7 and 1.4 in small ones;
// 64 MiB, which caches do not hold, 0.95 and 1.6, 1.25 and 2.5. Where reads are dear (PrivateReads::judge), on two
// cores of an EPYC, 64 MiB in huge pages on 2 and 4 ranks: all_to_all 0.9 and 0.83, scatter 0.9 and 0.83, all_gather
// 0.95 and 0.81.
constexpr uint64_t kSmall = 1 << 20;
constexpr uint64_t kInCaches = 16 << 20;
// Of a fetch by way of this core's cache.
constexpr uint32_t kPart = 256 << 10;

struct Traffic {
  uint64_t out = 0;  // what several peers get alike counts once
  uint64_t in = 0;
  bool is_multicast = false;
  bool is_fresh = false;      // some of it another step has just written
  bool is_all_of_it = false;  // this rank does nothing but give one of several blocks
  bool has_copies = false;    // this rank copies, too
};

Traffic traffic_of(const Plan& plan, const Geometry& geometry) {
  Traffic all;
  size_t sends = 0;
  for (const Plan::Peer& peer : plan.peers()) {
    const auto [out, in] = geometry.traffic(peer);
    all.out += out;
    all.in += in;
    sends += peer.sends.size();
    for (const uint32_t s : peer.sends) all.is_fresh |= plan.steps()[s].deps != 0;
  }
  for (const Step& step : plan.steps()) all.has_copies |= step.kind == StepKind::copy;
  all.is_all_of_it = plan.blocks() > 1 && plan.steps().size() == sends;
  all.is_multicast = plan.batches() < sends;
  if (all.is_multicast) all.out = all.out * plan.batches() / sends;
  return all;
}

// By the cores of the host: each rank may be confined to one of them.
bool is_crowded(size_t ranks_here) {
  static const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
  return static_cast<long>(ranks_here) > cores;
}

// Of links whose peers read cheaply (PrivateReads::judge). What one rank sends, slots move at both ends at the same
// time, if both ends have a core to themselves. A copy in a slot serves several peers. All ratios are of times with and
// without, two ranks on two cores of a Xeon, 1 and 4 MiB.
bool pays(const Traffic& traffic, bool reduces, bool at_both_ends, bool is_crowded, const std::byte* data,
          uint64_t bytes) {
  const bool in_caches = traffic.out <= kInCaches;
  // Sums read slots as they add (all_reduce 1.1).
  if (reduces) return !in_caches && at_both_ends && !traffic.is_multicast && in_huge_pages(data, bytes);
  if (traffic.is_fresh) return false;                     // it lies in this core's cache (broadcast 1.1)
  if (traffic.is_all_of_it && !is_crowded) return false;  // its receiver has more to do (gather 1.3; scatter 0.75)
  if (traffic.out <= kSmall) return true;
  if (traffic.is_multicast) return in_caches && in_huge_pages(data, bytes);
  if (in_caches && at_both_ends) return true;  // all_to_all 0.8, all_gather 0.95
  return (in_caches || at_both_ends) && in_huge_pages(data, bytes);
}

// Bytes of a work that only sends, to one rank, or only receives.
uint64_t of_message(const Request& request, const Geometry& geometry, bool is_sent) {
  const std::vector<Plan::Peer>& peers = request.plan->peers();
  if (peers.size() != 1 || request.signature.reduces) return 0;
  const auto [out, in] = geometry.traffic(peers.front());
  return is_sent ? (in == 0 ? out : 0) : (out == 0 ? in : 0);
}

// True if all that is sent is this rank's input as the caller has given it.
bool gives_its_input(const Request& request) {
  const auto reads_input = [](const Step& step) {
    return step.kind != StepKind::send || (step.src == Space::in && step.deps == 0);
  };
  return !request.signature.reduces && !request.ragged && std::ranges::all_of(request.plan->steps(), reads_input);
}

}  // namespace

bool is_lent_message(const Request& request, const Fabric& fabric) {
  const std::vector<Plan::Peer>& peers = request.plan->peers();
  if (request.signature.side != Side::sender || peers.size() != 1) return false;
  if (request.spaces[0].count > kSmall / size_of(request.signature.dtype)) return false;
  const Link* link = fabric.up(request.group->ranks[static_cast<size_t>(peers.front().rank)]);
  return link != nullptr && link->single_copy() >= SingleCopy::automatic;
}

PrivateSends::PrivateSends(const Request& request, const Geometry& geometry, const Fabric& fabric,
                           const Regions& regions, Receiving& receiving, size_t here)
    : receiving_(receiving),
      sent_(of_message(request, geometry, true)),
      when_(lends(request, geometry, fabric, here)),
      lends_at_once_(when_ == When::always && gives_its_input(request) && !regions.find(request.spaces[0].data, 1)),
      share_(receiving, here > 1 ? of_message(request, geometry, false) : 0) {}

PrivateSends::When PrivateSends::lends(const Request& request, const Geometry& geometry, const Fabric& fabric,
                                       size_t here) {
  const Plan& plan = *request.plan;
  if (is_windowed(request)) return When::never;
  if (geometry.largest_block() * geometry.element_bytes() <= kEagerBytes) return When::never;
  SingleCopy most = SingleCopy::off;
  for (const Plan::Peer& peer : plan.peers())
    if (const Link* link = fabric.up(request.group->ranks[static_cast<size_t>(peer.rank)]);
        link != nullptr && !peer.sends.empty())
      most = std::max(most, link->single_copy());
  if (most == SingleCopy::off) return When::never;
  const Traffic traffic = traffic_of(plan, geometry);
  if (traffic.out > kInCaches) least_ = SingleCopy::uncached;
  if (most < least_) return When::never;
  const bool crowded = is_crowded(here);
  const bool at_both_ends = crowded || traffic.has_copies || traffic.in >= traffic.out / 2;
  When found = When::always;
  for (const Space space : {Space::in, Space::out}) {
    const std::byte* data = request.spaces[static_cast<size_t>(space)].data;
    const uint64_t bytes = geometry.elements(space) * geometry.element_bytes();
    if (data == nullptr || bytes == 0) continue;
    if (!others_can_read(data, bytes)) return When::never;
    const bool is_read = space == Space::in || request.signature.reduces;
    if (most == SingleCopy::always || !is_read) continue;
    const auto pays_if = [&](bool at_both) {
      return pays(traffic, request.signature.reduces, at_both, crowded, data, bytes);
    };
    if (pays_if(at_both_ends)) continue;
    // Two messages at once, where reads are dear, 64 MiB on two cores of an EPYC: 1.1.
    if (sent_ == 0 || most == SingleCopy::uncached || !pays_if(true)) return When::never;
    found = When::receiving;
  }
  return found;
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
