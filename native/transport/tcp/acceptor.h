// Accepts connections, authenticates them, and gives them to their links. Private to this folder.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "transport/handshake.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/core.h"

namespace slipstream {

// At most options.max_unauthenticated connections are in their handshake, and as many authenticated lanes wait for
// their link. A new one replaces the oldest. Each has options.handshake_seconds.
class Acceptor {
 public:
  Acceptor(std::shared_ptr<TcpCore> core, Arrivals& arrivals);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  uint16_t listen(const std::vector<std::string>& addresses);
  void close();  // accepts nothing more

 private:
  class Listener;
  class Unauthenticated;
  class EarlyLane;

  void accept(Fd fd);
  void reject(Unauthenticated& one, const std::string& why);
  void authenticated(Unauthenticated& one);
  std::unique_ptr<Unauthenticated> take(Unauthenticated& one);
  void knocked(const Hello& hello);
  void open_link(const Hello& hello, const std::string& who, Connection connection);
  void add_lane(const Hello& hello, const std::string& who, Connection connection);

  std::shared_ptr<TcpCore> core_;
  Arrivals& arrivals_;
  std::list<std::unique_ptr<Listener>> listeners_;
  std::list<std::unique_ptr<Unauthenticated>> unauthenticated_;  // oldest first
  std::list<std::unique_ptr<EarlyLane>> early_lanes_;            // lanes whose link is not here yet, oldest first
};

}  // namespace slipstream
