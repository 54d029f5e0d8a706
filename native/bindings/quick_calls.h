// The requests of a group's collectives that were called before with arrays alike: whoever finds one needs no more than
// a look at the arrays.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "bindings/board_call.h"
#include "boards/call_request.h"
#include "session/session.h"

namespace slipstream {

class QuickCalls {
 public:
  // all_gather, all_to_all, gather and scatter begin with what the ranks tell each other; what is too long to follow
  // that at once travels in an operation of its own: long_gather, long_exchange, long_collect, long_divide.
  enum class Kind : uint8_t {
    all_reduce,
    reduce_scatter,
    all_gather,
    broadcast,
    barrier,
    all_to_all,
    long_gather,
    long_exchange,
    gather,
    scatter,
    long_collect,
    long_divide,
    reduce,
    send,
    recv
  };
  // By the name of the collective.
  static Kind kind_of(std::string_view collective);
  // More than `add` takes, if the root is too large.
  static int which_reduce(int op, int root) { return root << 4 | op; }
  using Found = std::shared_ptr<const CallRequest>;

  explicit QuickCalls(std::shared_ptr<Session> session) : session_(std::move(session)) {}

  const std::shared_ptr<Session>& session() const { return session_; }
  // `size`: bits of the number of bytes (all_reduce, broadcast, reduce), elements of the input (reduce_scatter,
  // long_gather, long_exchange: all ranks have as many, and all blocks are alike), elements of a rank's block
  // (long_collect, long_divide), the tag (send, recv), else 0. `which`: the reduction or the root, both of a reduce
  // (`which_reduce`), the other rank (send, recv), else 0.
  void add(Kind kind, uint64_t size, int dtype, int which, const CallRequest& request);
  void clear() {
    requests_.clear();
    messages_ = 0;
  }
  // Null: there is none. Another thread may clear the table meanwhile.
  Found find(Kind kind, uint64_t size, int dtype, int which) const;
  // Of messages; null also if the arguments are none that a message may have.
  Found message(Kind kind, int dtype, int peer, int64_t tag) const;

  // What a barrier reduces, of this group alone: works of other groups may run on no memory of it.
  std::byte* token() const { return &token_; }

  // Runs it to its end.
  void run(const CallRequest& request, std::byte* src, std::byte* dst, uint64_t count, const Kept& keep,
           double timeout = 0) const;
  // Sends, or receives, a short message without a work. False, and nothing has happened, if it has to be one.
  bool send_at_once(const CallRequest& request, std::byte* data, uint64_t count) const;
  bool receive_at_once(const CallRequest& request, std::byte* data, uint64_t count) const;
  // As receive_at_once(), but does not wait for a message that has not come.
  bool take_at_once(const CallRequest& request, std::byte* data, uint64_t count) const;
  // Begins a message; returns its Work.
  nanobind::object submit(const CallRequest& request, std::byte* data, uint64_t count, nanobind::handle keep) const;

 private:
  static constexpr size_t kMost = 4096;          // requests
  static constexpr size_t kMostMessages = 1024;  // of messages among them: their tags may be many
  static constexpr int kSizeBits = 36;           // of a key: larger sizes have none
  static constexpr int kMostWhich = 0xffff;
  static uint64_t key(Kind kind, uint64_t size, int dtype, int which) {
    return static_cast<uint64_t>(kind) << 60 | static_cast<uint64_t>(dtype & 0xff) << 52 |
           static_cast<uint64_t>(which & kMostWhich) << kSizeBits | size;
  }

  std::shared_ptr<Session> session_;
  std::unordered_map<uint64_t, Found> requests_;
  size_t messages_ = 0;  // of them
  mutable std::byte token_{};
};

}  // namespace slipstream
