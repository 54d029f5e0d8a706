// A link to a peer that is played by plain sockets, so that each lane can be cut, and spoken on, at will.
#pragma once

#include <cstring>
#include <vector>

#include "tests/check.h"
#include "tests/tcp_rig.h"

namespace slipstream::rig {

inline constexpr uint32_t kLength = 20'000;

// Rank 1 runs; rank 0 is three sockets.
struct Scene {
  explicit Scene(int bulk_lanes, TcpOptions options = {}) : us(1, options), control(raw_connect(us.port)) {
    CHECK(raw_handshake(us, control, 0, 1, Purpose::link, 42));
    for (int i = 0; i < bulk_lanes; ++i) {
      bulk.push_back(raw_connect(us.port));
      CHECK(raw_handshake(us, bulk.back(), 0, 1, Purpose::lane, 42, static_cast<uint32_t>(i) + 1));
    }
    // One whole message over each lane shows that it has joined.
    for (const Fd& fd : bulk) say_message(fd);
    CHECK(run({&us}, [&] { return us.received.size() == static_cast<size_t>(bulk_lanes); }));
  }

  void say(const Fd& fd, const Frame& f) {
    const auto bytes = control_bytes(f, control_place);
    if (f.type != FrameType::resume) control_place += bytes.size();
    raw_send(fd, bytes.data(), bytes.size());
  }
  // The first `part` bytes of a segment; 0: all.
  void say_segment(const Fd& fd, std::vector<std::byte> bytes, size_t part = 0) {
    seal_segment(bytes, places[fd.get()]++);
    raw_send(fd, bytes.data(), part == 0 ? bytes.size() : part);
  }
  void say_message(const Fd& fd) { say_segment(fd, segment(frame(FrameType::data, kLength), ++messages)); }
  void say_half(const Fd& fd) {
    say_segment(fd, segment(frame(FrameType::data, kLength), messages + 1), (sizeof(SegmentHeader) + kLength) / 2);
  }
  void say_header(const Fd& fd, SegmentHeader header) {
    seal(header, places[fd.get()]++);
    raw_send(fd, &header, sizeof(header));
  }
  // Everything that has been sent so far has been seen: a ping comes through, and the poller has nothing left.
  void settle() {
    const size_t before = us.received.size();
    say(control, frame(FrameType::ping, 0));
    CHECK(run({&us}, [&] { return us.received.size() > before; }));
    while (us.poller.wait(0) > 0) {
    }
  }
  // Closes the control lane as a process does that has read everything: unread bytes would make it a reset.
  void leave() {
    std::byte sink[4096];
    while (raw_recv(control, sink, sizeof(sink)) > 0) {
    }
    control.reset();
  }
  bool ends() {
    return run({&us}, [&] { return !us.downs.empty(); });
  }

  Rank us;
  Fd control;
  std::vector<Fd> bulk;
  uint64_t messages = 0;
  uint64_t control_place = 0;      // bytes of the control stream
  std::map<int, uint64_t> places;  // segments, by socket
};

// What the peer of a raw client says on one connection.
template <class T>
bool hear(Rank& server, const Fd& fd, T& what) {
  size_t at = 0;
  return run({&server}, [&] {
    const ssize_t n = raw_recv(fd, reinterpret_cast<std::byte*>(&what) + at, sizeof(T) - at);
    if (n > 0) at += static_cast<size_t>(n);
    return at == sizeof(T);
  });
}

inline bool hear(Rank& server, const Fd& fd, Frame& what) {
  ControlHeader header;
  const bool heard = hear(server, fd, header);
  what = header.frame;
  return heard;
}

}  // namespace slipstream::rig
