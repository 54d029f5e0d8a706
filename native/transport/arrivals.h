// What a transport tells its owner beside the Events of each link. On the driver's thread.
#pragma once

#include <memory>
#include <string>

#include "transport/link.h"

namespace slipstream {

// What arrives at a listener, beside the Events of each link.
class Arrivals {
 public:
  virtual ~Arrivals() = default;
  // `rank` has dialled us and is authenticated. The owner keeps the link, and Events::up follows at once, or destroys
  // it.
  virtual void accepted(std::unique_ptr<Link> link) = 0;
  // `rank` needs a link with us and asks us to dial (it is the higher rank).
  virtual void knocked(int rank) = 0;
  // A caller failed to authenticate, or broke the protocol, and its connection was closed. For the log.
  virtual void stranger(const std::string& who, const std::string& why) = 0;
};

// The outcome of a knock.
class KnockDone {
 public:
  virtual ~KnockDone() = default;
  virtual void knock_done(int peer, bool alive, const Error& why) = 0;
};

}  // namespace slipstream
