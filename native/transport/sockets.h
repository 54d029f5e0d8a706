// What the tcp transport needs of the socket API. Addresses are numeric; only resolve() looks up a name.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/trace.h"

namespace slipstream {

struct SocketOptions {
  std::string congestion;  // TCP_CONGESTION; empty: the kernel's default, but not one that paces
  int notsent_lowat = 256 << 10;
  int dscp = 0;  // the class of the packets, 0..63; 0: the system's
};

// A non-blocking listener; `port` 0 takes a free one. Throws Failure.
Fd listen_tcp(const std::string& address, uint16_t port);
// Listeners at all addresses, on one port that is free at each. Throws Failure.
std::pair<std::vector<Fd>, uint16_t> listen_tcp(const std::vector<std::string>& addresses);
uint16_t local_port(int fd);
uint16_t peer_port(int fd);  // 0 if the socket has no peer any more

// A non-blocking connect under way (or done). On failure the Fd is empty and `error` an errno. Where several addresses
// of this host are in the subnet of `address`, connection number `turn` comes from one of them in turn; the kernel
// would always take the first.
// `segment`: bytes of payload that a packet has at most, both ways; 0: as the interfaces allow.
Fd connect_tcp(const std::string& address, uint16_t port, int& error, size_t turn = 0, int segment = 0);
// The outcome of a connect: 0 or an errno. Call when the socket is writable.
int connect_outcome(int fd);

// Both ends are on this machine.
bool same_machine(int fd);
// Sets the options of a connected socket. None of them is needed for correctness, so a failure is ignored.
void tune_tcp(int fd, const SocketOptions& options);
// TCP_NOTSENT_LOWAT: the socket is not writable while it holds more than so many unsent bytes.
void limit_unsent(int fd, int bytes);
// SO_BUSY_POLL: the kernel looks at the network device for so long before it waits for an interrupt. Not every driver
// can, and not every user may: nothing depends on it.
void poll_device(int fd, int microseconds);
// Ends the connection with a reset: what has not been sent is thrown away.
void reset_tcp(int fd);
// The congestion control that connections get, by SocketOptions::congestion. Throws Failure(invalid) if this kernel, or
// this user, does not have `name`.
std::string check_congestion(const std::string& name);

// The numeric addresses of a host; none if it is not known. May take as long as the system's resolver.
std::vector<std::string> resolve(const std::string& host);

// What the kernel knows of a connection.
struct TcpState {
  std::string local;
  std::string remote;
  uint64_t delivery = 0;  // bytes a second
  uint32_t rtt_us = 0;
  uint64_t retransmits = 0;
};
TcpState tcp_state(int fd);
// TCP's smoothed round trip with all its queues, in seconds; 0 if the kernel does not say.
double smoothed_rtt(int fd);
// The shortest round trip that the kernel has seen, in seconds; 0 if it does not say.
double least_rtt(int fd);
// Bytes a second that have reached the peer lately; 0 if that says more about what there was to send.
double delivery_rate(int fd);
// Bytes that have been written and that the peer's machine has not acknowledged.
uint64_t unacknowledged(int fd);
// Bytes that the peer's machine has acknowledged, and what TCP sent again.
struct Passed {
  uint64_t acknowledged = 0;  // bytes
  uint64_t received = 0;      // bytes
  uint64_t segment = 0;       // bytes of payload in a full packet
  double unanswered = 0;      // seconds since the peer's machine last acknowledged anything
  double unheard = 0;         // seconds since it last sent data
};
Passed passed(int fd);
// For `seconds`, and after at least two retransmissions, the peer's machine has acknowledged nothing.
// A machine also acknowledges for a process that is stopped or does not read.
bool unanswered(int fd, double seconds);

// "10.1.2.3:4567", "[::1]:4567"; "unknown" if the socket has no peer any more.
std::string peer_name(int fd);
// Without the port; empty if the socket has no peer any more.
std::string peer_address(int fd);
// This end of a connection; none if it has no IP address.
Endpoint local_endpoint(int fd);
// As peer_name(); empty for none.
std::string endpoint_name(const Endpoint& endpoint);
std::string address_name(const std::string& address, uint16_t port);

}  // namespace slipstream
