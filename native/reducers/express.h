// Small all-reduces through one reducer: a hop up and a hop down, and no verdict (split_work.h) to wait for.
//
// A slice is done as soon as its result is here. What a verdict is for, that the others may not have it, is seen to
// when the session with the reducer ends: it ends on every rank then, for a session that one rank leaves fails on all
// of them. The ranks agree on what each has, give the results that somebody has to those who have not, from copies
// kept for that, and reduce the rest among themselves. Later slices belong to others.
//
// No message says what the others have. A rank begins slice s only when all its slices up to s - kAhead are done, and
// a result of slice s needs every rank's part: so who has it knows that all have those up to s - kAhead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reducers/parts.h"

namespace slipstream {

class Express : public std::enable_shared_from_this<Express> {
 public:
  static constexpr uint64_t kAhead = 16;            // slices under way at once
  static constexpr uint32_t kMostBytes = 32 << 10;  // of a slice

  using Done = std::function<void(const Error&)>;

  // `session`, and the group of the workers and the reducer in it, must stay until end(). `lost` is told why this rank
  // cannot use the session any more.
  Express(const ReducerContext& context, Session& session, std::shared_ptr<const Group> group, uint64_t incarnation,
          std::function<void(const std::string& why)> lost);

  // Whether a whole work is small.
  static bool is_small(const Request& request) {
    return request.spaces[0].count * size_of(request.signature.dtype) < kMostBytes;
  }

  // All ranks have agreed to use it: it takes slices, and has a verdict when it ends.
  void agree();
  // It takes the next slice: the same on all ranks that have begun as many.
  bool open() const { return !ended_ || next_ < redo_below_; }
  // Not now: too many are under way, or it is not known yet what became of some.
  bool busy() const { return (agreed_ && ended_ && !judged_) || next_ - undone_ >= kAhead; }
  // Nothing that it has begun is under way, and it begins no more but what others have begun.
  bool over() const { return !agreed_ || (ended_ && judged_ && undone_ == next_); }
  // `request` has the plan and the channel of nothing yet; its input stays, and its output is not read, until `done`.
  void begin(Request request, Done done);
  // The session is at its end. Idempotent.
  void end();

 private:
  struct Slice {
    Request request;
    Done done;  // null once it has been told
    std::shared_ptr<std::vector<uint8_t>> received;
    std::vector<std::byte> result;  // a copy
    bool has = false;
  };

  Slice& slice(uint64_t number) { return slices_[number - base_]; }
  // Submits `work` to `session`. Once it is done, calls `f` with its error, and with the mutex.
  template <class F>
  void run(Session& session, const WorkPtr& work, F f);
  void came(uint64_t number, const Error& error);
  void settle(uint64_t number, const Error& error);
  void forget();
  void give_verdict();
  void judge(const Error& error);
  void redo(uint64_t number);
  void repair(uint64_t number);
  uint64_t channel(uint64_t use) const { return channel_of(*context_.group, incarnation_, use); }
  Request status_request(const char* operation, std::byte* data, size_t bytes) const;

  const ReducerContext& context_;
  Session* session_;
  const std::shared_ptr<const Group> group_;
  const uint64_t incarnation_;
  const std::function<void(const std::string& why)> lost_;
  std::deque<Slice> slices_;  // the first has number base_
  uint64_t base_ = 0;
  uint64_t next_ = 0;
  uint64_t undone_ = 0;      // the first that is not done, or next_
  uint64_t under_way_ = 0;   // in the session with the reducer
  uint64_t redo_below_ = 0;  // once judged: those that some rank has begun
  bool agreed_ = false;
  bool ended_ = false;
  bool judged_ = false;
  std::vector<uint64_t> words_;  // bits by number modulo 64: begun; the result is here; it is wanted
};

}  // namespace slipstream
