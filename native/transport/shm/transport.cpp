#include "transport/shm/transport.h"

#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "transport/shm/link.h"

namespace slipstream {

namespace {

constexpr int kAcceptsPerTurn = 64;
constexpr double kAcceptPause = 0.1;                       // seconds, when the process has run out of file descriptors
constexpr const char* kCaller = "a process of this host";  // has no address

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
  if (!fd)
    throw Failure(Code::internal, "this process has no more resources: " + errno_text("socket") + " (ulimit -n)");
  return fd;
}

}  // namespace

Fd connect_unix(const std::string& name, int& error) {
  Fd fd = unix_socket();
  sockaddr_un address;
  const socklen_t length = abstract_address(name, address);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0) return fd;
  error = errno;
  return {};
}

struct ShmTransport::Impl::Greeting : Handler {
  Greeting(Impl& h, Fd f)
      : home(h), socket(std::move(f)), handshake(Handshake::server(h.identity, {Purpose::shm, Purpose::knock})) {
    home.poller.add(socket.get(), EPOLLIN, this);
  }
  ~Greeting() override {
    if (socket) home.poller.remove(socket.get(), this);
  }
  void ready(uint32_t) override { home.greeted(*this); }

  Impl& home;
  Fd socket;
  Handshake handshake;
};

struct ShmTransport::Impl::Knock : Handler {
  Knock(Impl& h, int p, std::string n, KnockDone& d)
      : home(h),
        peer(p),
        name(std::move(n)),
        handshake(Handshake::client(h.identity, Purpose::knock, p, 0, 0)),
        done(d),
        deadline(now() + seconds(h.connect_seconds)) {
    attempt();
  }
  ~Knock() override {
    if (socket) home.poller.remove(socket.get(), this);
  }
  // The outcome is told by ready() or tick(), never from here.
  void attempt() {
    again = Time::max();
    int error = 0;
    socket = connect_unix(name, error);
    if (socket) {
      handshake = Handshake::client(home.identity, Purpose::knock, peer, 0, 0);
      home.poller.add(socket.get(), EPOLLIN | EPOLLOUT, this);
    } else {
      why = error == ECONNREFUSED ? "it finished, died or was killed: nothing listens there any more"
                                  : errno_text("connect", error);
      (error == EAGAIN ? again : deadline) = now() + seconds(error == EAGAIN ? kDialPause : 0);
    }
  }
  void ready(uint32_t) override {
    switch (handshake.advance(socket.get())) {
      case Handshake::State::going:
        return home.poller.modify(socket.get(), EPOLLIN | (handshake.wants_write() ? EPOLLOUT : 0u), this);
      case Handshake::State::failed:
        if (!handshake.closed()) return home.answered(*this, false, handshake.why());
        // If it has died, nobody listens any more; else it may have had too many to greet.
        why = handshake.why();
        home.poller.remove(socket.get(), this);
        socket.reset();
        again = now() + seconds(kDialPause);
        return;
      case Handshake::State::done:
        return home.answered(*this, true, "");
    }
  }

  Impl& home;
  int peer;
  std::string name;
  Fd socket;
  Handshake handshake;
  KnockDone& done;
  Time deadline;
  Time again = Time::max();
  std::string why = "it does not answer";
};

ShmTransport::Impl::Impl(Poller& p, Events& e, Arrivals& a, Identity i, Regions& r, Bell& b, double c)
    : poller(p), events(e), arrivals(a), identity(std::move(i)), regions(r), bell(b), connect_seconds(c), links(b) {}

ShmTransport::Impl::~Impl() = default;

ShmTransport::ShmTransport(Poller& poller, Events& events, Arrivals& arrivals, Identity identity, Regions& regions,
                           Bell& bell, double connect_seconds)
    : impl_(std::make_shared<Impl>(poller, events, arrivals, std::move(identity), regions, bell, connect_seconds)) {}

ShmTransport::~ShmTransport() { stop_listening(); }

void ShmTransport::stop_listening() {
  impl_->knocks.clear();
  impl_->greetings.clear();
  impl_->accepts_at = Time::max();
  if (impl_->listener) impl_->poller.remove(impl_->listener.get(), impl_.get());
  impl_->listener.reset();
}

void ShmTransport::set_ranks_of_host(size_t ranks) {
  constexpr size_t kMemory = 8 << 20;
  impl_->ring_bytes =
      std::clamp(std::bit_floor(kMemory / 2 / (std::max<size_t>(2, ranks) - 1)), Ring::kLeast, Ring::kMost);
  impl_->links.expect(ranks);
}

