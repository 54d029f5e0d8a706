// A middle box for the transport's tests: it passes on what it gets, until it is told to forget or to break
// connections.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "tests/tcp_rig.h"
#include "transport/sockets.h"

namespace slipstream::rig {

class Relay {
 public:
  struct Way {
    Fd client;
    Fd server;
    size_t to_server = 0;  // bytes so far
    size_t to_client = 0;
    size_t carried = 0;            // both ways
    std::vector<std::byte> hello;  // its beginning
    bool forgotten = false;
    std::vector<std::byte> held[2];  // read and not yet written: to the server, to the client
    Time next[2];                    // when more may be read

    bool is_control() const { return hello.size() > 6 && hello[6] == static_cast<std::byte>(Purpose::link); }
  };

  explicit Relay(uint16_t to, const std::string& at = "127.0.0.1")
      : listener_(listen_tcp(at, 0)), to_(to), port(local_port(listener_.get())) {}

  // Moves what there is; called by the test's loop.
  void turn() {
    for (Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); fd;
         fd = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC))) {
      if (broken_at_) pauses.push_back(std::chrono::duration<double>(now() - *broken_at_).count());
      broken_at_.reset();
      auto way = std::make_unique<Way>();
      way->client = std::move(fd);
      way->server = raw_connect(to_);
      (void)::fcntl(way->server.get(), F_SETFL, O_NONBLOCK);
      ways.push_back(std::move(way));
    }
    std::erase_if(ways, [&](const auto& way) { return !carry(*way); });
  }

  // From now on this connection's bytes are acknowledged, and go nowhere.
  void forget(size_t number) { ways.at(number)->forgotten = true; }

  // May change what passes once the handshake is over: 0 is to the server.
  std::function<void(std::vector<std::byte>& bytes, int direction)> on_bytes;
  int breaks = 0;       // control connections that are still to be broken as soon as they are through the handshake
  int lane_breaks = 0;  // the same of bulk connections
  // Seconds from such a break to the next connection.
  std::vector<double> pauses;
  int damages = 0;                 // bytes of bulk that are still to be changed, each after its connection has carried
  size_t damage_after = 0;         // so many
  size_t most_carried = SIZE_MAX;  // bytes after which a bulk connection is broken
  size_t most_at_once = SIZE_MAX;  // bytes that are passed on together, of each connection and direction
  double pause = 0;                // seconds until the next ones are
  std::vector<std::unique_ptr<Way>> ways;

 private:
  bool carry(Way& way) {
    const bool there = pass(way, way.client.get(), way.server.get(), 0);
    const bool back = pass(way, way.server.get(), way.client.get(), 1);
    if (breaks > 0 && way.is_control() && way.to_client >= kHandshake) {
      --breaks;
      return false;
    }
    if (lane_breaks > 0 && !way.is_control() && way.to_client >= kHandshake) {
      --lane_breaks;
      broken_at_ = now();
      return false;
    }
    if (!way.is_control() && way.to_server + way.to_client > most_carried) return false;
    return there && back;
  }

  bool pass(Way& way, int from, int to, int direction) {
    auto& held = way.held[direction];
    std::byte bytes[64 << 10];
    if (held.empty() && now() >= way.next[direction]) {
      const ssize_t n = ::recv(from, bytes, std::min(sizeof(bytes), most_at_once), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
      if (n > 0 && !way.forgotten) held.assign(bytes, bytes + n);
      if (n > 0) way.next[direction] = now() + seconds(pause);
      if (n > 0) way.carried += static_cast<size_t>(n);
      if (!held.empty() && damages > 0 && !way.is_control() && way.carried > damage_after) {
        held.back() ^= std::byte{1};
        way.carried = 0;
        --damages;
      }
      if (n > 0 && direction == 0 && way.hello.size() < 8) way.hello.insert(way.hello.end(), bytes, bytes + n);
      const bool greeting = (direction == 0 ? way.to_server : way.to_client) < kGreeting[direction];
      if (n > 0) (direction == 0 ? way.to_server : way.to_client) += static_cast<size_t>(n);
      if (n > 0 && on_bytes && !greeting) on_bytes(held, direction);
    }
    if (held.empty()) return true;
    const ssize_t n = ::send(to, held.data(), held.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN;
    held.erase(held.begin(), held.begin() + n);
    return true;
  }

  static constexpr size_t kHandshake = 65;          // bytes of the server's part
  static constexpr size_t kGreeting[] = {112, 65};  // bytes of the handshake
  Fd listener_;
  uint16_t to_;
  std::optional<Time> broken_at_;

 public:
  const uint16_t port;
};

}  // namespace slipstream::rig
