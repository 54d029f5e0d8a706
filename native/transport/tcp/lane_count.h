// How many bulk lanes the data that one side of a link sends is worth. A link begins with few lanes. Once it has
// carried much it tries many, and keeps them if it then carries more, and less again with few: connections may be
// limited each, and there may be several paths behind one address. Networks change, so each result is reviewed: by
// another trial, at times that all links of a host share, since a link that tries by itself takes its gain from those
// that it shares a port with. Pure: no sockets, no clock of its own.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace slipstream {

class LaneCount {
 public:
  // `few` and `many` may be equal: then nothing is tried.
  LaneCount(int few, int many) : few_(few), many_(many), wanted_(few) {}

  // Begins anew with these; with two equal numbers it stays at that one.
  void set(int few, int many);

  // Totals of the link, in one direction.
  struct Seen {
    uint64_t bytes = 0;
    double busy = 0;  // seconds in which there was something that the peer did not have
    int lanes = 0;    // that are open now
  };
  // What a trial has shown, in bytes a second.
  struct Trial {
    double few;
    double many;
  };

  int wanted() const { return wanted_; }
  // How many it may want again at the end of a trial, without a question: wanted() or more.
  int claimed() const { return checks() ? many_ : wanted_; }
  int few() const { return few_; }
  int many() const { return many_; }
  // Called several times a second while the link is in use. Returns the result of a trial when it ends. `may_try`: a
  // trial may begin.
  std::optional<Trial> look(const Seen& seen, bool may_try, Time now);

 private:
  enum class State : uint8_t {
    beginning,
    measuring,
    opening,
    settling,
    trying,
    closing,  // many lanes have carried more: do few carry less again?
    resettling,
    confirming,
    few,
    many
  };

  bool checks() const { return state_ == State::closing || state_ == State::resettling || state_ == State::confirming; }
  void enter(State state, const Seen& seen, Time now);
  std::optional<Trial> tried(double rate, const Seen& seen, Time now);
  Trial end(double few, double many, const Seen& seen, Time now);
  bool review_due(const Seen& seen, Time now);

  int few_;
  int many_;
  int wanted_;
  State state_ = State::beginning;
  Seen from_;     // when the state began, or the measurement in it
  Time since_{};  // the same
  // Bytes a second.
  double rate_ = 0;  // with few lanes
  double rate_many_ = 0;
  // What the last trial has shown, and the wait for the next one.
  int kept_ = 0;  // lanes
  double kept_rate_ = 0;
  int64_t wait_ = 0;    // minutes
  int64_t minute_ = 0;  // of the last look
  Seen minute_from_;    // when it began
};

}  // namespace slipstream
