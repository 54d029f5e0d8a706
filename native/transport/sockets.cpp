#include "transport/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <vector>

#include "base/error.h"

namespace slipstream {
namespace {

constexpr int kBacklog = 1024;
constexpr int kPortTries = 16;
constexpr int kSameMachineBuffer = 4 << 20;

struct Address {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* raw() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

bool parse(const std::string& text, uint16_t port, Address& out) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(text.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  std::memcpy(&out.storage, found->ai_addr, found->ai_addrlen);
  out.size = found->ai_addrlen;
  ::freeaddrinfo(found);
  return true;
}

std::string numeric(const Address& address, uint16_t& port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.family() == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address.storage, sizeof(in));
    ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
    port = ntohs(in.sin_port);
  } else if (address.family() == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &address.storage, sizeof(in));
    ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof(text));
    port = ntohs(in.sin6_port);
  }
  return text;
}

void set(int fd, int level, int name, int value) { (void)::setsockopt(fd, level, name, &value, sizeof(value)); }

int read_limit(const char* path) {
  std::ifstream file(path);
  int value = 0;
  return file >> value ? value : 0;
}

// A fixed buffer switches the kernel's autotuning off, so it must never end up smaller than what that gives.
void set_buffer(int fd, int force, int plain, int limit) {
  const int size = kSameMachineBuffer;
  if (::setsockopt(fd, SOL_SOCKET, force, &size, sizeof(size)) == 0) return;
  if (limit >= size) set(fd, SOL_SOCKET, plain, size);
}

bool in_subnet(const sockaddr* local, const sockaddr* mask, const Address& to) {
  const auto bytes = [](const sockaddr* at, size_t& size) {
    const bool v4 = at->sa_family == AF_INET;
    size = v4 ? sizeof(in_addr) : sizeof(in6_addr);
    const auto* raw = reinterpret_cast<const unsigned char*>(at);
    return raw + (v4 ? offsetof(sockaddr_in, sin_addr) : offsetof(sockaddr_in6, sin6_addr));
  };
  size_t size = 0;
  const auto* here = bytes(local, size);
  const auto* bits = bytes(mask, size);
  const auto* there = bytes(reinterpret_cast<const sockaddr*>(&to.storage), size);
  for (size_t i = 0; i < size; ++i)
    if (((here[i] ^ there[i]) & bits[i]) != 0) return false;
  return true;
}

// Linux routes by destination, so this is of use where rules route by source, as they have to for several interfaces in
// one subnet. Nothing depends on it, so it does not fail.
void bind_in_turn(int fd, const Address& to, size_t turn) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return;
  std::vector<Address> found;
  bool self = false;
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_netmask == nullptr || one->ifa_addr->sa_family != to.family()) continue;
    if ((one->ifa_flags & IFF_UP) == 0 || !in_subnet(one->ifa_addr, one->ifa_netmask, to)) continue;
    Address address;
    address.size = to.family() == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, one->ifa_addr, address.size);
    uint16_t port = 0;
    self = self || numeric(address, port) == numeric(to, port);
    found.push_back(address);
  }
  ::freeifaddrs(all);
  if (self || found.size() < 2) return;
  set(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  Address& from = found[turn % found.size()];
  (void)::bind(fd, from.raw(), from.size);
}

// Nothing if another socket has the port.
std::optional<Fd> try_listen(const std::string& address, uint16_t port) {
  Address at;
  if (!parse(address, port, at)) throw Failure(Code::invalid, "not a numeric address to listen on: '" + address + "'");
  Fd fd(::socket(at.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) throw Failure(Code::internal, errno_text("socket"));
  if (at.family() == AF_INET6) set(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);  // IPv4 has a listener of its own
  if (::bind(fd.get(), at.raw(), at.size) == 0 && ::listen(fd.get(), kBacklog) == 0) return fd;
  if (errno == EADDRINUSE) return std::nullopt;
  throw Failure(Code::internal, errno_text(("listen on " + address_name(address, port)).c_str()));
}

Failure port_taken(const std::string& address, uint16_t port) {
  errno = EADDRINUSE;
  return Failure(Code::internal, errno_text(("listen on " + address_name(address, port)).c_str()));
}

}  // namespace

