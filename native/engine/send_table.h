// The bulk sends under way: a link knows each one by a number, its cookie. Driver's thread only.
#pragma once

#include <cstdint>
#include <vector>

namespace slipstream {

class Execution;

class SendTable {
 public:
  struct Send {
    Execution* execution;
    uint32_t step;
    uint64_t chunk;
  };

  // Returns the cookie, never 0, which no other send has until it is removed.
  uint64_t add(const Send& send) {
    if (free_.empty()) {
      free_.push_back(sends_.size());
      sends_.push_back({});
    }
    const uint64_t cookie = free_.back();
    free_.pop_back();
    sends_[cookie] = send;
    return cookie;
  }
  Send remove(uint64_t cookie) {
    free_.push_back(cookie);
    return sends_[cookie];
  }

 private:
  std::vector<Send> sends_{1};  // by cookie
  std::vector<uint64_t> free_;
};

}  // namespace slipstream
