#include "mpi_trampoline/layout.h"

#include <algorithm>

namespace slipstream::mpi {

// The engine's group has the processes in the order in which they first occur (faces/mpi_trampoline/ahead.py).
Layout::Layout(const std::vector<int32_t>& owners, int32_t mine) {
  std::vector<int32_t> ranks;
  for (size_t place = 0; place < owners.size(); ++place) {
    auto found = std::ranges::find(ranks, owners[place]);
    process.push_back(static_cast<int32_t>(found - ranks.begin()));
    if (found == ranks.end()) {
      ranks.push_back(owners[place]);
      members.push_back(0);
    }
    ++members[static_cast<size_t>(process.back())];
    if (owners[place] == mine) here.push_back(static_cast<int>(place));
  }
  std::vector<size_t> next(ranks.size(), 0);  // block of each process
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    next[rank] = next[rank - 1] + members[rank - 1];
    even = even && members[rank] == members[0];
  }
  for (size_t place = 0; place < owners.size(); ++place) {
    block.push_back(next[static_cast<size_t>(process[place])]++);
    in_order = in_order && block.back() == place;
  }
}

int Layout::index_here(int place) const {
  const auto found = std::ranges::find(here, place);
  return found == here.end() ? -1 : static_cast<int>(found - here.begin());
}

}  // namespace slipstream::mpi
