// `Link` is all that joins two ranks; `Events` is what a link tells its owner. Knows nothing of collectives.
//
// Threads: every method here is called by one thread at a time, the *driver* (engine/engine.h); a link has no
// locks. No method blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/cut.h"
#include "base/error.h"
#include "transport/frame.h"

namespace slipstream {

// Bytes that have arrived. `transient` bytes are valid during Events::arrived() only; others until
// Link::release(payload), which the owner calls exactly once for each payload with `hold != 0`.
struct Payload {
  const std::byte* data = nullptr;
  uint32_t size = 0;
  bool transient = false;
  uint64_t hold = 0;
  uint64_t remote = 0;  // `data` is null: the bytes still lie here in the peer's process, and Link::fetch() copies them
};

// What to say of a rank that said goodbye, with the reason that it gave ("finished and left the job" if it gave none).
inline std::string farewell(int rank, std::string_view reason) {
  constexpr size_t kMost = 1000;
  const std::string said = cut(reason, kMost);
  return "rank " + std::to_string(rank) + " " + (said.empty() ? "finished and left the job" : said);
}

struct LinkStatistics;

// Whether a bulk send may lie in this process's private memory although the link needs shared memory: the peer reads it
// there.
enum class SingleCopy : uint8_t {
  off,        // the peer cannot, or shall not
  uncached,   // only what caches do not hold can be cheaper so than by a copy in shared memory
  automatic,  // where that can be cheaper
  always,
};

class Link {
 public:
  enum class Kind : uint8_t { tcp, shm, memory };

  virtual ~Link() = default;

  // Sends a frame and `frame.length` bytes at `data`. True: the bytes have been taken, `data` is free again.
  // False: `data` must stay valid and unchanged until Events::sent(link, cookie).
  // Frames other than bulk data (length > kEagerBytes) are always taken at once. So is bulk with cookie 0, for which
  // the link has to have room: takes_at_once().
  // `urgency`: over a network bulk overtakes what is less urgent and has not begun to leave.
  virtual bool send(const Frame& frame, const std::byte* data, uint64_t cookie, int urgency = 0) = 0;

  // Whether the link has room now for a copy of so many bytes of bulk, as long as nothing else is sent.
  virtual bool takes_at_once(size_t /*bytes*/) const { return false; }

  // Returns the memory of a payload that arrived.
  virtual void release(const Payload& payload) = 0;

  // True if `data` of a bulk send has to lie in memory the peer can map (transport/region.h).
  virtual bool needs_shared_memory() const { return false; }

  // True if the peer is slow to read what this rank's caches hold, so that data for it belongs in memory.
  virtual bool far() const { return false; }

  virtual SingleCopy single_copy() const { return SingleCopy::off; }
  // Copies the bytes of a payload that has a `remote` address. False: the peer has died or left, or cannot be read any
  // more, and the link is about to go down.
  virtual bool fetch(const Payload& /*payload*/, std::byte* /*to*/) { return false; }

  // Memory of this rank that the peer may write to, by a name that remote() understands on its side. Null if it cannot.
  struct Shared {
    uint64_t region = 0;
    uint64_t offset = 0;
  };
  virtual std::optional<Shared> share(const std::byte* /*data*/, size_t /*bytes*/) { return std::nullopt; }
  // Where `bytes` bytes that the peer has shared lie in this process; null if they do not. Throws Failure if this
  // process could not take that memory.
  virtual std::byte* remote(const Shared& /*shared*/, size_t /*bytes*/) { return nullptr; }
  // As remote(), but it stays there, and both may write to it, as long as somebody holds it: longer than the link.
  virtual std::shared_ptr<std::byte> hold(const Shared& /*shared*/, size_t /*bytes*/) { return nullptr; }
  // As remote(), to write there at once; null, too, if the peer has taken its memory back (it has failed or left). If
  // it does so before end_write(), what is written does not reach it.
  virtual std::byte* begin_write(const Shared& /*shared*/, size_t /*bytes*/) { return nullptr; }
  virtual void end_write() {}

  // To be asked after a payload has been read. False if its owner had taken the memory back by then: what was read may
  // have been anything, and the link is about to go down.
  virtual bool intact(const Payload& /*payload*/) const { return true; }

  // Sends what is queued and closes in good order; the link object lives on until its owner deletes it. When close()
  // returns, the link needs none of the memory that was given to send() or land(), and makes no more upcalls; nor does
  // the peer write to what share() has told it, or count what it reads of it.
  virtual void close() = 0;

