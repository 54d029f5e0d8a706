// Hostile bytes against everything that parses frames, for the seeded test and for libFuzzer alike.
#pragma once

#include <cstdlib>
#include <span>

#include "tests/tcp_rig.h"
#include "transport/tcp/control_frames.h"
#include "transport/tcp/link.h"

namespace slipstream::rig {

// The bytes with the checks that they need to be looked at: headers and payloads in turn, as an honest peer would put
// them on a connection, whatever they say.
inline std::vector<std::byte> with_checks(std::span<const std::byte> bytes, bool bulk) {
  std::vector<std::byte> sealed;
  const size_t size = bulk ? sizeof(SegmentHeader) : sizeof(Frame);
  for (uint64_t number = 0; bytes.size() >= size; ++number) {
    size_t payload = 0;
    const auto add = [&]<class Header>(Header header, uint64_t place) {
      seal(header, place);
      const auto part = std::as_bytes(std::span(&header, 1));
      sealed.insert(sealed.end(), part.begin(), part.end());
    };
    if (bulk) {
      SegmentHeader header;
      std::memcpy(static_cast<void*>(&header), bytes.data(), sizeof(header));
      payload = header.size;
      header.check.payload = 0;
      add(header, number);
    } else {
      Frame f;
      std::memcpy(static_cast<void*>(&f), bytes.data(), sizeof(f));
      payload = f.length;
      add(ControlHeader{f, {}}, sealed.size());
    }
    bytes = bytes.subspan(size);
    const auto part = bytes.first(std::min(payload, bytes.size()));
    sealed.insert(sealed.end(), part.begin(), part.end());
    bytes = bytes.subspan(part.size());
  }
  sealed.insert(sealed.end(), bytes.begin(), bytes.end());
  return sealed;
}

// The reader alone, fed in steps of `step` bytes. Aborts if it breaks its promises.
inline void fuzz_reader(std::span<const std::byte> raw, size_t step) {
  const auto sealed = with_checks(raw, false);
  std::span<const std::byte> bytes = sealed;
  FrameReader reader;
  uint64_t place = 0;
  while (!bytes.empty()) {
    const auto space = reader.space();
    if (space.empty()) std::abort();
    const size_t n = std::min({bytes.size(), space.size(), std::max<size_t>(step, 1)});
    std::copy_n(bytes.begin(), n, space.begin());
    reader.filled(n);
    bytes = bytes.subspan(n);
    Frame f;
    const std::byte* payload = nullptr;
    FrameReader::Next next{};
    while ((next = reader.next(place, f, payload)) == FrameReader::Next::frame) {
      place += sizeof(ControlHeader) + f.length;
      if (f.length > kEagerBytes || objection_to_control(f) != nullptr) std::abort();
      volatile std::byte last{};  // the payload has to be readable to its end
      if (f.length > 0) last = payload[f.length - 1];
      (void)last;
    }
    if (next != FrameReader::Next::more) return;
  }
}

// What an authenticated peer can do to a link: `bytes` on its control lane, or on a bulk lane, then the end.
class FuzzedLink : public Events {
 public:
  void feed(std::span<const std::byte> raw, bool bulk) {
    const auto sealed = with_checks(raw, bulk);
    std::span<const std::byte> bytes = sealed;
    downs = 0;
    auto core = std::make_shared<TcpCore>(poller_, *this, identity(0), TcpOptions{});
    auto [ours, theirs] = pair();
    auto [our_lane, their_lane] = pair();
    TcpLink link(core, 1, 1, {std::move(ours), nullptr});
    link.bulk().add({std::move(our_lane), nullptr}, 0);
    link.come_up();
    const Fd& fd = bulk ? their_lane : theirs;
    while (!bytes.empty() && downs == 0) {
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
      poller_.wait(0);
    }
    their_lane.reset();
    theirs.reset();
    for (int i = 0; i < 1000 && downs == 0; ++i) poller_.wait(10);
    if (downs != 1 || link.up()) std::abort();
  }

  int downs = 0;
  Error last;

 private:
  static std::pair<Fd, Fd> pair() {
    int fds[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0) std::abort();
    return {Fd(fds[0]), Fd(fds[1])};
  }

  Landing land(Link&, const Frame& f) override {
    if (f.length <= kEagerBytes || f.length > kMaxPayload) std::abort();
    return {WorkHeader::of(f).seq % 8 != 0, nullptr};
  }
  void arrived(Link& link, const Frame& f, const Payload& payload) override {
    if (payload.size != f.length) std::abort();
    link.release(payload);
  }
  void sent(Link&, uint64_t) override {}
  void up(Link&) override {}
  void down(Link&, const Error& error) override {
    ++downs;
    last = error;
  }

  Poller poller_;
};

}  // namespace slipstream::rig
