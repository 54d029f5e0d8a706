// One end's reads of the other end's private memory, so that what is sent from there is copied once.
//
// Which process the other end is, the kernel says (SO_PEERCRED, a number in our own pid namespace). Whether it can be
// read is tried: each end tells the other where a random number lies in its memory, and is told whether that was found.
//
// What was read counts only if the other end lives afterwards: as long as a process has not been waited for, nobody
// else gets its number. Its pidfd tells that it has ended, and its socket, which exec closes, that it runs another
// program. Without pidfds (Linux before 5.3) nothing is read. Private to this folder.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.h"
#include "transport/link.h"

namespace slipstream {

class PrivateReads {
 public:
  // How the other end finds out whether it can read our memory.
  struct Mark {
    uint64_t address;
    uint64_t number;
  };
  // What it answers: 0 if it can, else an errno; this one if it may not try.
  static constexpr int kOff = ECANCELED;

  explicit PrivateReads(SingleCopy choice);
  PrivateReads(const PrivateReads&) = delete;

  // Null if neither end shall read. It is true as long as this object lives.
  std::optional<Mark> mark() const;
  // What to answer to the other end's mark; `socket` leads to it.
  int meet(const Fd& socket, const Mark& mark);
  // Its answer to ours. Returns why it cannot read our memory, for people; empty if it can.
  std::string answered(uint64_t answer);
  // The choice that this was made with, once the other end has answered that it can; off before.
  SingleCopy allowed() const { return other_reads_ ? choice_ : SingleCopy::off; }
  // Counts bytes that the other end was left to read.
  void lent(uint64_t bytes) { lent_ += bytes; }
  uint64_t lent() const { return lent_; }

  // Copies bytes of the other end's. Returns 0, or an errno: then nothing counts.
  int read(const Fd& socket, uint64_t address, std::byte* to, size_t bytes);
  // Bytes read so far.
  uint64_t bytes() const { return bytes_; }

 private:
  bool ended(const Fd& socket) const;

  SingleCopy choice_;
  uint64_t number_ = 0;
  pid_t pid_ = 0;
  Fd process_;  // pidfd of the other end; none: it cannot be read
  bool other_reads_ = false;
  uint64_t bytes_ = 0;
  uint64_t lent_ = 0;
};

}  // namespace slipstream
