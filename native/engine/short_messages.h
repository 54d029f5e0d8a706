// Short messages that need no work: sent, or taken, by the thread that calls, where nothing else of the session is
// under way. For the other end they are as all messages are, and an end that cannot do so makes a work. So are this
// rank's parts in collectives along trees. Driver's thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
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

// This rank's part in a collective along a tree: it takes one message from each of some ranks, and then sends one to
// each of others.
struct Relay {
  static constexpr size_t kMost = 16;  // ranks that send to this one

  uint64_t channel;
  uint32_t seq;
  const Signature& signature;
  uint32_t hash;              // of that
  uint64_t bytes;             // of each message
  std::span<const int> from;  // global ranks
  std::span<const int> to;
  // What has come, in the order of `from`, to what is sent.
  const std::function<const std::byte*(std::span<const std::byte* const>)>& pass_on;
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

  // Takes credit for what the relay will send. False, and nothing has happened, if it has to be a work. To be asked
  // only if possible().
  bool begin(const Relay& relay);
  // Whether all has come. What comes is kept as it is for a work, so nothing is lost if the relay becomes one.
  State state_of(const Relay& relay) const;
  // The ranks whose messages have not come.
  std::vector<int> missing(const Relay& relay) const;
  // One of these ends it: either all has been `taken`, or it becomes a work.
  void finish(const Relay& relay);
  void give_up(const Relay& relay);

  struct Past {  // Channels::past() tells what it was
    WorkKey key;
    std::vector<int> peers;  // global ranks
  };
  // The latest messages and relays, the oldest first.
  std::vector<Past> latest() const;

 private:
  static constexpr size_t kRemembered = Ledger::kRemembered;

  bool take_expected(Link& link, const WorkHeader& frame, const Payload& payload);
  bool reaches(int peer) const { return parts_.fabric.up(peer) != nullptr && parts_.fabric.shares_memory(peer); }
  // To be followed by the peers.
  std::vector<int>& remember(uint64_t channel, uint32_t seq, const Signature& signature, uint32_t hash);

  const Parts parts_;
  ShortMessage* expected_ = nullptr;
  uint32_t seq_ = 0;  // of that
  State state_ = State::waits;
  std::array<Past, kRemembered> latest_{};
  size_t count_ = 0;
};

}  // namespace slipstream
