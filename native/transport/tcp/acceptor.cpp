#include "transport/tcp/acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr double kAcceptPause = 0.1;  // seconds, when the process has run out of file descriptors

std::string_view without_port(std::string_view name) { return name.substr(0, name.rfind(':')); }

// Whether there is a link to that machine, which is another one.
bool peer_is_at(const TcpCore& core, const std::string& who, int fd) {
  const auto is_there = [&](const auto& link) {
    return without_port(link.second->control().far_name()) == without_port(who);
  };
  return !same_machine(fd) &&
         (std::ranges::any_of(core.accepted, is_there) || std::ranges::any_of(core.dialled, is_there));
}

}  // namespace

class Acceptor::Listener final : private Handler, private Timed {
 public:
  Listener(Acceptor& acceptor, Fd fd) : acceptor_(acceptor), fd_(std::move(fd)) {
    acceptor_.core_->poller.add(fd_.get(), EPOLLIN, this);
  }
  ~Listener() override {
    acceptor_.core_->timers.cancel(*this);
    acceptor_.core_->poller.remove(fd_.get(), this);
  }

 private:
  void ready(uint32_t) override {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      if (const Time room = acceptor_.unauthenticated_.room_at(); room > now()) return pause(room);
      Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd) {
        acceptor_.accept(std::move(fd));
        continue;
      }
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      acceptor_.arrivals_.stranger("listener", errno_text("accept"));
      return pause(now() + seconds(kAcceptPause));
    }
  }
  // Connections stay in the backlog, so the poller would call at once, again and again.
  void pause(Time until) {
    acceptor_.core_->poller.remove(fd_.get(), this);
    acceptor_.core_->timers.set(*this, until);
  }
  void due(Time) override { acceptor_.core_->poller.add(fd_.get(), EPOLLIN, this); }

  Acceptor& acceptor_;
  Fd fd_;
};

// A connection that has not proved who it is.
class Acceptor::Unauthenticated final : private Handler {
 public:
  Unauthenticated(Acceptor& acceptor, Fd socket)
      : who(peer_name(socket.get())),
        fd(std::move(socket)),
        handshake(Handshake::server(acceptor.core_->identity, {Purpose::link, Purpose::lane, Purpose::knock})),
        acceptor_(acceptor) {
    handshake.has = [&core = *acceptor.core_](const Hello& hello) {  // for all but the first control lane of a link
      if (hello.purpose != Purpose::link || hello.lane == 0) return true;
      return core.accepted.contains({static_cast<int>(hello.rank), hello.token});
    };
    acceptor_.core_->poller.add(fd.get(), EPOLLIN, this);
  }
  ~Unauthenticated() override { leave(); }

  // Out of the poller; the socket stays.
  void leave() {
    if (fd) acceptor_.core_->poller.remove(fd.get(), this);
  }

  const std::string who;
  Fd fd;
  Handshake handshake;

 private:
  void ready(uint32_t) override {
    switch (handshake.advance(fd.get())) {
      case Handshake::State::going:
        acceptor_.core_->poller.modify(fd.get(), handshake.wants_write() ? EPOLLOUT : EPOLLIN, this);
        return;
      case Handshake::State::failed:
        if (handshake.lacking()) return (void)acceptor_.take(*this);  // no stranger
        // Nor is a peer that needs one connection, and has had several requests answered at once (dial.h).
        if (handshake.wordless() && peer_is_at(*acceptor_.core_, who, fd.get())) return (void)acceptor_.take(*this);
        return acceptor_.reject(acceptor_.take(*this), handshake.why());
      case Handshake::State::done:
        return acceptor_.authenticated(*this);
    }
  }

  Acceptor& acceptor_;
};

// A bulk lane that is here before its link.
class Acceptor::EarlyLane final : private Timed {
 public:
  EarlyLane(Acceptor& acceptor, const Hello& hello, Connection c)
      : rank(static_cast<int>(hello.rank)),
        token(hello.token),
        number(hello.lane - 1),
        connection(std::move(c)),
        acceptor_(acceptor) {
    acceptor_.core_->timers.set(*this, now() + seconds(acceptor_.core_->options.admission.seconds));
  }
  ~EarlyLane() { acceptor_.core_->timers.cancel(*this); }
  EarlyLane(const EarlyLane&) = delete;
  EarlyLane& operator=(const EarlyLane&) = delete;

  const int rank;
  const uint64_t token;
  const uint32_t number;
  Connection connection;

 private:
  void due(Time) override {
    std::erase_if(acceptor_.early_lanes_, [this](const auto& early) { return early.get() == this; });
  }

