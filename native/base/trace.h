// What a session has done, for its timeline: fixed-size events in a bounded buffer. Whoever drives the engine puts them
// there; nothing is formatted or written before another thread has taken them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"

namespace slipstream {

// An IP address and a port, as bytes.
struct Endpoint {
  uint8_t family = 0;  // 4, 6, or 0 for none
  std::array<uint8_t, 16> address{};
  uint16_t port = 0;
};

struct TraceEvent {
  enum class Kind : uint8_t {
    work,           // an operation, from its submission to its end
    lane_lost,      // a connection broke
    lane_replaced,  // a connection that was too slow for too long was given up
    lane_reopened,  // a new connection in its place
    link_repaired,  // the same of a control lane: the link goes on where it stopped
    lane_damaged,   // what came over a connection was not what was sent; it is lost next
    control_moved,  // the control lane has the connection of a bulk lane, which was faster
    span,           // what some part of the engine did, from `begin` to `end`
    mark,           // that something happened, at `begin`
    step,           // a chunk went through a step of a work's plan
  };
  enum class Direction : uint8_t { none, send, recv };
  // Texts are cut to this, with their end.
  template <size_t N>
  struct Text {
    std::array<char, N> chars{};
    void set(std::string_view text) {
      const size_t n = std::min(text.size(), N - 1);
      text.copy(chars.data(), n);
      chars[n] = 0;
    }
  };

  Kind kind = Kind::work;
  Time begin{};
  Time end{};

  // Of a work. A span and a mark have `bytes`, their name, and in `operation` the track in which they are shown.
  DType dtype = DType::f32;
  Direction direction = Direction::none;  // of a message
  uint8_t error = 0;                      // a Code
  uint64_t bytes = 0;                     // of its larger buffer
  uint32_t ranks = 0;                     // in its group
  Text<40> operation;                     // "all_reduce/ring"
  Text<88> name;                          // the caller's

  // Of a lane; `peer` of a message too.
  int peer = -1;
  uint32_t lane = 0;  // 0: the control lane
  Endpoint old_local;
  Endpoint new_local;

  // Of a work or a step: "int8" if it travels so between hosts, or the chunk is cast to it, or from it; lives for ever.
  const char* wire = "";

  // Of a step, beside `peer`, and `operation` and `name` of the work.
  const char* verb = "";  // "send"; lives for ever
  uint32_t step = 0;
  uint64_t chunk = 0;
};

// Any thread. Off until start(), and then one branch for each event.
class Trace {
 public:
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Whether steps of plans are recorded, too.
  bool has_steps() const { return steps_.load(std::memory_order_relaxed); }
  // Holds at most `capacity` events until they are taken; what comes then is dropped, and counted.
  void start(size_t capacity, bool steps = false) {
    const std::lock_guard lock(mutex_);
    events_.clear();
    events_.reserve(capacity);
    capacity_ = capacity;
    dropped_ = 0;
    steps_ = steps;
    on_ = true;
  }
  // The events recorded so far can still be taken.
  void stop() { on_ = steps_ = false; }

  void put(const TraceEvent& event) {
    const std::lock_guard lock(mutex_);
    if (events_.size() < capacity_)
      events_.push_back(event);
    else
      ++dropped_;
  }

  // A bar of `track`, such as "wire" or "reducer h5:29700". Call it where on() is true. `bytes` 0 and `peer` -1: none.
  void span(std::string_view track, std::string_view name, Time begin, Time end, uint64_t bytes = 0, int peer = -1) {
    put(noted(TraceEvent::Kind::span, track, name, begin, end, bytes, peer));
  }
  // Something that happened at `at`; as span().
  void mark(std::string_view track, std::string_view name, Time at, uint64_t bytes = 0, int peer = -1) {
    put(noted(TraceEvent::Kind::mark, track, name, at, at, bytes, peer));
  }

  struct Taken {
    std::vector<TraceEvent> events;  // in order
    uint64_t dropped = 0;            // since the last time
  };
  Taken take() {
    Taken taken;
    std::unique_lock lock(mutex_);
    if (events_.empty() && dropped_ == 0) return taken;
    const size_t capacity = capacity_;
    lock.unlock();
    taken.events.reserve(capacity);  // never where the driver waits for it
    lock.lock();
    taken.events.swap(events_);
    std::swap(taken.dropped, dropped_);
    return taken;
  }

 private:
  static TraceEvent noted(TraceEvent::Kind kind, std::string_view track, std::string_view name, Time begin, Time end,
                          uint64_t bytes, int peer) {
    TraceEvent event;
    event.kind = kind;
    event.begin = begin;
    event.end = end;
    event.bytes = bytes;
    event.peer = peer;
    event.operation.set(track);
    event.name.set(name);
    return event;
  }

  std::atomic<bool> on_{false};
  std::atomic<bool> steps_{false};
  std::mutex mutex_;
  std::vector<TraceEvent> events_;
  size_t capacity_ = 0;
  uint64_t dropped_ = 0;
};

}  // namespace slipstream
