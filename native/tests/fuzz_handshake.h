// The handshake against strangers: as server, as client, and with somebody between two honest ends who reads, drops,
// changes, repeats and invents bytes. Nobody is let in who does not know the secret.
#pragma once

#include <sys/un.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz_shm.h"
#include "transport/handshake.h"

namespace slipstream::fuzz {

using Bytes = std::vector<std::byte>;

inline bool same(const Bytes& a, const Bytes& b, size_t from, size_t size) {
  return a.size() >= from + size && b.size() >= from + size &&
         std::equal(a.begin() + static_cast<ptrdiff_t>(from), a.begin() + static_cast<ptrdiff_t>(from + size),
                    b.begin() + static_cast<ptrdiff_t>(from));
}

// An honest end, and all that has passed between it and the wire.
struct End {
  explicit End(Handshake h) : handshake(std::move(h)) { std::tie(own, wire) = socket_pair(); }

  Handshake::State advance() {
    if (state == Handshake::State::going) state = handshake.advance(own.get());
    std::byte buffer[256];
    for (ssize_t n = 0; (n = ::recv(wire.get(), buffer, sizeof(buffer), MSG_DONTWAIT)) > 0;)
      said.insert(said.end(), buffer, buffer + n);
    return state;
  }
  void hear(std::span<const std::byte> bytes) {
    put(wire, bytes.data(), bytes.size());
    heard.insert(heard.end(), bytes.begin(), bytes.end());
  }
  bool done() const { return state == Handshake::State::done; }

  Handshake handshake;
  Fd own, wire;
  Bytes said, heard;
  size_t passed_on = 0;  // of what it said
  Handshake::State state = Handshake::State::going;
};

// What a stranger can know: the form of a hello, and the names of job and ranks.
inline Hello strangers_hello(Input& input) {
  constexpr Purpose kPurposes[] = {Purpose::link, Purpose::lane, Purpose::knock, Purpose::shm, Purpose::store};
  Hello hello;
  hello.purpose = input.one_of(kPurposes);
  hello.rank = static_cast<uint32_t>(input.below(20));
  hello.target = input.chance(8) ? input.value<uint32_t>() : 1;
  hello.lane = static_cast<uint32_t>(input.below(4));
  hello.token = input.value<uint64_t>();
  if (input.chance(16)) hello.version = input.value<uint16_t>();
  if (input.chance(16)) hello.flags = input.byte();
  return hello;
}

inline void fuzz_server_or_client(Input input, bool server) {
  const Identity self = rig::identity(1);
  End end(server ? Handshake::server(self, {Purpose::link, Purpose::lane, Purpose::knock})
                 : Handshake::client(self, Purpose::link, 2, 0, 1));
  if (server && input.chance(2)) {
    const Hello hello = strangers_hello(input);
    end.hear(std::as_bytes(std::span(&hello, 1)));
  }
  while (!input.empty()) {
    if (input.chance(16)) ::shutdown(end.wire.get(), SHUT_WR);
    end.hear(input.bytes(input.byte()));
    // What it said itself is no proof.
    if (input.chance(8)) end.hear(std::span(end.said).last(std::min(end.said.size(), input.below(128))));
    require(end.advance() != Handshake::State::done, "nobody is let in who does not know the secret");
  }
  end.wire.reset();
  require(end.advance() == Handshake::State::failed, "a handshake ends when its stream does");
  require(!end.handshake.why().empty(), "a handshake fails for a reason");
}

class Between {
 public:
  explicit Between(Input input) : input_(input) {
    const bool impostor = input_.chance(2);
    clients_.push_back(end(Handshake::client(rig::identity(0), Purpose::link, 1, 0, 11)));
    clients_.push_back(end(Handshake::client(
        rig::identity(2, impostor ? std::string(32, 'x') : rig::identity(2).secret), Purpose::lane, 1, 3, 22)));
    for (int i = 0; i < 2; ++i)
      servers_.push_back(end(Handshake::server(rig::identity(1), {Purpose::link, Purpose::lane})));
    impostor_ = impostor ? clients_.back().get() : nullptr;
  }

  void play() {
    while (!input_.empty()) {
      step();
      for (const auto& e : clients_) e->advance();
      for (const auto& e : servers_) e->advance();
      for (const auto& s : servers_) check_server(*s);
      for (const auto& c : clients_) check_client(*c);
    }
  }

 private:
  static std::unique_ptr<End> end(Handshake h) { return std::make_unique<End>(std::move(h)); }

  End& any() {
    const size_t i = input_.below(4);
    return i < 2 ? *clients_[i] : *servers_[i - 2];
  }

  void step() {
    End& from = any();
    End& to = any();
    from.advance();
    const size_t fresh = from.said.size() - from.passed_on;
    switch (input_.below(6)) {
      case 0:
      case 1: {  // on it goes, or part of it, perhaps changed
        const size_t n = std::min(fresh, input_.chance(2) ? input_.below(81) : fresh);
        const auto begin = from.said.begin() + static_cast<ptrdiff_t>(from.passed_on);
        Bytes bytes(begin, begin + static_cast<ptrdiff_t>(n));
        from.passed_on += n;
        if (n > 0 && input_.chance(4)) bytes[input_.below(n)] ^= static_cast<std::byte>(input_.byte());
        return to.hear(bytes);
      }
      case 2: {  // again
        if (from.said.empty()) return;
        const size_t at = input_.below(from.said.size());
        return to.hear(std::span(from.said).subspan(at, std::min(from.said.size() - at, input_.below(113))));
      }
      case 3:
        from.passed_on += std::min(fresh, input_.below(81));
        return;
      case 4:
        return to.hear(input_.bytes(input_.below(113)));
      default:
        if (input_.chance(16)) ::shutdown(to.wire.get(), SHUT_WR);
    }
  }