  Acceptor& acceptor_;
};

Acceptor::Acceptor(std::shared_ptr<TcpCore> core, Arrivals& arrivals)
    : core_(std::move(core)), arrivals_(arrivals), unauthenticated_(core_->options.admission) {}

Acceptor::~Acceptor() { core_->timers.cancel(*this); }

void Acceptor::close() {
  core_->timers.cancel(*this);
  listeners_.clear();
  unauthenticated_.clear();
  early_lanes_.clear();
}

uint16_t Acceptor::listen(const std::vector<std::string>& addresses) {
  auto [sockets, port] = listen_tcp(addresses);
  for (Fd& fd : sockets) listeners_.push_back(std::make_unique<Listener>(*this, std::move(fd)));
  return port;
}

void Acceptor::accept(Fd fd) {
  if (auto displaced = unauthenticated_.add(std::make_unique<Unauthenticated>(*this, std::move(fd)), now()))
    reject(std::move(displaced), kGaveWay);
  set_timer();
}

void Acceptor::due(Time now) {
  while (auto late = unauthenticated_.take_late(now)) reject(std::move(late), kLate);
  set_timer();
}

void Acceptor::set_timer() {
  if (const Time deadline = unauthenticated_.deadline(); deadline < Time::max())
    core_->timers.set(*this, deadline);
  else
    core_->timers.cancel(*this);
}

std::unique_ptr<Acceptor::Unauthenticated> Acceptor::take(Unauthenticated& one) {
  auto taken = unauthenticated_.take(one);
  taken->leave();
  set_timer();
  return taken;
}

void Acceptor::reject(std::unique_ptr<Unauthenticated> one, const std::string& why) {
  one->leave();
  one->fd.reset();
  arrivals_.stranger(one->who, why);
}

void Acceptor::authenticated(Unauthenticated& one) {
  const auto taken = take(one);
  const Hello& hello = taken->handshake.hello();
  Connection connection{std::move(taken->fd), taken->handshake.records()};
  switch (hello.purpose) {
    case Purpose::link:
      tune_tcp(connection.fd.get(), core_->socket_options());
      return open_link(hello, taken->who, std::move(connection));
    case Purpose::lane:
      tune_tcp(connection.fd.get(), core_->socket_options());
      return add_lane(hello, taken->who, std::move(connection));
    default:
      connection.fd.reset();
      return knocked(hello);
  }
}

void Acceptor::knocked(const Hello& hello) {
  const auto link = core_->dialled.find({static_cast<int>(hello.rank), hello.token});
  if (link != core_->dialled.end()) return link->second->control_connection().wanted(hello.lane);
  arrivals_.knocked(static_cast<int>(hello.rank));
}

void Acceptor::open_link(const Hello& hello, const std::string& who, Connection connection) {
  const int rank = static_cast<int>(hello.rank);
  const std::pair<int, uint64_t> key{rank, hello.token};
  const auto known = core_->accepted.find(key);
  if (hello.lane > 0) {  // it takes the place of a control lane that broke
    if (known != core_->accepted.end()) known->second->control_connection().replace(std::move(connection), hello.lane);
    return;
  }
  if (known != core_->accepted.end()) return arrivals_.stranger(who, "opened the same link twice");
  auto link = std::make_unique<TcpLink>(core_, rank, hello.token, std::move(connection));
  for (auto it = early_lanes_.begin(); it != early_lanes_.end();) {
    if ((*it)->rank != rank || (*it)->token != hello.token) {
      ++it;
      continue;
    }
    link->bulk().add(std::move((*it)->connection), (*it)->number);
    it = early_lanes_.erase(it);
  }
  TcpLink* raw = link.get();
  arrivals_.accepted(std::move(link));
  // The owner may have thought better of it.
  const auto kept = core_->accepted.find(key);
  if (kept != core_->accepted.end() && kept->second == raw) raw->come_up();
}

void Acceptor::add_lane(const Hello& hello, const std::string& who, Connection connection) {
  const auto link = core_->accepted.find({static_cast<int>(hello.rank), hello.token});
  if (link != core_->accepted.end()) {
    if (!link->second->bulk().add(std::move(connection), hello.lane - 1))
      arrivals_.stranger(who, "opened too many lanes");
    return;
  }
  if (early_lanes_.size() >= core_->options.admission.most) early_lanes_.pop_front();
  early_lanes_.push_back(std::make_unique<EarlyLane>(*this, hello, std::move(connection)));
}

}  // namespace slipstream