void ShmTransport::set_single_copy(SingleCopy choice) { impl_->single_copy = choice; }

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
  return std::make_unique<ShmLink>(impl_, peer, name);
}

void ShmTransport::knock(int peer, const std::string& name, KnockDone& done) {
  impl_->knocks.push_back(std::make_unique<Impl::Knock>(*impl_, peer, name, done));
}

bool ShmTransport::poll() {
  for (const uint32_t id : impl_->regions.take_destroyed())
    for (ShmLink* link : impl_->links.all()) link->drop_region(id);
  return impl_->links.poll();
}

bool ShmTransport::pending() const { return impl_->links.pending(); }
bool ShmTransport::congested() const { return impl_->links.congested(); }

std::vector<int> ShmTransport::owed() const {
  std::vector<int> ranks;
  for (const ShmLink* link : impl_->links.all())
    if (link->owes()) ranks.push_back(link->peer());
  return ranks;
}

Time ShmTransport::tick(Time now) {
  if (impl_->accepts_at <= now) impl_->accept_again();
  while (auto late = impl_->greetings.take_late(now)) impl_->refuse(std::move(late), kLate);
  Time next = std::min(impl_->accepts_at, impl_->greetings.deadline());
  const auto& links = impl_->links.all();
  for (size_t i = 0; i < links.size(); ++i) next = std::min(next, links[i]->tick(now));
  for (size_t i = 0; i < impl_->knocks.size();) {
    Impl::Knock& knock = *impl_->knocks[i];
    if (knock.deadline <= now) {
      impl_->answered(knock, false, knock.why);
      continue;
    }
    if (knock.again <= now) knock.attempt();
    next = std::min({next, knock.deadline, knock.again});
    ++i;
  }
  return next;
}

// The listener.
void ShmTransport::Impl::ready(uint32_t) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    if (const Time room = greetings.room_at(); room > now()) return pause(room);
    Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
      arrivals.stranger(kCaller, errno_text("accept"));
      return pause(now() + seconds(kAcceptPause));
    }
    // All ranks that share memory are the same user's (Python: host_id). Nobody else may take a place among them.
    ucred peer{};
    socklen_t size = sizeof(peer);
    if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid != ::geteuid()) {
      arrivals.stranger(kCaller, "it belongs to another user");
      continue;
    }
    if (auto displaced = greetings.add(std::make_unique<Greeting>(*this, std::move(fd)), now()))
      refuse(std::move(displaced), kGaveWay);
  }
}

// Connections stay in the backlog, so the poller would call at once, again and again.
void ShmTransport::Impl::pause(Time until) {
  poller.remove(listener.get(), this);
  accepts_at = until;
}

void ShmTransport::Impl::accept_again() {
  accepts_at = Time::max();
  poller.add(listener.get(), EPOLLIN, this);
}

void ShmTransport::Impl::greeted(Greeting& greeting) {
  const auto state = greeting.handshake.advance(greeting.socket.get());
  if (state == Handshake::State::going) {
    poller.modify(greeting.socket.get(), EPOLLIN | (greeting.handshake.wants_write() ? EPOLLOUT : 0u), &greeting);
    return;
  }
  auto taken = greetings.take(greeting);
  if (state == Handshake::State::failed) {
    const std::string why = taken->handshake.why();
    return refuse(std::move(taken), why);
  }
  const int peer = static_cast<int>(taken->handshake.hello().rank);
  if (taken->handshake.hello().purpose == Purpose::knock) return arrivals.knocked(peer);
  poller.remove(taken->socket.get(), taken.get());
  arrivals.accepted(
      std::make_unique<ShmLink>(shared_from_this(), peer, std::move(taken->socket), std::move(taken->handshake)));
}

// Hangs up.
void ShmTransport::Impl::refuse(std::unique_ptr<Greeting> greeting, const std::string& why) {
  greeting.reset();
  arrivals.stranger(kCaller, why);
}

// `why` is a copy: it may be the knock's own text, and the knock goes before the outcome is told.
void ShmTransport::Impl::answered(Knock& knock, bool alive, std::string why) {
  const int peer = knock.peer;
  auto& done = knock.done;
  std::erase_if(knocks, [&](const auto& k) { return k.get() == &knock; });
  done.knock_done(
      peer, alive,
      alive ? Error{} : Error{Code::peer_lost, peer, {}, "rank " + std::to_string(peer) + " is gone: " + why});
}

}  // namespace slipstream
