// The memory that a peer of this host has shared, by the peer's numbers of its regions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "transport/region.h"

namespace slipstream {

class PeerRegions {
 public:
  PeerRegions(int rank, int peer) : rank_(rank), peer_(peer) {}

  // What this process cannot map is an error when it is needed: a board does without.
  void take(uint32_t id, const Fd& fd, size_t bytes) {
    try {
      mapped_.insert_or_assign(id, std::make_shared<Mapping>(fd.get(), bytes));
    } catch (const Failure& failure) {
      miss(id, failure.error().text);
    }
  }
  // The peer has shared it, but this process cannot take it.
  void miss(uint32_t id, std::string why) { missed_.insert_or_assign(id, std::move(why)); }
  // The peer has freed it. Who holds the mapping keeps it.
  void drop(uint32_t id) {
    mapped_.erase(id);
    missed_.erase(id);
  }

  bool knows(uint32_t id) const { return mapped_.contains(id) || missed_.contains(id); }
  // Null if the peer has not shared it. Throws Failure if this process could not take it.
  std::shared_ptr<Mapping> find(uint32_t id) const {
    if (const auto missed = missed_.find(id); missed != missed_.end()) throw cannot_take(missed->second);
    const auto found = mapped_.find(id);
    return found == mapped_.end() ? nullptr : found->second;
  }

  Failure cannot_take(const std::string& why) const {
    return Failure(Code::internal, "rank " + std::to_string(rank_) + " cannot take shared memory of rank " +
                                       std::to_string(peer_) + ": " + why);
  }

 private:
  const int rank_;
  const int peer_;
  std::unordered_map<uint32_t, std::shared_ptr<Mapping>> mapped_;
  std::unordered_map<uint32_t, std::string> missed_;  // and why
};

}  // namespace slipstream