  // What a server believes was said by one client, to it alone, and nothing else was said.
  void check_server(const End& server) const {
    if (!server.done()) return;
    const auto spoke = [&](const std::unique_ptr<End>& client) {
      return client.get() != impostor_ && same(server.heard, client->said, 0, sizeof(Hello) + sizeof(Digest)) &&
             same(client->heard, server.said, 0, 64);
    };
    require(std::any_of(clients_.begin(), clients_.end(), spoke), "a server lets in only whom it has talked to");
    const Hello& hello = server.handshake.hello();
    require(std::memcmp(&hello, server.heard.data(), sizeof(hello)) == 0, "a server believes the hello it was told");
  }

  // Nobody proves the last byte, so its loss or forgery only opens a stream that the server has closed or will open.
  void check_client(const End& client) const {
    if (!client.done()) return;
    require(&client != impostor_, "a client that does not know the secret is not let in");
    const auto answered = [&](const std::unique_ptr<End>& server) {
      return same(client.heard, server->said, 0, 64) && same(server->heard, client.said, 0, sizeof(Hello));
    };
    require(std::any_of(servers_.begin(), servers_.end(), answered),
            "a client believes only a server it has talked to");
  }

  Input input_;
  std::vector<std::unique_ptr<End>> clients_, servers_;
  End* impostor_ = nullptr;
};

// Connections at the listeners of both transports: strangers with any bytes, and ranks of the job with any hello.
class Door final : Events, Arrivals {
 public:
  explicit Door(bool shm) : shm_(shm) {}

  void play(Input input) {
    const Identity self = rig::identity(1);
    ShmTransport shm(poller_, *this, *this, self, regions_, bell_, 10);
    TcpTransport tcp(poller_, *this, *this, self, options());
    if (shm_)
      name_ = shm.listen();
    else
      port_ = tcp.listen("127.0.0.1");
    bool honest = false;
    for (int i = 0; i < 4 && !input.empty(); ++i) {
      const Fd fd = connect();
      if (!fd) break;
      if (input.chance(2)) {
        honest = true;
        enter(fd, input);
      }
      const auto bytes = input.bytes(input.byte());
      put(fd, bytes.data(), bytes.size());
      for (int turn = 0; turn < 4; ++turn) poller_.wait(0);
    }
    require(honest || (links_.empty() && knocks_ == 0), "nobody is let in who does not know the secret");
    links_.clear();
  }

 private:
  static TcpOptions options() {
    TcpOptions options;
    options.admission = {2, 5, 0};
    return options;
  }

  // With a reset at its end: a connection that leaves no port behind.
  Fd connect() const {
    if (!shm_) {
      Fd fd = rig::raw_connect(port_);
      const linger none{1, 0};
      if (fd) ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none));
      return fd;
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name_.data(), name_.size());
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
    return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 ? std::move(fd) : Fd();
  }

  void enter(const Fd& fd, Input& input) {
    constexpr Purpose kPurposes[] = {Purpose::link, Purpose::lane, Purpose::knock, Purpose::shm};
    constexpr uint32_t kLanes[] = {0, 1, 2, 64, 65};
    const Purpose purpose = input.one_of(kPurposes);
    const uint32_t lane = input.one_of(kLanes);
    auto client = Handshake::client(rig::identity(2), purpose, input.chance(16) ? 3 : 1, lane, input.below(2));
    for (int i = 0; i < 20 && client.advance(fd.get()) == Handshake::State::going; ++i) poller_.wait(0);
  }

  Landing land(Link&, const Frame&) override { return {}; }
  void arrived(Link& link, const Frame&, const Payload& payload) override {
    require(payload.size == 0 || payload.data != nullptr, "a payload is somewhere");
    link.release(payload);
  }
  void sent(Link&, uint64_t) override {}
  void up(Link&) override {}
  void down(Link&, const Error&) override {}
  void accepted(std::unique_ptr<Link> link) override { links_.push_back(std::move(link)); }
  void knocked(int rank) override {
    require(rank >= 0 && rank < rig::identity(1).size, "who knocks is a rank of the job");
    ++knocks_;
  }
  void stranger(const std::string&, const std::string& why) override {
    require(!why.empty(), "a stranger is shown out for a reason");
  }

  const bool shm_;
  Poller poller_;
  Bell bell_;
  Regions regions_;
  std::string name_;
  uint16_t port_ = 0;
  std::vector<std::unique_ptr<Link>> links_;
  int knocks_ = 0;
};

inline void fuzz_handshake(std::span<const std::byte> bytes) {
  Input input(bytes);
  switch (input.below(8)) {
    case 0:
    case 1:
      return fuzz_server_or_client(input, true);
    case 2:
      return fuzz_server_or_client(input, false);
    case 3:
      return Door(true).play(input);
    case 4:
      return Door(false).play(input);
    default:
      return Between(input).play();
  }
}

}  // namespace slipstream::fuzz
