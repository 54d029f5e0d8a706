// Where the members of a communicator are, if a process has several of them. A member is a device; its number in the
// communicator is its place. The engine's group has one rank for each process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace slipstream::mpi {

struct Layout {
  // `owners`: the rank of the world that each place belongs to. `mine`: this process's.
  Layout(const std::vector<int32_t>& owners, int32_t mine);

  size_t size() const { return process.size(); }
  // Which of `here` the place is; that is no place of this process: -1.
  int index_here(int place) const;

  std::vector<int32_t> process;  // of each place: its rank in the engine's group
  // The engine has the blocks of a process beside each other. Which block, by place.
  std::vector<size_t> block;
  std::vector<int> here;          // the places of this process, ascending
  std::vector<uint64_t> members;  // of each process of the engine's group
  bool in_order = true;           // block[i] is i
  bool even = true;               // all processes have as many members
};

}  // namespace slipstream::mpi
