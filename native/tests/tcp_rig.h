// Ranks for the transport's tests: each has a poller, a transport, and a record of what it was told.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "engine/work_header.h"
#include "transport/handshake.h"
#include "transport/tcp/control_frames.h"
#include "transport/tcp/io_threads.h"
#include "transport/tcp/lane_control.h"
#include "transport/tcp/segments.h"
#include "transport/tcp/transport.h"

namespace slipstream::rig {

// A test program may have all its ranks encrypt.
#ifndef SLIPSTREAM_TEST_ENCRYPT
#define SLIPSTREAM_TEST_ENCRYPT 0
#endif

inline Identity identity(int rank, const std::string& secret = "a secret of sixteen bytes or more") {
  Identity id;
  id.encrypt = SLIPSTREAM_TEST_ENCRYPT != 0;
  id.secret = secret;
  id.rank = rank;
  id.size = 16;
  return id;
}

// A test program may have all its ranks share their system calls with threads.
#ifndef SLIPSTREAM_TEST_IO_THREADS
#define SLIPSTREAM_TEST_IO_THREADS 0
#endif

struct Received {
  Frame frame;
  std::vector<std::byte> bytes;
};

class Rank : public Events, public Arrivals, public KnockDone {
 public:
  explicit Rank(int rank, TcpOptions options = {}, Identity id = identity(0), std::string at = "127.0.0.1")
      : address(std::move(at)) {
    id.rank = rank;
    options.threads = SLIPSTREAM_TEST_IO_THREADS;
    transport = std::make_unique<TcpTransport>(poller, *this, *this, std::move(id), options);
    port = transport->listen(address);
  }

  Link* dial(const Rank& other, int rank) {
    links.push_back(transport->dial(rank, {other.address}, other.port));
    return links.back().get();
  }

  Landing land(Link&, const Frame& frame) override {
    ++lands;
    return on_land ? on_land(frame) : Landing{};
  }
  void arrived(Link& link, const Frame& frame, const Payload& payload) override {
    received.push_back({frame, {payload.data, payload.data + payload.size}});
    if (payload.hold != 0) {
      if (keep)
        held.push_back(payload);
      else
        link.release(payload);
    }
    if (on_arrived) on_arrived(link, frame);
  }
  void sent(Link&, uint64_t cookie) override { cookies.push_back(cookie); }
  void up(Link& link) override { ups.push_back(&link); }
  void down(Link&, const Error& error) override { downs.push_back(error); }
  void accepted(std::unique_ptr<Link> link) override { links.push_back(std::move(link)); }
  void knocked(int rank) override { knocks.push_back(rank); }
  void stranger(const std::string& who, const std::string& why) override { strangers.push_back(who + " " + why); }
  void knock_done(int, bool alive, const Error& why) override {
    knock_results.push_back(alive);
    knock_why = why.text;
  }

