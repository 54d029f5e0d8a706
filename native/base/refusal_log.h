// What a listener logs of the connections that it refuses: a flood must not fill the log, nor hide somebody else. The
// store has the same rule (src/slipstream/comm/rendezvous/admission.py).
//
// The first refusal of an address for a reason is logged. The same again within kSeconds is only counted, and one line
// says how many these were. Reasons that differ only in their numbers, such as ranks that callers claim to be, are one.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace slipstream {

class RefusalLog {
 public:
  static constexpr double kSeconds = 10;
  // Others are only counted, too: strangers choose their addresses.
  static constexpr size_t kMostNamed = 256;  // addresses with a reason, in kSeconds
  static constexpr size_t kMostReasons = 8;  // of one address

  // `who`: an address, or address:port.
  void add(const std::string& who, const std::string& why, Time now) {
    if (ends_ == Time::max()) ends_ = now + seconds(kSeconds);
    const Kind kind{who.substr(0, who.rfind(':')), without_numbers(why)};
    if (const auto known = kinds_.find(kind); known != kinds_.end())
      ++known->second.more;
    else if (kinds_.size() < kMostNamed && reasons_of(kind.first) < kMostReasons)
      kinds_.emplace(kind, Refusals{who + ": " + why});
    else
      ++others_[kind.second];
  }
  // Takes back what was refused for such a reason, a text without its numbers, and has not been logged.
  template <class Reason>
  void forget(Reason reason) {
    std::erase_if(kinds_, [&](const auto& one) { return reason(one.first.second); });
    std::erase_if(others_, [&](const auto& one) { return reason(one.first); });
  }
  // What is to be logged now: "address:port: why"; after kSeconds, or if it is the `last` call, also how many more
  // there were: "refused 12 more such connections within 10 s".
  std::vector<std::string> take(Time now, bool last = false) {
    std::vector<std::string> lines;
    uint64_t more = 0;
    for (auto& [kind, refusals] : kinds_) {
      if (!refusals.line.empty()) lines.push_back("refused a connection from " + std::exchange(refusals.line, {}));
      more += refusals.more;
    }
    for (const auto& [reason, count] : others_) more += count;
    if (now < ends_ && !last) return lines;
    if (more > 0) lines.push_back("refused " + std::to_string(more) + " more such connections within 10 s");
    *this = {};
    return lines;
  }
  // When take() says how many there were; Time::max() if nobody was refused.
  Time ends() const { return ends_; }

 private:
  using Kind = std::pair<std::string, std::string>;  // address, reason without its numbers
  struct Refusals {
    std::string line;  // of the first, until it is logged
    uint64_t more = 0;
  };

  static std::string without_numbers(std::string why) {
    std::erase_if(why, [](unsigned char c) { return std::isdigit(c) != 0; });
    return why;
  }
  size_t reasons_of(const std::string& address) const {
    size_t count = 0;
    for (auto it = kinds_.lower_bound({address, {}}); it != kinds_.end() && it->first.first == address; ++it) ++count;
    return count;
  }

  std::map<Kind, Refusals> kinds_;
  std::map<std::string, uint64_t> others_;  // reason without its numbers: these texts are ours, and few
  Time ends_ = Time::max();
};

}  // namespace slipstream
