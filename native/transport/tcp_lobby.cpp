#include "transport/tcp_lobby.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr double kAcceptPause = 0.1;  // seconds, when the process has run out of file descriptors

}  // namespace

class Lobby::Listener final : private Handler, private Timed {
 public:
  Listener(Lobby& lobby, Fd fd) : lobby_(lobby), fd_(std::move(fd)) {
    lobby_.core_->poller.add(fd_.get(), EPOLLIN, this);
  }
  ~Listener() override {
    lobby_.core_->timers.cancel(*this);
    lobby_.core_->poller.remove(fd_.get(), this);
  }

 private:
  void ready(uint32_t) override {
    for (int i = 0; i < kAcceptsPerTurn; ++i) {
      Fd fd(::accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (fd) {
        lobby_.enter(std::move(fd));
        continue;
      }
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      // The connection stays in the backlog, so the poller would call at once, again and again.
      lobby_.arrivals_.stranger("listener", errno_text("accept"));
      lobby_.core_->poller.remove(fd_.get(), this);
      lobby_.core_->timers.set(*this, now() + seconds(kAcceptPause));
      return;
    }
  }
  void due(Time) override { lobby_.core_->poller.add(fd_.get(), EPOLLIN, this); }

  Lobby& lobby_;
  Fd fd_;
};

// A connection that has not proved who it is.
class Lobby::Guest final : private Handler, private Timed {
 public:
  Guest(Lobby& lobby, Fd socket)
      : who(peer_name(socket.get())),
        fd(std::move(socket)),
        handshake(Handshake::server(lobby.core_->identity, {Purpose::link, Purpose::lane, Purpose::knock})),
        lobby_(lobby) {
    handshake.has = [&core = *lobby.core_](const Hello& hello) {  // for all but the first control lane of a link
      if (hello.purpose != Purpose::link || hello.lane == 0) return true;
      return core.accepted.contains({static_cast<int>(hello.rank), hello.token});
    };
    lobby_.core_->poller.add(fd.get(), EPOLLIN, this);
    lobby_.core_->timers.set(*this, now() + seconds(lobby_.core_->options.handshake_seconds));
  }
  ~Guest() override { leave(); }

  // Out of the poller and the timers; the socket stays.
  void leave() {
    lobby_.core_->timers.cancel(*this);
    if (fd) lobby_.core_->poller.remove(fd.get(), this);
  }

  const std::string who;
  Fd fd;
  Handshake handshake;

 private:
  void ready(uint32_t) override {
    switch (handshake.advance(fd.get())) {
      case Handshake::State::going:
        lobby_.core_->poller.modify(fd.get(), handshake.wants_write() ? EPOLLOUT : EPOLLIN, this);
        return;
      case Handshake::State::failed:
        if (handshake.lacking()) return (void)lobby_.take(*this);  // no stranger
        return lobby_.refuse(*this, handshake.why());
      case Handshake::State::done:
        return lobby_.show_in(*this);
    }
  }
  void due(Time) override { lobby_.refuse(*this, "was silent for too long"); }

  Lobby& lobby_;
};

// A bulk lane that is here before its link.
class Lobby::Early final : private Timed {
 public:
  Early(Lobby& lobby, const Hello& hello, Connection c)
      : rank(static_cast<int>(hello.rank)),
        token(hello.token),
        number(hello.lane - 1),
        connection(std::move(c)),
        lobby_(lobby) {
    lobby_.core_->timers.set(*this, now() + seconds(lobby_.core_->options.handshake_seconds));
  }
  ~Early() { lobby_.core_->timers.cancel(*this); }
  Early(const Early&) = delete;
  Early& operator=(const Early&) = delete;

  const int rank;
  const uint64_t token;
  const uint32_t number;
  Connection connection;

 private:
  void due(Time) override {
    std::erase_if(lobby_.early_, [this](const auto& early) { return early.get() == this; });
  }

