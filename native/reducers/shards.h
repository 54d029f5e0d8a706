// How workers share hosts, and what each carries between the hosts (slipstream.plan.shards).
//
// On each host one worker carries each shard. If hosts have several workers, these sum their data within the host
// first; a shard's reducer then hears one worker of each host, and what it sends back is distributed within the hosts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/work.h"

namespace slipstream {

// In a session with a reducer: the group of all workers, for small works, and the groups of the carriers of each shard.
inline constexpr uint64_t kAllWorkers = 1;
inline uint64_t carriers_group(size_t shard) { return kAllWorkers + 1 + shard; }

struct Shards {
  std::vector<std::vector<int>> carriers;  // of each shard: a worker of each host, hosts in the same order
  std::shared_ptr<const Plan> star;        // this host, with the reducer as the rank after the hosts
  std::shared_ptr<const Plan> between;     // an all-reduce of a shard among the hosts
  // Among the workers of this host, in as many blocks as there are shards; null: this one is alone on it.
  std::shared_ptr<const Plan> reduce;  // each has the host's sums of the shards that it carries
  std::shared_ptr<const Plan> gather;  // each has all shards
  // In the workers' session: those of this host, and by shard its carriers; null if another one of this host carries
  // it.
  std::shared_ptr<const Group> within;
  std::vector<std::shared_ptr<const Group>> across;

  // `workers`: the group of all; `neighbours`: those of this host, in their order.
  void make_groups(const Group& workers, std::vector<int> neighbours);
  size_t count() const { return carriers.size(); }
  int hosts() const { return static_cast<int>(carriers.front().size()); }
  bool alone() const { return reduce == nullptr; }
  bool carries(size_t shard) const { return across[shard] != nullptr; }
  // Where a shard of so many elements begins.
  uint64_t begin(size_t shard, uint64_t elements) const { return elements * shard / count(); }
};

}  // namespace slipstream
