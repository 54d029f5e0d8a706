// What the table knows of a kind of call: its request, which is made in Python once, and kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "boards/call_request.h"
#include "capi/slipstream.h"

namespace slipstream {

class Session;

}  // namespace slipstream

namespace slipstream::capi {

struct Range {
  std::byte* data = nullptr;
  uint64_t bytes = 0;
};

struct Prepared {
  // Memory of our own in the place of `src` (in) or `dst` (out): where reducers take part in what is no all-reduce.
  enum class Scratch : uint8_t { none, in, out };

  explicit Prepared(CallRequest made) : request(std::move(made)) {}
  CallRequest request;
  int64_t count = -1;        // elements that the engine is told of; -1: those of the call
  uint64_t saved_bytes = 0;  // of a call, by its wire type
  Scratch scratch = Scratch::none;
  uint64_t scratch_bytes = 0;
  // Which part of it is copied from `src` as the work begins, or to `dst` when it is done.
  uint64_t copy_begin = 0, copy_bytes = 0;
};

// Told how a call went that has to be looked at, one by one.
class Watcher {
 public:
  virtual ~Watcher() = default;
  // `work`: null if it has ended. Its caller is told of its end in any case, so what goes wrong here is only logged.
  virtual void ran(const std::shared_ptr<Session>& session, const WorkPtr& work) noexcept = 0;
};

// What is asked for, but for the memory. Its tables have a number for each rank, or are null.
struct Ask {
  const slipstream_call& call;
  uint64_t count;  // of the call, of each block
  size_t ranks;
};

struct Answer {
  std::shared_ptr<const Prepared> prepared;
  bool keep = true;                  // for all calls of its kind
  std::unique_ptr<Watcher> watcher;  // only of this call
};

// Where requests come from. Throws Failure. Any thread, which holds no lock of the table.
class Maker {
 public:
  virtual ~Maker() = default;
  virtual Answer make(const Ask& ask) = 0;
  // Copies of results are still to be made somewhere in the process: those to this memory are made before it is used.
  virtual void settle(const Ask& ask, const Range& in, const Range& out) = 0;
};

// How many copies of results are still to be made. Not less than there are.
void note_copies(int more);
bool copies_open();

// Bytes that wire types have saved in calls by the table, of this process.
uint64_t saved_bytes();

}  // namespace slipstream::capi
