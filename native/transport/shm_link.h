// One shared-memory link; see shm.h. Private to this folder.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "transport/handshake.h"
#include "transport/ring.h"
#include "transport/shm.h"

namespace slipstream {

class ShmLink final : public Link, private Handler {
 public:
  // `handshake` still going: we dialled. Done: the peer did.
  ShmLink(std::shared_ptr<ShmTransport::Impl> home, int peer, Fd socket, Handshake handshake, bool dialler);
  ~ShmLink() override;

  bool send(const Frame& frame, const std::byte* data, uint64_t cookie) override;
  void release(const Payload& payload) override;
  bool needs_shared_memory() const override { return true; }
  std::optional<Shared> share(const std::byte* data, size_t bytes) override;
  std::byte* remote(const Shared& shared, size_t bytes) override;
  void close() override;

  bool poll();
  bool pending() const { return open_ && up_ && !incoming_.empty(); }
  bool congested() const { return open_ && !backlog_.empty(); }
  void drop_region(uint32_t id);
  // The peer's listener is not there: the link fails at the next tick.
  void refuse(Error error);
  // Fails a link that did not come up in time; returns when to look again.
  Time tick(Time now);

 private:
  struct Pair {  // what the link's mapping holds
    Ring::Shared from_dialler;
    Ring::Shared from_acceptor;
  };
  struct Message {  // on the unix socket, after the handshake
    uint32_t kind;
    uint32_t id;
    uint64_t size;
  };
  struct Queued {
    uint32_t kind;
    uint64_t value;
    std::vector<std::byte> body;
  };
  enum class Phase { handshake, setup, up };

  void ready(uint32_t events) override;
  void continue_handshake();
  void offer_setup();
  enum class Received { nothing, message, end };  // nothing: also if the link has failed
  // Reads one message with its descriptors.
  Received receive_message();
  void accept_setup(const Message& message, std::vector<Fd> fds);
  void become_up(Fd link_memory, Fd bell_page, Fd bell_event);
  void send_message(const Message& message, std::initializer_list<int> fds);
  void announce(const Region& region);
  // The peer's region, or null; reads its announcement if that is still in the socket.
  const Mapping* find_region(uint32_t id);
  void cannot_map(const Failure& failure);
  void peer_is_gone();
  void fail(Error error);

  void push(uint32_t kind, uint64_t value, const void* a, size_t a_bytes, const void* b, size_t b_bytes);
  bool try_push(uint32_t kind, uint64_t value, const void* a, size_t a_bytes, const void* b, size_t b_bytes);
  bool flush_backlog();
  bool handle(const Ring::Record& record, const std::byte* body);
  void handle_frame(const Ring::Record& record, const std::byte* body);
  void handle_descriptor(const Ring::Record& record, const std::byte* body);

  std::shared_ptr<ShmTransport::Impl> home_;
  Fd socket_;
  Handshake handshake_;
  bool dialler_;
  bool open_ = true;
  bool peer_said_goodbye_ = false;
  Phase phase_ = Phase::handshake;
  Time deadline_;
  Error refusal_;

  Fd memory_fd_;
  Mapping memory_;
  Ring incoming_;
  Ring outgoing_;
  std::unique_ptr<Bell> peer_bell_;
  std::deque<Queued> backlog_;
  std::unordered_map<uint32_t, Mapping> peer_regions_;
  std::unordered_set<uint32_t> announced_;
  std::vector<std::optional<uint64_t>> tickets_;  // cookie of each descriptor in flight
  std::vector<uint32_t> free_tickets_;
};

struct ShmTransport::Impl : Handler, std::enable_shared_from_this<ShmTransport::Impl> {
  Impl(Poller& p, Events& e, Arrivals& a, Identity i, Regions& r, Bell& b);
  ~Impl() override;

  // A connection that has not proved who it is.
  struct Greeting;
  // A knock of ours that has not been answered.
  struct Knock;

  void ready(uint32_t events) override;
  void greeted(Greeting& greeting);
  void forget(const Greeting& greeting);
  void answered(Knock& knock, bool alive, const std::string& why);

  Poller& poller;
  Events& events;
  Arrivals& arrivals;
  Identity identity;
  Regions& regions;
  Bell& bell;
  Fd listener;
  std::vector<ShmLink*> links;
  std::deque<std::unique_ptr<Greeting>> greetings;
  std::vector<std::unique_ptr<Knock>> knocks;
};

}  // namespace slipstream
