// The order of the works of each channel: which may begin now, which wait for their turn, and which are done.
//
// At most two bulk works of a channel that are as urgent are under way together. More urgent ones begin before others,
// and beside them. A small work begins at once. A work that needs memory of an earlier one waits until that is done,
// and so do those behind it. Driver's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/memory_in_use.h"
#include "engine/work.h"

namespace slipstream {

class Channels {
 public:
  struct Past {  // a work, or a message without one, that is done
    uint32_t seq;
    Signature signature;
    Time at;
    uint32_t hash = 0;  // that its frames have
  };
  // One channel. References stay good while the channel has works.
  class Channel {
   private:
    friend class Channels;
    struct Running {     // a bulk work under way
      const Work* work;  // which one, no more
      int urgency;
      uint64_t entry;
    };
    std::deque<WorkPtr> waiting_;
    size_t urgent_ = 0;     // of them, those that have an urgency
    uint64_t entries_ = 0;  // works so far
    size_t works_ = 0;      // that have been taken in and are not done
    std::vector<Running> bulk_;
    bool used_ = false;    // since forget_idle() saw it last
    uint32_t newest_ = 0;  // the highest number in history_, and before
    std::deque<Past> history_;
  };

  // Whether works that are not done need memory of a new work.
  struct Overlap {
    bool any = false;
    const Work* elsewhere = nullptr;  // one of another channel
  };
  Overlap overlap(const Work& work) const;

  Channel& at(uint64_t id);
  // Takes in a work. True if it may begin at once; else it is the last in line.
  bool enter(Channel& channel, const WorkPtr& work, bool overlaps);
  // The next work of the line, which begins now; null if none may.
  WorkPtr next(Channel& channel);
  // A work that could not begin is the first in line again.
  void put_back(Channel& channel, WorkPtr work);
  void began(Channel& channel, const Work& work, bool bulk) {
    if (bulk) channel.bulk_.push_back({&work, work.request.urgency, work.entry});
  }
  // The work is done. Call next() then.
  void ended(Channel& channel, const Work& work, bool bulk);
  // A message that was no work is done. To be followed by forget_idle().
  void passed(uint64_t id, uint32_t seq, const Signature& signature, uint32_t hash) {
    remember(at(id), seq, signature, hash);
  }
  // Neither its memory nor its place in the channel is needed any more.
  void leave(Channel& channel, const Work& work);
  // Forgets channels without works, a few a call, if there are very many.
  void forget_idle();
  // Empties all lines; returns the works in them.
  std::vector<WorkPtr> clear();

  // Works in line, of all channels.
  size_t waiting() const;
  template <class F>
  void each_waiting(F f) const {
    for (const auto& [id, channel] : channels_)
      for (const WorkPtr& work : channel.waiting_) f(*work);
  }
  // A work in line whose own time is up; null if there is none.
  const Work* overdue(Time now);
  // A work that is done and not forgotten yet, by its number; null if there is none.
  const Past* past(uint64_t id, uint32_t seq) const;
  // Of these the one with the highest number.
  const Past* latest(uint64_t id) const;

 private:
  static constexpr size_t kHistory = 64;     // works that are done, of one channel
  static constexpr size_t kChannels = 1024;  // channels without works

  bool may_begin(const Work& work) const;
  static void remember(Channel& channel, uint32_t seq, const Signature& signature, uint32_t hash);

  std::unordered_map<uint64_t, Channel> channels_;
  std::deque<uint64_t> in_turn_;  // the same: whom forget_idle() looks at next
  MemoryInUse begun_;             // the memory of works that have begun
  MemoryInUse in_line_;           // and of those in line: tens of thousands may wait for the same memory
  size_t works_ = 0;              // of all channels
  Time due_ = Time::max();        // when the first work in line may be out of time
};

}  // namespace slipstream
