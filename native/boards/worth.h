// Whether the calls of a group are worth trying on its board.
//
// A call that all ranks make at about the same time costs no message. A rank that sleeps costs a message from each rank
// that it misses; by messages alone an operation costs two for each doubling of the ranks. If one rank is always late,
// most calls sleep. And a rank that yields its core to a stranger gets it back after milliseconds, where one that
// sleeps is woken at once. Then this rank goes by messages for a while, so that the others do, too: each time longer,
// and until a number at which all ranks that do so try again together.
#pragma once

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace slipstream {

class BoardWorth {
 public:
  explicit BoardWorth(int size) : usual_(std::bit_width(static_cast<unsigned>(size - 1))) {}

  // Whether operation `number` may be tried on the board.
  bool try_now(uint64_t number) const { return number >= again_at_; }
  // Operation `number` was tried, and the call went to sleep. `missing`: ranks that this one had to wait for asleep.
  void slept(uint64_t number, int missing) { count(number, missing); }
  // A rank that looked had to do without its core. Once in a while that costs less than to go by messages always: from
  // an average of 0 one such call is not enough.
  void lost_its_core(uint64_t number, Clock::duration time) {
    const double messages = std::chrono::duration<double>(time) / kMessage;
    count(number, std::min(messages, kMostLost * kManyCalls * usual_));
  }
  // Another rank goes by messages. It will for a while, so this one follows soon.
  void went_by_messages(uint64_t number) { count(number, (usual_ + 1) * kManyCalls / 8.0); }
  void done(uint64_t number) { count(number, 0); }

 private:
  static constexpr std::chrono::duration<double, std::micro> kMessage{15};  // what one takes where cores are few
  static constexpr int kManyCalls = 256;
  static constexpr double kPart = 1.0 / kManyCalls;               // of the average that the latest call makes
  static constexpr double kMostLost = 0.75;                       // of what is too much: by one call
  static constexpr uint64_t kFirstPause = 64, kMostPause = 4096;  // operations
  static constexpr uint64_t kGood = 2 * kManyCalls;               // tries after which the first pause is short again

  void count(uint64_t number, double messages) {
    average_ += (messages - average_) * kPart;
    if (average_ <= usual_) {
      if (++good_ == kGood) pause_ = kFirstPause;
      return;
    }
    again_at_ = (number / pause_ + 1) * pause_;
    pause_ = std::min(4 * pause_, kMostPause);
    average_ = 0;
    good_ = 0;
  }

  const int usual_;  // half of the messages of an operation that does not go over the board
  double average_ = 0;
  uint64_t good_ = 0;  // tries since the latest pause
  uint64_t pause_ = kFirstPause;
  uint64_t again_at_ = 0;
};

}  // namespace slipstream
