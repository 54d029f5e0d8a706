// One end's reads of the other end's private memory, so that what is sent from there is copied once.
//
// Which process the other end is, the kernel says (SO_PEERCRED, a number in our own pid namespace). Whether it can be
// read is tried: each end tells the other where a random number lies in its memory, and is told whether that was found.
//
// Whether it pays depends on the kernel and on the caches, so that is measured then, too: with each mark the owner
// writes the same few pages into shared memory and into private memory, and the other end takes the time that it needs
// to copy the one, and the time that the kernel needs to copy the other. A mark that both ends handle on one core tells
// nothing of that.
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
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/link.h"

namespace slipstream {

class PrivateReads {
 public:
  // How the other end finds out whether it can read our memory.
  struct Mark {
    uint64_t address;
    uint64_t number;
    uint64_t probe;  // where kProbe bytes lie that its owner has just written
    uint64_t core;   // on which it has
  };
  static constexpr size_t kProbe = 24 << 10;  // two fit a small ring, wherever they begin
  static constexpr size_t kCounting = 8;      // marks that decide
  static constexpr int kMost = 32;            // marks
  // What it answers: 0 if it can and that pays, else an errno or one of these: it may not try; it asks for another
  // mark; it asks for one when the ranks may have changed their cores; it has asked in vain; it can, but that takes
  // longer than to copy twice (with both times), where caches hold the data.
  static constexpr uint64_t kOff = ECANCELED;
  static constexpr uint64_t kAgain = EAGAIN;
  static constexpr uint64_t kLater = EBUSY;
  static constexpr uint64_t kAlone = ENODATA;
  static constexpr uint64_t kDear = ETIME;

  explicit PrivateReads(SingleCopy choice);
  PrivateReads(const PrivateReads&) = delete;

  // Null if neither end shall read, or if the ring has no `room` for a probe and the choice needs one (rings of many
  // ranks are small: these copy twice). It is true as long as this object lives, its probe until there is another mark
  // or an answer to it that asks for none.
  std::optional<Mark> mark(bool room = true);
  // When to send the next mark, as the other end asks for; Time::max() if it does not.
  Time due() const { return due_; }
  // The same bytes as in the probe of the mark, for shared memory.
  std::span<const std::byte> probe() const { return probe_; }
  // What to answer to the other end's mark; `socket` leads to it, `shared` are its probe's bytes in shared memory.
  uint64_t meet(const Fd& socket, const Mark& mark, std::span<const std::byte> shared);
  // The same for both as they have come; null if they are malformed.
  std::optional<uint64_t> meet(const Fd& socket, std::span<const std::byte> message);
  // Its answer to ours. Returns why it does not read our memory, or not always, for people; empty if it does, or asks
  // for a mark.
  std::string answered(uint64_t answer);
  // Whether an answer that is bad tells of times, and not of what is permitted.
  static bool by_time(uint64_t answer) { return answer == kAlone || (answer & 0xffff) == kDear; }
  // What meet() answers, by the times that a private and a shared probe have taken.
  static uint64_t judge(Clock::duration from_private, Clock::duration from_shared);
  // The choice that this was made with, or uncached, once the other end has answered that it does; off before.
  SingleCopy allowed() const { return allowed_; }
  // Counts bytes that the other end was left to read.
  void lent(uint64_t bytes) { lent_ += bytes; }
  uint64_t lent() const { return lent_; }

  // Copies bytes of the other end's. Returns 0, or an errno: then nothing counts.
  int read(const Fd& socket, uint64_t address, std::byte* to, size_t bytes);
  // Bytes read so far.
  uint64_t bytes() const { return bytes_; }

 private:
  bool ended(const Fd& socket) const;
  int identify(const Fd& socket, const Mark& mark);
  int measure(const Mark& mark, std::span<const std::byte> shared);

  SingleCopy choice_;
  std::vector<std::byte> probe_;  // of our mark
  int met_ = 0;                   // marks of the other end's
  // Of the marks that were measured. The least of what the kernel needs: more is others' work. The median for shared
  // memory: less is a line that happened to be near.
  Clock::duration from_private_ = Clock::duration::max();
  std::vector<Clock::duration> from_shared_;
  Time due_ = Time::max();
  int late_ = 0;  // marks that the other end has asked for later
  uint64_t number_ = 0;
  pid_t pid_ = 0;
  Fd process_;  // pidfd of the other end; none: it cannot be read
  SingleCopy allowed_ = SingleCopy::off;
  uint64_t bytes_ = 0;
  uint64_t lent_ = 0;
};

}  // namespace slipstream
