// Where connections wait until they have proved who they are, and where they are shown in. Private to this folder.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "transport/connection.h"
#include "transport/handshake.h"
#include "transport/tcp_core.h"

namespace slipstream {

// Bounds: at most options.max_unauthenticated guests, and as many authenticated lanes that wait for their link; the
// oldest goes first. Each has options.handshake_seconds.
class Lobby {
 public:
  Lobby(std::shared_ptr<TcpCore> core, Arrivals& arrivals);
  ~Lobby();
  Lobby(const Lobby&) = delete;
  Lobby& operator=(const Lobby&) = delete;

  uint16_t listen(const std::vector<std::string>& addresses);
  void close();  // nobody comes in any more

 private:
  class Listener;
  class Guest;
  class Early;

  void enter(Fd fd);
  void refuse(Guest& guest, const std::string& why);
  void show_in(Guest& guest);
  std::unique_ptr<Guest> take(Guest& guest);
  void knocked(const Hello& hello);
  void welcome_link(const Hello& hello, const std::string& who, Connection connection);
  void welcome_lane(const Hello& hello, const std::string& who, Connection connection);

  std::shared_ptr<TcpCore> core_;
  Arrivals& arrivals_;
  std::list<std::unique_ptr<Listener>> listeners_;
  std::list<std::unique_ptr<Guest>> guests_;  // oldest first
  std::list<std::unique_ptr<Early>> early_;   // lanes whose link is not here yet, oldest first
};

}  // namespace slipstream