Fd listen_tcp(const std::string& address, uint16_t port) {
  if (auto fd = try_listen(address, port)) return std::move(*fd);
  throw port_taken(address, port);
}

std::pair<std::vector<Fd>, uint16_t> listen_tcp(const std::vector<std::string>& addresses) {
  std::vector<Fd> found;
  uint16_t port = 0;
  for (int tries = kPortTries; found.size() < addresses.size();) {
    auto fd = try_listen(addresses[found.size()], port);
    if (!fd) {  // another process may have the port there
      if (found.empty() || --tries == 0) throw port_taken(addresses[found.size()], port);
      found.clear();
      port = 0;
      continue;
    }
    found.push_back(std::move(*fd));
    port = local_port(found[0].get());
  }
  return {std::move(found), port};
}

uint16_t local_port(int fd) {
  Address at;
  uint16_t port = 0;
  if (::getsockname(fd, at.raw(), &at.size) != 0) throw Failure(Code::internal, errno_text("getsockname"));
  (void)numeric(at, port);
  return port;
}

uint16_t peer_port(int fd) {
  Address there;
  uint16_t port = 0;
  if (::getpeername(fd, there.raw(), &there.size) == 0) (void)numeric(there, port);
  return port;
}

Fd connect_tcp(const std::string& address, uint16_t port, int& error, size_t turn, int segment) {
  Address to;
  if (!parse(address, port, to)) {
    error = EADDRNOTAVAIL;
    return {};
  }
  Fd fd(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  error = 0;
  if (fd) bind_in_turn(fd.get(), to, turn);
  if (fd && segment > 0) set(fd.get(), IPPROTO_TCP, TCP_MAXSEG, segment);
  if (!fd || (::connect(fd.get(), to.raw(), to.size) != 0 && errno != EINPROGRESS)) {
    error = errno;
    return {};
  }
  return fd;
}

int connect_outcome(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

bool same_machine(int fd) {
  Address here;
  Address there;
  if (::getsockname(fd, here.raw(), &here.size) != 0 || ::getpeername(fd, there.raw(), &there.size) != 0) return false;
  uint16_t port = 0;
  const std::string a = numeric(here, port);
  return !a.empty() && a == numeric(there, port);
}

bool set_congestion(int fd, const std::string& name) {
  return ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), static_cast<socklen_t>(name.size())) == 0;
}

std::string congestion_of(int fd) {
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t size = sizeof(name) - 1;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0 ? name : "";
}

// bbr paces by the rate and the round trip that it has seen. It was measured to be slower than cubic for work that
// comes in bursts, over unequal paths and within a machine (docs/log.md).
bool paces(int fd) { return congestion_of(fd).starts_with("bbr"); }

// The upper six bits of the byte; a socket for IPv6 may carry IPv4, too. Of these the upper three are the priority by
// which this host's own queues and VLAN tags go, up to the one that needs no privilege. IP_TOS sets another one.
void set_class(int fd, int dscp) {
  constexpr int kMostPriority = 6;
  set(fd, IPPROTO_IP, IP_TOS, dscp << 2);
  set(fd, IPPROTO_IPV6, IPV6_TCLASS, dscp << 2);
  set(fd, SOL_SOCKET, SO_PRIORITY, std::min(dscp >> 3, kMostPriority));
}

void tune_tcp(int fd, const SocketOptions& options) {
  const bool near = same_machine(fd);
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  if (options.dscp > 0) set_class(fd, options.dscp);
  if (options.notsent_lowat > 0) set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, options.notsent_lowat);
  if (!options.congestion.empty())
    set_congestion(fd, options.congestion);
  else if (paces(fd) && !set_congestion(fd, "cubic"))
    set_congestion(fd, "reno");  // which everybody may have
  if (!near) return;
  static const int send_limit = read_limit("/proc/sys/net/core/wmem_max");
  static const int receive_limit = read_limit("/proc/sys/net/core/rmem_max");
  set_buffer(fd, SO_SNDBUFFORCE, SO_SNDBUF, send_limit);
  set_buffer(fd, SO_RCVBUFFORCE, SO_RCVBUF, receive_limit);
}

void limit_unsent(int fd, int bytes) { set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, bytes); }

void poll_device(int fd, int microseconds) { set(fd, SOL_SOCKET, SO_BUSY_POLL, microseconds); }

