// Accepts connections, authenticates them, and gives them to their links. Private to this folder.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/admission.h"
#include "transport/handshake.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/core.h"

namespace slipstream {

// options.admission limits the connections in their handshake. As many authenticated lanes wait for their link, each
// for as long; a new one replaces the oldest.
class Acceptor final : private Timed {
 public:
  Acceptor(std::shared_ptr<TcpCore> core, Arrivals& arrivals);
  ~Acceptor();

  uint16_t listen(const std::vector<std::string>& addresses);
  void close();  // accepts nothing more

 private:
  class Listener;
  class Unauthenticated;
  class EarlyLane;

  void due(Time now) override;
  void set_timer();
  void accept(Fd fd);
  void reject(std::unique_ptr<Unauthenticated> one, const std::string& why);
  void authenticated(Unauthenticated& one);
  std::unique_ptr<Unauthenticated> take(Unauthenticated& one);
  void knocked(const Hello& hello);
  void open_link(const Hello& hello, const std::string& who, Connection connection);
  void add_lane(const Hello& hello, const std::string& who, Connection connection);

  std::shared_ptr<TcpCore> core_;
  Arrivals& arrivals_;
  std::list<std::unique_ptr<Listener>> listeners_;
  Admission<Unauthenticated> unauthenticated_;
  std::list<std::unique_ptr<EarlyLane>> early_lanes_;  // lanes whose link is not here yet, oldest first
};

}  // namespace slipstream
