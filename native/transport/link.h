// `Link` is all that joins two ranks; `Events` is what a link tells its owner. Knows nothing of collectives.
//
// Threads: every method here is called by one thread at a time, the *driver* (engine/engine.h); a link has no
// locks. No method blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
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
};

// What to say of a rank that said goodbye, with the words it gave ("finished and left the job" if it gave none).
inline std::string farewell(int rank, std::string_view words) {
  constexpr size_t kMost = 1000;
  const std::string said(words.substr(0, kMost));
  return "rank " + std::to_string(rank) + " " + (said.empty() ? "finished and left the job" : said);
}

class Link {
 public:
  enum class Kind : uint8_t { tcp, shm, memory };

  virtual ~Link() = default;

  // Sends a frame and `frame.length` bytes at `data`. True: the bytes have been taken, `data` is free again.
  // False: `data` must stay valid and unchanged until Events::sent(link, cookie).
  // Frames other than bulk data (length > kEagerBytes) never wait behind bulk and are always taken at once.
  virtual bool send(const Frame& frame, const std::byte* data, uint64_t cookie) = 0;

  // Gives back a payload that arrived.
  virtual void release(const Payload& payload) = 0;

  // True if `data` of a bulk send has to lie in memory the peer can map (transport/region.h).
  virtual bool needs_shared_memory() const { return false; }

  // Memory of this rank that the peer may write to, by a name that remote() understands on its side. Null if it cannot.
  struct Shared {
    uint64_t region = 0;
    uint64_t offset = 0;
  };
  virtual std::optional<Shared> share(const std::byte* /*data*/, size_t /*bytes*/) { return std::nullopt; }
  // Where `bytes` bytes that the peer has shared lie in this process; null if they do not.
  virtual std::byte* remote(const Shared& /*shared*/, size_t /*bytes*/) { return nullptr; }
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
  // Bytes of payload so far, of links over shared memory; others count by the lane.
  uint64_t sent_bytes() const { return sent_; }
  uint64_t received_bytes() const { return received_; }

  // What keeps it from the peer at the moment, for people; empty if nothing is known to.
  virtual std::string trouble() const { return {}; }

  int peer() const { return peer_; }
  Kind kind() const { return kind_; }
  bool up() const { return up_; }
  Time last_heard() const { return last_heard_; }  // when any byte last came from the peer

 protected:
  Link(int peer, Kind kind) : peer_(peer), kind_(kind), last_heard_(now()) {}

  int peer_;
  Kind kind_;
  bool up_ = false;
  Time last_heard_;

 private:
  uint64_t sent_ = 0;
  uint64_t received_ = 0;
};

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
