// What the ranks tell each other in one operation: a head of integers each, and a block of bytes
// (slipstream.comm.collectives.ragged).
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "boards/call_request.h"
#include "session/session.h"

namespace slipstream {

// What all ranks told this one, and what it told them: the memory of the operation.
class Told {
 public:
  using Sizes = std::vector<uint64_t>;
  static constexpr int64_t kNone = -1;  // in place of a block's size: it does not follow

  Told(size_t fields, size_t ranks, size_t room, size_t sent)
      : begin_((fields + 1) * sizeof(int64_t)),
        ranks_(ranks),
        room_(room),
        sent_(std::make_unique_for_overwrite<std::byte[]>(sent)),
        received_(std::make_unique_for_overwrite<std::byte[]>(ranks * room)) {
    for (size_t r = 0; r < ranks; ++r) std::memset(received() + r * room, 0, begin_);  // of messages without a head
  }

  std::byte* sent() const { return sent_.get(); }
  std::byte* received() const { return received_.get(); }

  // The integers of every rank's head.
  nanobind::list heads() const {
    nanobind::list all;
    for (size_t r = 0; r < ranks_; ++r) {
      nanobind::list head;
      for (size_t i = 0; i + 1 < begin_ / sizeof(int64_t); ++i) head.append(field(r, i));
      all.append(head);
    }
    return all;
  }
  // True if every rank's blocks followed its heads.
  bool whole() const {
    for (size_t r = 0; r < ranks_; ++r)
      if (sent_by(r) < 0) return false;
    return true;
  }
  // The first integer of every rank's head in `firsts`, if all others of the first `fields` are alike on all ranks;
  // else false.
  bool agree(Sizes& firsts, size_t fields) const {
    for (size_t r = 0; r < ranks_; ++r) {
      for (size_t i = 1; i < fields; ++i)
        if (field(r, i) != field(0, i)) return false;
      firsts.push_back(static_cast<uint64_t>(field(r, 0)));
    }
    return true;
  }
  // Puts the first sizes[r] bytes of every rank's block one after another.
  void join(uintptr_t to, const Sizes& sizes) const {
    auto* at = reinterpret_cast<std::byte*>(to);
    for (size_t r = 0; r < std::min(ranks_, sizes.size()); ++r) {
      take(r, 0, sizes[r], at);
      at += sizes[r];
    }
  }
  // Bytes [begin, begin + size) of one rank's block.
  void part(size_t rank, size_t begin, size_t size, uintptr_t to) const {
    if (rank < ranks_) take(rank, begin, size, reinterpret_cast<std::byte*>(to));
  }

  // An integer of a rank's head.
  int64_t field(size_t rank, size_t index) const {
    int64_t value = 0;
    std::memcpy(&value, received() + rank * room_ + index * sizeof value, sizeof value);
    return value;
  }

 private:
  // Bytes of a rank's block; kNone: it did not follow its head.
  int64_t sent_by(size_t rank) const { return field(rank, begin_ / sizeof(int64_t) - 1); }
  void take(size_t rank, size_t begin, size_t size, std::byte* to) const {
    const int64_t sent = sent_by(rank);
    const size_t most = std::min(room_ - begin_, static_cast<size_t>(std::max<int64_t>(sent, 0)));
    if (begin > most || size > most - begin) throw Failure(Code::internal, "a block is longer than its message");
    if (size > 0) std::memcpy(to, received() + rank * room_ + begin_ + begin, size);
  }

  size_t begin_;  // of the block in a message: bytes
  size_t ranks_;
  size_t room_;  // bytes of the longest message
  std::unique_ptr<std::byte[]> sent_;
  std::unique_ptr<std::byte[]> received_;
};

// Tells every rank one head and block, or each its own, and waits for theirs. Returns a Told.
nanobind::object tell(const std::shared_ptr<Session>& session, const CallRequest& request,
                      const std::vector<int64_t>& heads, uintptr_t blocks, const std::vector<uint64_t>& sizes,
                      bool whole, std::string name);

}  // namespace slipstream
