// The kinds of calls of a group that have been met, and what was prepared for them.
#pragma once

#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "capi/prepared.h"

namespace slipstream::capi {

// Calls of one kind have one plan and one request.
struct Kind {
  int32_t collective = 0, dtype = 0, op = -1, root = -1, tag = 0, wire = 0;
  uint64_t size = 0;  // bits of the number of bytes, or elements of a block, as the collective needs
  double prescale = 1, postscale = 1;
  std::vector<uint64_t> counts;  // of all ranks, for each of the call's tables

  bool operator==(const Kind&) const = default;
};

Kind kind_of(const Ask& ask);

// Any thread.
class Kept {
 public:
  std::shared_ptr<const Prepared> find(const Kind& kind) const;
  void keep(const Kind& kind, std::shared_ptr<const Prepared> prepared);
  void clear();

 private:
  static constexpr size_t kMost = 4096;
  struct Hash {
    size_t operator()(const Kind& kind) const;
  };
  mutable std::shared_mutex mutex_;
  std::unordered_map<Kind, std::shared_ptr<const Prepared>, Hash> known_;
};

}  // namespace slipstream::capi
