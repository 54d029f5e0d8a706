// What ranks that leave say of their latest works: a rank that calls one of these only later can compare it. Driver's
// thread only.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/ledger.h"
#include "engine/work_key.h"

namespace slipstream {

struct LastWord {
  int peer;
  uint32_t signature;
  std::string description;
};

class LastWords {
 public:
  // Of a work that this rank has not begun. Of one peer, no more than it has works, and messages without a work, to
  // remember.
  void keep(const WorkKey& work, LastWord word) {
    if (++kept_[word.peer] <= 2 * Ledger::kRemembered) words_[work].push_back(std::move(word));
  }
  // Of a work that begins.
  std::vector<LastWord> take(const WorkKey& work) {
    if (words_.empty()) return {};
    const auto it = words_.find(work);
    if (it == words_.end()) return {};
    std::vector<LastWord> taken = std::move(it->second);
    words_.erase(it);
    return taken;
  }

 private:
  std::unordered_map<WorkKey, std::vector<LastWord>, WorkKey::Hash> words_;
  std::unordered_map<int, size_t> kept_;  // by peer: how many it has said
};

}  // namespace slipstream
