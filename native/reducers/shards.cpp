#include "reducers/shards.h"

#include <algorithm>
#include <utility>

#include "reducers/parts.h"

namespace slipstream {

void Shards::make_groups(const Group& workers, std::vector<int> neighbours) {
  const auto size = static_cast<int>(workers.ranks.size());
  within = group_of(channel_of(workers, 0, kHosts), std::move(neighbours), workers.rank, size);
  across.assign(count(), nullptr);
  for (size_t shard = 0; shard < count(); ++shard)
    if (std::ranges::find(carriers[shard], workers.rank) != carriers[shard].end())
      across[shard] = group_of(channel_of(workers, shard + 1, kHosts), carriers[shard], workers.rank, size);
}

}  // namespace slipstream
