// Short messages that need no work: sent, or taken, by the thread that calls, where nothing else of the session is
// under way. For the other end they are as all messages are, and an end that cannot do so makes a work. Driver's thread
// only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/channels.h"
#include "engine/early_frames.h"
#include "engine/fabric.h"
#include "engine/failure_state.h"
#include "engine/ledger.h"
#include "engine/unfinished_works.h"
#include "engine/work.h"

namespace slipstream {

// A send, or a receive from one rank. Nothing of it is needed any more once it is sent, or forgotten.
struct ShortMessage {
  // `request`: without memory.
  ShortMessage(const Request& request, std::byte* at, uint64_t count);

  uint64_t channel;
  int peer;  // the global rank
  std::byte* data;
  uint64_t bytes;
  Signature signature;
  uint32_t hash;  // of that
};

class ShortMessages {
 public:
  // What it uses of its engine.
  struct Parts {
    Fabric& fabric;
    Ledger& ledger;
    Channels& channels;
    EarlyFrames& early;
    const UnfinishedWorks& works;
    const FailureState& failure;
  };
  explicit ShortMessages(const Parts& parts) : parts_(parts) {}

  // Whether this rank has no works, and may do without one.
  bool possible() const { return parts_.works.none() && !parts_.failure.ended() && !parts_.failure.suspects(); }
  // Sends it. False, and nothing has happened, if its receiver has to say first that it is ready, or is not there.
  // To be asked only if possible(), as expect().
  bool send(const ShortMessage& message);

  enum class State : uint8_t { waits, taken, needs_work };
  // From now on take() takes the message, until forget(). It may have come before.
  State expect(ShortMessage& message);
  State state() const { return state_; }
  // A frame has come. True if it was the message, which is where it is wanted now.
  bool take(Link& link, const WorkHeader& frame, const Payload& payload) {
    return expected_ != nullptr && frame.channel == expected_->channel && frame.seq == seq_ &&
           take_expected(link, frame, payload);
  }
  // Afterwards nothing of the message is used. If it was not taken, nothing has happened.
  void forget() { expected_ = nullptr; }

  // The latest messages, the oldest first: the number of each in its channel. Channels::past() tells what they were.
  std::vector<WorkKey> latest() const;

 private:
  static constexpr size_t kRemembered = Ledger::kRemembered;

  bool take_expected(Link& link, const WorkHeader& frame, const Payload& payload);
  void remember(const ShortMessage& message, uint32_t seq);

  const Parts parts_;
  ShortMessage* expected_ = nullptr;
  uint32_t seq_ = 0;  // of that
  State state_ = State::waits;
  std::array<WorkKey, kRemembered> latest_{};
  size_t count_ = 0;
};

}  // namespace slipstream