  Poller poller;
  std::unique_ptr<TcpTransport> transport;
  std::string address;
  uint16_t port = 0;
  std::vector<std::unique_ptr<Link>> links;
  std::vector<Link*> ups;
  std::vector<Error> downs;
  std::vector<Received> received;
  std::vector<uint64_t> cookies;
  std::vector<int> knocks;
  std::vector<std::string> strangers;
  std::vector<bool> knock_results;
  std::string knock_why;
  std::vector<Payload> held;
  bool keep = false;
  int lands = 0;
  std::function<Landing(const Frame&)> on_land;
  std::function<void(Link&, const Frame&)> on_arrived;
};

// Runs the ranks in turn until `until` holds; false after `limit` seconds.
inline bool run(std::initializer_list<Rank*> ranks, const std::function<bool()>& until, double limit = 20) {
  const Time end = now() + seconds(limit);
  while (!until()) {
    if (now() > end) return false;
    int called = 0;
    for (Rank* rank : ranks) called += rank->poller.wait(0);
    if (called == 0) (*ranks.begin())->poller.wait(1);
  }
  return true;
}

inline bool connect(Rank& a, Rank& b, int rank_of_b) {
  a.dial(b, rank_of_b);
  return run({&a, &b}, [&] { return !a.ups.empty() && !b.ups.empty(); });
}

// A type that the transport carries and does not know.
inline constexpr FrameType kUsersType = static_cast<FrameType>(MessageType::ready);

inline Frame frame(FrameType type, uint32_t length, uint32_t seq = 0) {
  return WorkHeader{.type = static_cast<MessageType>(type), .length = length, .seq = seq};
}
inline uint32_t seq_of(const Frame& frame) { return WorkHeader::of(frame).seq; }

inline std::vector<std::byte> pattern(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  uint32_t x = seed * 2654435761u + 1;
  for (std::byte& b : bytes) {
    x = x * 1664525u + 1013904223u;
    b = static_cast<std::byte>(x >> 24);
  }
  return bytes;
}

// A segment of a bulk message as it is on the wire, but for its check: all of the message, unless `size` says less.
inline std::vector<std::byte> segment(const Frame& f, uint64_t message, uint32_t offset = 0, uint32_t size = 0) {
  const SegmentHeader header{f, message, offset, size == 0 ? f.length : size};
  std::vector<std::byte> bytes(sizeof(header) + header.size);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

// With the check of the `place`th segment of its connection; `payload`: with one of its payload, too.
inline void seal_segment(std::span<std::byte> bytes, uint64_t place, bool payload = false) {
  SegmentHeader header;
  std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof(header));
  header.check.payload = payload ? payload_check(bytes.subspan(sizeof(header))) : 0;
  seal(header, place);
  std::memcpy(bytes.data(), &header, sizeof(header));
}

// A control frame as it is on the wire at this place of the stream, with zeros for its payload.
inline std::vector<std::byte> control_bytes(const Frame& f, uint64_t place) {
  ControlHeader header{f, {}};
  seal(header, f.type == FrameType::resume ? kResumePlace : place);
  std::vector<std::byte> bytes(sizeof(header) + f.length);
  std::memcpy(bytes.data(), &header, sizeof(header));
  return bytes;
}

// Of raw clients that have authenticated, by socket; null if they do not encrypt.
inline std::map<int, std::unique_ptr<Records>>& raw_records() {
  static std::map<int, std::unique_ptr<Records>> all;
  return all;
}

// A plain blocking client, for strangers and for peers that misbehave.
inline Fd raw_connect(uint16_t port) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return {};
  raw_records().erase(fd.get());  // of an earlier one
  return fd;
}

// What an IoCall to the other side makes of these bytes.
inline ssize_t raw_call(const Fd& fd, bool out, void* data, size_t size) {
  IoCall call{
      .fd = fd.get(), .records = raw_records()[fd.get()].get(), .out = out, .count = 1, .parts = {{data, size}}};
  perform(call);
  errno = call.error;
  return call.result;
}

inline void raw_send(const Fd& fd, const void* data, size_t size) {
  (void)!raw_call(fd, true, const_cast<void*>(data), size);
}
inline ssize_t raw_recv(const Fd& fd, void* data, size_t size) { return raw_call(fd, false, data, size); }

// Authenticates a raw client as `rank`; the server side runs meanwhile.
inline bool raw_handshake(Rank& server, const Fd& fd, int rank, int target, Purpose purpose, uint64_t token,
                          uint32_t lane = 1) {
  if (purpose != Purpose::lane) lane = 0;
  auto handshake = Handshake::client(identity(rank), purpose, target, lane, token);
  const bool done = run({&server}, [&] { return handshake.advance(fd.get()) == Handshake::State::done; });
  raw_records()[fd.get()] = handshake.records();
  return done;
}

// The other side has closed: nothing more comes, and the end has been seen.
inline bool raw_closed(Rank& server, const Fd& fd) {
  return run({&server}, [&] {
    char byte = 0;
    const ssize_t n = raw_recv(fd, &byte, 1);
    return n == 0 || (n < 0 && errno == ECONNRESET);
  });
}

}  // namespace slipstream::rig
