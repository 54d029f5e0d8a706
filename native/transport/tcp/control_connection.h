// How the control lane gets its connections: the first one, and those that take the place of one that broke. The side
// that dialled dials again; the other one asks with a knock whether the peer lives, and waits. Only a listener that is
// gone ends a link at once: its process has ended. A route that is missing, an address that does not answer, a
// connection that breaks again are tried until the heartbeat time is over. Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "transport/tcp/dial.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/paths.h"

namespace slipstream {

class TcpLink;

class ControlConnection {
 public:
  explicit ControlConnection(TcpLink& link) : link_(link) {}

  // The first connection: the peer's, or one that we dial.
  void accept(Connection connection);
  void dial_first();

  // Another connection than the one that there is, or was: dials, or asks the peer to.
  void dial();
  // The same, unless that is under way already or the link ends.
  void renew();
  void broke(int error);
  // The same of a link that closes, if it has broken: what has been sent is still to be read.
  void repair_while_closing();
  // A ping has been sent over it.
  void pinged();
  void stop_dialling() { dial_.reset(); }
  bool dialling() const { return dial_ != nullptr; }
  std::string trouble() const { return dial_ ? dial_->trouble() : std::string(); }

  // The peer's connection that takes the control lane's place, the `generation`th since the first.
  void replace(Connection connection, uint32_t generation);
  // The peer asks for a newer connection than that of this generation.
  void wanted(uint32_t generation);
  // Both sides know what the other has read.
  void resumed();

  // The connection of a bulk lane is to take the control lane's place.
  uint32_t begin_promotion() { return ++generation_; }
  uint32_t generation() const { return generation_; }  // of the latest connection, also if it is not there yet
  // Lane `number` (from 0) has been emptied. False: there is a newer control connection, or will be.
  bool promote(Connection& connection, uint32_t generation, size_t number);

  size_t path() const { return path_; }  // Paths::kNone if the peer dialled
  void shut();

 private:
  void dialled(Dial::Result result);
  void failed(const Dial::Result& result);
  DialTerms terms() const;

  TcpLink& link_;
  std::unique_ptr<Dial> dial_;
  size_t path_ = Paths::kNone;
  std::string met_at_;                    // the peer's address, as its connection showed it
  uint32_t generation_ = 0;               // of the connection that there is, or the one that is being dialled
  uint32_t current_ = 0;                  // of the one that there is
  int attempts_ = 0;                      // to resume, since one has worked
  std::optional<Time> unanswered_since_;  // a ping
  uint64_t read_then_ = 0;                // of the peer's control stream
  Fd former_;                             // until the peer says that it has left it too
  uint32_t promoted_lane_ = 0;            // from 1, whose connection the control lane is about to have
};

}  // namespace slipstream
