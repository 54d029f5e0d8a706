// Numbers that come once each, from 1 on and mostly in order: all below a mark, and some beyond it. Pure.
#pragma once

#include <cstdint>
#include <set>

namespace slipstream {

class Watermark {
 public:
  void add(uint64_t number) {
    beyond_.insert(number);
    for (; !beyond_.empty() && *beyond_.begin() == below_; ++below_) beyond_.erase(beyond_.begin());
  }
  bool has(uint64_t number) const { return number < below_ || beyond_.contains(number); }
  uint64_t below() const { return below_; }  // all before this have come

 private:
  uint64_t below_ = 1;
  std::set<uint64_t> beyond_;
};

}  // namespace slipstream