  // The peer has opened another link. True if this one had broken, and is down for good now: the other one may take its
  // place. False: it lives, and stays.
  virtual bool superseded() { return false; }

  // Bytes that a sender should have under way: enough to fill the link, and no more than that where caches matter.
  virtual size_t window() const { return SIZE_MAX; }

  // Bytes a second that it takes while it is busy; 0: not known.
  virtual double rate() const { return 0; }

  // Payload that did not come through the link: the engine has put it into the peer's memory, or the peer into ours.
  void count(uint64_t sent, uint64_t received) {
    sent_ += sent;
    received_ += received;
  }

  // What it has done so far, also after it has closed.
  virtual LinkStatistics statistics() const;

  // Why the peer cannot be reached at the moment, as text; empty if no reason is known.
  virtual std::string trouble() const { return {}; }

  int peer() const { return peer_; }
  Kind kind() const { return kind_; }
  bool up() const { return up_; }
  Time last_heard() const { return last_heard_; }  // when any byte last came from the peer

 protected:
  Link(int peer, Kind kind) : peer_(peer), kind_(kind), last_heard_(now()) {}

  uint64_t received() const { return received_; }

  int peer_;
  Kind kind_;
  bool up_ = false;
  Time last_heard_;

 private:
  uint64_t sent_ = 0;  // bytes of payload so far, of links over shared memory; others count by the lane
  uint64_t received_ = 0;
};

// What one connection of a link has done.
struct LaneStatistics {
  std::string local;   // address:port
  std::string remote;  // address:port
  bool control = false;
  bool up = false;
  uint64_t sent = 0;            // bytes of payload
  uint64_t received = 0;        // bytes of payload
  double rate = 0;              // bytes a second that it takes while it is busy
  uint64_t delivery = 0;        // bytes a second, as the kernel sees it
  uint32_t rtt_us = 0;          // as the kernel sees it
  uint64_t retransmits = 0;     // segments of TCP's
  bool zero_copy = false;       // large sends are not copied, as far as is known yet
  uint64_t zero_copied = 0;     // bytes that the kernel says it sent without a copy
  uint64_t zero_copy_from = 0;  // sends of this size and more are lent, as far as is known yet; 0: none
};

// What a link has done. Over shared memory there is nothing to lose, and there are no lanes.
struct LinkStatistics {
  int peer = -1;
  Link::Kind kind = Link::Kind::tcp;
  bool closed = false;         // it will do no more
  uint64_t sent = 0;           // bytes of payload, over shared memory; of tcp the lanes tell
  uint64_t received = 0;       // the same
  bool single_copy = false;    // over shared memory: the peer can read this rank's private memory
  uint64_t single_copied = 0;  // bytes that it was left to read there
  uint64_t lost = 0;           // connections that broke
  uint64_t replaced = 0;       // connections that were too slow for too long
  uint64_t repeated = 0;       // bytes sent again
  uint64_t dropped = 0;        // bytes that had come already
  bool encrypted = false;
  uint64_t damaged = 0;  // connections that were left because what came was not what was sent
  std::vector<LaneStatistics> lanes;
};

inline LinkStatistics Link::statistics() const {
  LinkStatistics found;
  found.peer = peer_;
  found.kind = kind_;
  found.sent = sent_;
  found.received = received_;
  return found;
}

// Upcalls of a link, on the driver's thread.
class Events {
 public:
  virtual ~Events() = default;

  struct Landing {
    bool ok = true;             // false: this frame cannot be right; the link fails with `internal`
    std::byte* into = nullptr;  // final memory for the payload, or null: the link keeps it in a block of its own
  };
  // A data frame's header is here and its payload is next (stream transports only).
  virtual Landing land(Link& link, const Frame& frame) = 0;
  // A whole frame is here. If land() gave memory, payload.data is that memory.
  virtual void arrived(Link& link, const Frame& frame, const Payload& payload) = 0;
  // A send that returned false has been taken.
  virtual void sent(Link& link, uint64_t cookie) = 0;
  // The peer is authenticated and reachable.
  virtual void up(Link& link) = 0;
  // The link is gone: nothing more will come of it. Called once, never from inside send().
  virtual void down(Link& link, const Error& error) = 0;
};

}  // namespace slipstream