void reset_tcp(int fd) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  (void)::connect(fd, &nobody, sizeof(nobody));
}

std::string check_congestion(const std::string& name) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) throw Failure(Code::internal, errno_text("socket"));
  if (!name.empty() && !set_congestion(fd.get(), name))
    throw Failure(Code::invalid,
                  errno_text(("SLIPSTREAM_CONGESTION names the congestion control '" + name + "'").c_str()) +
                      " (see /proc/sys/net/ipv4/tcp_allowed_congestion_control)");
  tune_tcp(fd.get(), {name, 0});
  return congestion_of(fd.get());
}

std::vector<std::string> resolve(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* all = nullptr;
  std::vector<std::string> found;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &all) != 0) return found;
  for (const addrinfo* one = all; one != nullptr; one = one->ai_next) {
    Address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    uint16_t port = 0;
    std::string text = numeric(address, port);
    if (!text.empty()) found.push_back(std::move(text));
  }
  ::freeaddrinfo(all);
  return found;
}

std::string peer_name(int fd) {
  Address there;
  uint16_t port = 0;
  if (::getpeername(fd, there.raw(), &there.size) != 0) return "unknown";
  const std::string text = numeric(there, port);
  return text.empty() ? "unknown" : address_name(text, port);
}

std::string peer_address(int fd) {
  Address there;
  uint16_t port = 0;
  return ::getpeername(fd, there.raw(), &there.size) == 0 ? numeric(there, port) : "";
}

TcpState tcp_state(int fd) {
  TcpState state;
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0) {  // an older kernel fills less of it
    state.delivery = info.tcpi_delivery_rate;
    state.rtt_us = info.tcpi_rtt;
    state.retransmits = info.tcpi_total_retrans;
  }
  Address here;
  uint16_t port = 0;
  if (::getsockname(fd, here.raw(), &here.size) == 0) {
    const std::string text = numeric(here, port);
    state.local = address_name(text, port);
  }
  state.remote = peer_name(fd);
  return state;
}

double smoothed_rtt(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? 1e-6 * info.tcpi_rtt : 0;
}

double least_rtt(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_min_rtt == UINT32_MAX) return 0;
  return 1e-6 * info.tcpi_min_rtt;
}

double delivery_rate(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_delivery_rate_app_limited != 0) return 0;
  return static_cast<double>(info.tcpi_delivery_rate);
}

uint64_t unacknowledged(int fd) {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
}

Passed passed(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  return {info.tcpi_bytes_acked, info.tcpi_bytes_received, info.tcpi_snd_mss, info.tcpi_last_ack_recv / 1e3,
          info.tcpi_last_data_recv / 1e3};
}

bool unanswered(int fd, double seconds) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
  // Both counters start anew with every answer but one: a receiver without memory answers and takes nothing. Then the
  // last answer is younger than the last repetition, which was sent within the (doubled) time-out.
  const double silent = info.tcpi_last_ack_recv / 1e3;
  return std::max(info.tcpi_retransmits, info.tcpi_probes) >= 2 && silent >= std::max(seconds, info.tcpi_rto / 1e6);
}

std::string address_name(const std::string& address, uint16_t port) {
  const bool v6 = address.find(':') != std::string::npos;
  return (v6 ? "[" + address + "]" : address) + ":" + std::to_string(port);
}

Endpoint local_endpoint(int fd) {
  Address here;
  Endpoint found;
  if (::getsockname(fd, here.raw(), &here.size) != 0) return found;
  if (here.family() == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &here.storage, sizeof(in));
    std::memcpy(found.address.data(), &in.sin_addr, sizeof(in.sin_addr));
    found.port = ntohs(in.sin_port);
    found.family = 4;
  } else if (here.family() == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &here.storage, sizeof(in));
    std::memcpy(found.address.data(), &in.sin6_addr, sizeof(in.sin6_addr));
    found.port = ntohs(in.sin6_port);
    found.family = 6;
  }
  return found;
}

std::string endpoint_name(const Endpoint& endpoint) {
  if (endpoint.family == 0) return {};
  char text[INET6_ADDRSTRLEN] = "";
  ::inet_ntop(endpoint.family == 4 ? AF_INET : AF_INET6, endpoint.address.data(), text, sizeof(text));
  return address_name(text, endpoint.port);
}

}  // namespace slipstream
