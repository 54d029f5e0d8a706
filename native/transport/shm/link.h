// One shared-memory link; see shm.h. Private to this folder.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "base/admission.h"
#include "transport/handshake.h"
#include "transport/shm/access.h"
#include "transport/shm/descriptor_channel.h"
#include "transport/shm/distance.h"
#include "transport/shm/entry_queue.h"
#include "transport/shm/links.h"
#include "transport/shm/peer_regions.h"
#include "transport/shm/private_reads.h"
#include "transport/shm/ring.h"
#include "transport/shm/tickets.h"
#include "transport/shm/transport.h"

namespace slipstream {

// What a link's mapping begins with; the entries from the dialler and from the acceptor follow.
struct LinkPair {
  Access access_of(bool is_dialler) { return is_dialler ? Access(&dialler, &acceptor) : Access(&acceptor, &dialler); }
  Distance distance_of(bool is_dialler) {
    return is_dialler ? Distance(&dialler_on, &acceptor_on) : Distance(&acceptor_on, &dialler_on);
  }
  // The entries from the dialler, or from the acceptor: `bytes` each, behind this. All-zero memory is empty rings.
  Ring ring_from(bool is_dialler, size_t bytes) {
    auto* entries = reinterpret_cast<std::byte*>(this + 1);
    return is_dialler ? Ring(&from_dialler, entries, bytes) : Ring(&from_acceptor, entries + bytes, bytes);
  }

  Ring::Shared from_dialler;
  Ring::Shared from_acceptor;
  alignas(64) Access::End dialler;
  Access::End acceptor;
  Distance::End dialler_on;
  Distance::End acceptor_on;
};

// Bytes of a mapping with two rings of `ring` bytes.
constexpr size_t mapping_of(size_t ring) { return sizeof(LinkPair) + 2 * ring; }

// Whether an entry of a ring stands for data, or tells the peer that its data has been read.
bool must_arrive(uint32_t kind, std::span<const std::byte> body);

class ShmLink final : public Link, private Handler {
 public:
  // We dial.
  ShmLink(std::shared_ptr<ShmTransport::Impl> home, int peer, std::string listener);
  // The peer has dialled us and is authenticated.
  ShmLink(std::shared_ptr<ShmTransport::Impl> home, int peer, Fd socket, Handshake handshake);
  ~ShmLink() override;

  bool send(const Frame& frame, const std::byte* data, uint64_t cookie, int urgency) override;
  bool takes_at_once(size_t bytes) const override {  // so that an empty ring has room for it, wherever it begins
    return up_ && messages_.empty() && bytes <= incoming_.bytes() / 4 && entries_.takes(sizeof(Frame) + bytes);
  }
  void release(const Payload& payload) override;
  bool needs_shared_memory() const override { return true; }
  bool far() const override { return distance_.far(); }
  SingleCopy single_copy() const override { return private_.allowed(); }
  bool fetch(const Payload& payload, std::byte* to) override;
  std::optional<Shared> share(const std::byte* data, size_t bytes) override;
  std::byte* remote(const Shared& shared, size_t bytes) override { return hold(shared, bytes).get(); }
  std::shared_ptr<std::byte> hold(const Shared& shared, size_t bytes) override;
  std::byte* begin_write(const Shared& shared, size_t bytes) override;
  void end_write() override { access_.end_write(); }
  bool intact(const Payload& payload) const override { return payload.hold == 0 || access_.intact(); }
  LinkStatistics statistics() const override;
  void close() override;

  bool poll();
  bool pending() const { return open_ && up_ && !incoming_.empty(); }
  // True if a last frame, or close(), would lose data that waits for room.
  bool owes() const { return open_ && up_ && (!messages_.empty() || entries_.any_waits(must_arrive)); }
  bool congested() const { return open_ && (!entries_.empty() || !messages_.empty()); }
  void drop_region(uint32_t id);
  // Dials again, or fails a link that did not come up in time; returns when to look again.
  Time tick(Time now);

 private:
  using Message = DescriptorChannel::Message;
  enum class Phase { handshake, setup, up };

  void ready(uint32_t events) override;
  // One attempt; tick() makes the next.
  void dial();
  void dial_again(std::string why);
  void continue_handshake();
  enum class Received { nothing, message, end };  // nothing: also if the link has failed
  Received receive_message();
  void accept_setup(const Message& message, std::vector<Fd> fds);
  void become_up(size_t ring_bytes, Fd link_memory, Fd bell_page, Fd bell_event);
  void send_mark();
  // The peer's region, or null; reads its announcement if that is still in the socket.
  std::shared_ptr<Mapping> find_region(uint32_t id);
  void peer_is_gone();
  void fail(Error error);

  // Sends an entry with this body, or has it wait for room and for the descriptors before it.
  void push(uint32_t kind, uint64_t value, std::span<const std::byte> head = {}, std::span<const std::byte> tail = {});
  bool flush_entries();
  bool handle(const Ring::EntryHeader& entry, const std::byte* body);
  void handle_frame(const Ring::EntryHeader& entry, const std::byte* body);
  void handle_descriptor(uint64_t value, const Frame& frame, uint64_t offset);
  bool handle_private(uint64_t ticket, const Frame& frame, uint64_t address);

  std::shared_ptr<ShmTransport::Impl> home_;
  Fd socket_;
  Handshake handshake_;
  bool dialler_;
  bool open_ = true;
  bool peer_said_goodbye_ = false;
  std::string goodbye_reason_;
  Phase phase_ = Phase::handshake;
  Time deadline_;
  std::string listener_;      // of the peer, if we dial
  Time again_ = Time::max();  // when to dial again
  std::string why_;           // the last attempt was in vain
  Error refusal_;             // the link fails with it at the deadline

  Fd memory_fd_;
  Mapping memory_;
  Ring incoming_;
  Access access_;
  Distance distance_;
  std::unique_ptr<Bell> peer_bell_;
  DescriptorChannel messages_;  // on the unix socket, after the handshake
  EntryQueue entries_;          // wait while messages wait: they may need the regions
  PeerRegions peer_regions_;
  std::unordered_set<uint32_t> announced_;
  Tickets tickets_;
  PrivateReads private_;
};

// A connection to a rank's unix socket under way, or an errno.
Fd connect_unix(const std::string& name, int& error);

inline constexpr double kDialPause = 0.02;  // seconds

struct ShmTransport::Impl : Handler, std::enable_shared_from_this<ShmTransport::Impl> {
  Impl(Poller& p, Events& e, Arrivals& a, Identity i, Regions& r, Bell& b, double c);
  ~Impl() override;

  // A connection that has not proved who it is.
  struct Greeting;
  // A knock of ours that has not been answered.
  struct Knock;

  void ready(uint32_t events) override;
  void greeted(Greeting& greeting);
  void refuse(std::unique_ptr<Greeting> greeting, const std::string& why);
  void answered(Knock& knock, bool alive, std::string why);
  void pause(Time until);
  void accept_again();

  Poller& poller;
  Events& events;
  Arrivals& arrivals;
  Identity identity;
  Regions& regions;
  Bell& bell;
  double connect_seconds;
  size_t ring_bytes = Ring::kMost;  // of the links that we dial
  SingleCopy single_copy = SingleCopy::off;
  Fd listener;
  Time accepts_at = Time::max();  // when to listen again, after a pause
  ShmLinks links;
  Admission<Greeting> greetings;
  std::vector<std::unique_ptr<Knock>> knocks;
};

}  // namespace slipstream
