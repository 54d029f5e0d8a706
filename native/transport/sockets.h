// What the tcp transport needs of the socket API. Numeric addresses only: no name is ever looked up here.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"

namespace slipstream {

struct SocketOptions {
  std::string congestion;  // TCP_CONGESTION; empty: cubic to this host, else the kernel's default
  int notsent_lowat = 256 << 10;
};

// A non-blocking listener; `port` 0 takes a free one. Throws Failure.
Fd listen_tcp(const std::string& address, uint16_t port);
uint16_t local_port(int fd);

// A non-blocking connect under way (or done). On failure the Fd is empty and `error` an errno.
Fd connect_tcp(const std::string& address, uint16_t port, int& error);
// The outcome of a connect: 0 or an errno. Call when the socket is writable.
int connect_outcome(int fd);

// Both ends are on this machine.
bool same_machine(int fd);
// Sets the options of a connected socket. None of them is needed for correctness, so none fails.
void tune_tcp(int fd, const SocketOptions& options);
// Throws Failure(invalid) if this kernel, or this user, does not have the congestion control `name`.
void check_congestion(const std::string& name);

// "10.1.2.3:4567", "[::1]:4567"; "unknown" if the socket has no peer any more.
std::string peer_name(int fd);
std::string address_name(const std::string& address, uint16_t port);

}  // namespace slipstream
