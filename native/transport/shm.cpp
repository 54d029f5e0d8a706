#include "transport/shm.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/shm_link.h"

namespace slipstream {

namespace {

constexpr double kGreetingSeconds = 5;
constexpr size_t kMaxGreetings = 128;
constexpr double kKnockSeconds = 10;

// An abstract address: no file, gone with its socket, one name space per network namespace.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t n = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), n);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + n);
}

Fd unix_socket() {
  Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw Failure(Code::internal, errno_text("socket"));
  return fd;
}

}  // namespace

struct ShmTransport::Impl::Greeting : Handler {
  Greeting(Impl& h, Fd f)
      : home(h),
        socket(std::move(f)),
        handshake(Handshake::server(h.identity, {Purpose::shm, Purpose::knock})),
        deadline(now() + seconds(kGreetingSeconds)) {
    home.poller.add(socket.get(), EPOLLIN, this);
  }
  ~Greeting() override {
    if (socket) home.poller.remove(socket.get(), this);
  }
  void ready(uint32_t) override { home.greeted(*this); }

  Impl& home;
  Fd socket;
  Handshake handshake;
  Time deadline;
};

struct ShmTransport::Impl::Knock : Handler {
  Knock(Impl& h, int p, Fd f, KnockDone& d)
      : home(h),
        peer(p),
        socket(std::move(f)),
        handshake(Handshake::client(h.identity, Purpose::knock, p, 0, 0)),
        done(d),
        deadline(now() + seconds(kKnockSeconds)) {}
  ~Knock() override {
    if (socket) home.poller.remove(socket.get(), this);
  }
  void ready(uint32_t) override {
    switch (handshake.advance(socket.get())) {
      case Handshake::State::going:
        return home.poller.modify(socket.get(), EPOLLIN | (handshake.wants_write() ? EPOLLOUT : 0u), this);
      case Handshake::State::failed:
        return home.answered(*this, false, handshake.why());
      case Handshake::State::done:
        return home.answered(*this, true, "");
    }
  }

  Impl& home;
  int peer;
  Fd socket;
  Handshake handshake;
  KnockDone& done;
  Time deadline;
};

ShmTransport::Impl::Impl(Poller& p, Events& e, Arrivals& a, Identity i, Regions& r, Bell& b)
    : poller(p), events(e), arrivals(a), identity(std::move(i)), regions(r), bell(b) {}

ShmTransport::Impl::~Impl() = default;

ShmTransport::ShmTransport(Poller& poller, Events& events, Arrivals& arrivals, Identity identity, Regions& regions,
                           Bell& bell)
    : impl_(std::make_shared<Impl>(poller, events, arrivals, std::move(identity), regions, bell)) {}

ShmTransport::~ShmTransport() {
  impl_->knocks.clear();
  impl_->greetings.clear();
  if (impl_->listener) impl_->poller.remove(impl_->listener.get(), impl_.get());
  impl_->listener.reset();
}

std::string ShmTransport::listen() {
  uint64_t random[2];
  if (::getrandom(random, sizeof(random), 0) != sizeof(random)) throw Failure(Code::internal, errno_text("getrandom"));
  char name[64];
  std::snprintf(name, sizeof(name), "slipstream-%016llx%016llx", static_cast<unsigned long long>(random[0]),
                static_cast<unsigned long long>(random[1]));
  Fd fd = unix_socket();
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 || ::listen(fd.get(), 1024) != 0)
    throw Failure(Code::internal, errno_text("listening on a unix socket"));
  impl_->listener = std::move(fd);
  impl_->poller.add(impl_->listener.get(), EPOLLIN, impl_.get());
  return name;
}

std::unique_ptr<Link> ShmTransport::dial(int peer, const std::string& name) {
  Fd fd = unix_socket();
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  const bool connected = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0;
  const int error = errno;
  auto link = std::make_unique<ShmLink>(impl_, peer, std::move(fd),
                                        Handshake::client(impl_->identity, Purpose::shm, peer, 0, 0), true);
  if (!connected) {
    // The link fails at the next tick, so that the caller holds it before Events::down names it.
    link->refuse(
        Error{Code::peer_lost, peer, {}, "rank " + std::to_string(peer) + " is gone: " + errno_text("connect", error)});
  }
  return link;
}

