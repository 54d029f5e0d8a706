// Callers that have not authenticated: few at once, and each for a short time. All listeners of a job have these rules;
// src/slipstream/comm/rendezvous/admission.py states them for the store.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <utility>

#include "base/clock.h"

namespace slipstream {

struct AdmissionLimits {
  // All ranks of a large host, or all lanes of 64 hosts; three listeners still leave room below 1024 open files.
  size_t most = 256;    // at least 1
  double seconds = 5;   // in which a caller has to authenticate
  double grace = 0.25;  // seconds that a caller has before it may give way to another one
};

// Why a caller is refused, for the log.
inline constexpr const char* kLate = "did not authenticate in time";
inline constexpr const char* kGaveWay = "dropped to make room for another caller: too many have not authenticated";

// Owns the callers. The owner passes the time.
template <typename Caller>
class Admission {
 public:
  explicit Admission(AdmissionLimits limits = {}) : limits_(limits) {}

  size_t size() const { return callers_.size(); }

  // From when on one more may come: Time::min() if there is room, else when the oldest one may give way.
  Time room_at() const { return full() ? callers_.front().since + seconds(limits_.grace) : Time::min(); }

  // One has come, at or after room_at(). Returns the oldest one if that gives way, else null.
  std::unique_ptr<Caller> add(std::unique_ptr<Caller> caller, Time now) {
    auto displaced = full() ? take_oldest() : nullptr;
    callers_.push_back({std::move(caller), now});
    return displaced;
  }

  // It has authenticated, or is gone.
  std::unique_ptr<Caller> take(const Caller& caller) {
    const auto it =
        std::find_if(callers_.begin(), callers_.end(), [&](const auto& c) { return &*c.caller == &caller; });
    if (it == callers_.end()) return nullptr;
    auto taken = std::move(it->caller);
    callers_.erase(it);
    return taken;
  }

  // One that had its time, the oldest first; null if there is none.
  std::unique_ptr<Caller> take_late(Time now) { return now >= deadline() ? take_oldest() : nullptr; }

  // When take_late() has one; Time::max() if nobody is here.
  Time deadline() const { return callers_.empty() ? Time::max() : callers_.front().since + seconds(limits_.seconds); }

  void clear() { callers_.clear(); }

 private:
  struct Entry {
    std::unique_ptr<Caller> caller;
    Time since;
  };

  bool full() const { return callers_.size() >= limits_.most; }

  std::unique_ptr<Caller> take_oldest() {
    auto oldest = std::move(callers_.front().caller);
    callers_.pop_front();
    return oldest;
  }

  const AdmissionLimits limits_;
  std::deque<Entry> callers_;  // oldest first
};

}  // namespace slipstream