  Lobby& lobby_;
};

Lobby::Lobby(std::shared_ptr<TcpCore> core, Arrivals& arrivals) : core_(std::move(core)), arrivals_(arrivals) {}

Lobby::~Lobby() = default;

void Lobby::close() {
  listeners_.clear();
  guests_.clear();
  early_.clear();
}

uint16_t Lobby::listen(const std::vector<std::string>& addresses) {
  auto [sockets, port] = listen_tcp(addresses);
  for (Fd& fd : sockets) listeners_.push_back(std::make_unique<Listener>(*this, std::move(fd)));
  return port;
}

void Lobby::enter(Fd fd) {
  if (static_cast<int>(guests_.size()) >= std::max(1, core_->options.max_unauthenticated))
    refuse(*guests_.front(), "had to make room: too many connections that have not authenticated");
  guests_.push_back(std::make_unique<Guest>(*this, std::move(fd)));
}

std::unique_ptr<Lobby::Guest> Lobby::take(Guest& guest) {
  const auto it = std::find_if(guests_.begin(), guests_.end(), [&](const auto& g) { return g.get() == &guest; });
  std::unique_ptr<Guest> taken = std::move(*it);
  guests_.erase(it);
  taken->leave();
  return taken;
}

void Lobby::refuse(Guest& guest, const std::string& why) {
  const auto taken = take(guest);
  taken->fd.reset();
  arrivals_.stranger(taken->who, why);
}

void Lobby::show_in(Guest& guest) {
  const auto taken = take(guest);
  const Hello& hello = taken->handshake.hello();
  Connection connection{std::move(taken->fd), taken->handshake.records()};
  switch (hello.purpose) {
    case Purpose::link:
      tune_tcp(connection.fd.get(), core_->socket_options());
      return welcome_link(hello, taken->who, std::move(connection));
    case Purpose::lane:
      tune_tcp(connection.fd.get(), core_->socket_options());
      return welcome_lane(hello, taken->who, std::move(connection));
    default:
      connection.fd.reset();
      return knocked(hello);
  }
}

void Lobby::knocked(const Hello& hello) {
  const auto link = core_->dialled.find({static_cast<int>(hello.rank), hello.token});
  if (link != core_->dialled.end()) return link->second->control_wanted(hello.lane);
  arrivals_.knocked(static_cast<int>(hello.rank));
}

void Lobby::welcome_link(const Hello& hello, const std::string& who, Connection connection) {
  const int rank = static_cast<int>(hello.rank);
  const std::pair<int, uint64_t> key{rank, hello.token};
  const auto known = core_->accepted.find(key);
  if (hello.lane > 0) {  // it takes the place of a control lane that broke
    if (known != core_->accepted.end()) known->second->replace_control(std::move(connection), hello.lane);
    return;
  }
  if (known != core_->accepted.end()) return arrivals_.stranger(who, "opened the same link twice");
  auto link = std::make_unique<TcpLink>(core_, rank, hello.token, std::move(connection));
  for (auto it = early_.begin(); it != early_.end();) {
    if ((*it)->rank != rank || (*it)->token != hello.token) {
      ++it;
      continue;
    }
    link->add_lane(std::move((*it)->connection), (*it)->number);
    it = early_.erase(it);
  }
  TcpLink* raw = link.get();
  arrivals_.accepted(std::move(link));
  // The owner may have thought better of it.
  const auto kept = core_->accepted.find(key);
  if (kept != core_->accepted.end() && kept->second == raw) raw->come_up();
}

void Lobby::welcome_lane(const Hello& hello, const std::string& who, Connection connection) {
  const auto link = core_->accepted.find({static_cast<int>(hello.rank), hello.token});
  if (link != core_->accepted.end()) {
    if (!link->second->add_lane(std::move(connection), hello.lane - 1))
      arrivals_.stranger(who, "opened too many lanes");
    return;
  }
  if (static_cast<int>(early_.size()) >= std::max(1, core_->options.max_unauthenticated)) early_.pop_front();
  early_.push_back(std::make_unique<Early>(*this, hello, std::move(connection)));
}

}  // namespace slipstream