void ShmTransport::knock(int peer, const std::string& name, KnockDone& done) {
  Fd fd = unix_socket();
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  const bool connected = ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0;
  auto knock = std::make_unique<Impl::Knock>(*impl_, peer, std::move(fd), done);
  if (connected)
    impl_->poller.add(knock->socket.get(), EPOLLIN | EPOLLOUT, knock.get());
  else
    knock->deadline = now();  // told at the next tick
  impl_->knocks.push_back(std::move(knock));
}

bool ShmTransport::poll() {
  bool moved = false;
  for (const uint32_t id : impl_->regions.take_destroyed())
    for (ShmLink* link : impl_->links) link->drop_region(id);
  for (size_t i = 0; i < impl_->links.size(); ++i) moved |= impl_->links[i]->poll();
  return moved;
}

bool ShmTransport::pending() const {
  return std::any_of(impl_->links.begin(), impl_->links.end(), [](const ShmLink* link) { return link->pending(); });
}

bool ShmTransport::congested() const {
  return std::any_of(impl_->links.begin(), impl_->links.end(), [](const ShmLink* link) { return link->congested(); });
}

Time ShmTransport::tick(Time now) {
  Time next = Time::max();
  while (!impl_->greetings.empty() && impl_->greetings.front()->deadline <= now) {
    impl_->arrivals.stranger("a process of this host", "no handshake within 5 s");
    impl_->greetings.pop_front();
  }
  if (!impl_->greetings.empty()) next = impl_->greetings.front()->deadline;
  for (size_t i = 0; i < impl_->links.size(); ++i) next = std::min(next, impl_->links[i]->tick(now));
  for (size_t i = 0; i < impl_->knocks.size();) {
    Impl::Knock& knock = *impl_->knocks[i];
    if (knock.deadline <= now) {
      impl_->answered(knock, false, "it does not answer");
      continue;
    }
    next = std::min(next, knock.deadline);
    ++i;
  }
  return next;
}

// The listener.
void ShmTransport::Impl::ready(uint32_t) {
  for (;;) {
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) return;
    if (greetings.size() >= kMaxGreetings) {
      arrivals.stranger("a process of this host", "too many unauthenticated connections");
      greetings.pop_front();
    }
    greetings.push_back(std::make_unique<Greeting>(*this, std::move(fd)));
  }
}

void ShmTransport::Impl::greeted(Greeting& greeting) {
  const auto state = greeting.handshake.advance(greeting.socket.get());
  if (state == Handshake::State::going) {
    poller.modify(greeting.socket.get(), EPOLLIN | (greeting.handshake.wants_write() ? EPOLLOUT : 0u), &greeting);
    return;
  }
  if (state == Handshake::State::failed) {
    arrivals.stranger("a process of this host", greeting.handshake.why());
  } else {
    const int peer = static_cast<int>(greeting.handshake.hello().rank);
    if (greeting.handshake.hello().purpose == Purpose::knock) {
      arrivals.knocked(peer);
      return forget(greeting);
    }
    poller.remove(greeting.socket.get(), &greeting);
    arrivals.accepted(std::make_unique<ShmLink>(shared_from_this(), peer, std::move(greeting.socket),
                                                std::move(greeting.handshake), false));
  }
  forget(greeting);
}

void ShmTransport::Impl::answered(Knock& knock, bool alive, const std::string& why) {
  const int peer = knock.peer;
  auto& done = knock.done;
  std::erase_if(knocks, [&](const auto& k) { return k.get() == &knock; });
  done.knock_done(
      peer, alive,
      alive ? Error{} : Error{Code::peer_lost, peer, {}, "rank " + std::to_string(peer) + " is gone: " + why});
}

void ShmTransport::Impl::forget(const Greeting& greeting) {
  const auto it = std::find_if(greetings.begin(), greetings.end(), [&](const auto& g) { return g.get() == &greeting; });
  if (it != greetings.end()) greetings.erase(it);
}

}  // namespace slipstream
