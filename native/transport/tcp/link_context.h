// What the parts of one tcp link share: who is at the other end, how far the link's life has gone, what to count.
// Private to this folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/tcp/core.h"
#include "transport/tcp/losses.h"

namespace slipstream {

class Lane;

struct LinkContext {
  std::shared_ptr<TcpCore> core;
  const uint64_t token;
  const bool accepted;     // the peer dialled
  const TcpTarget target;  // where the peer listens, if we dialled

  bool goodbye = false;     // the peer leaves in good order
  bool closing = false;     // we do
  bool shut_write = false;  // the peer has what it needs of us, and is told that there is no more
  bool finished = false;
  Losses losses{};

  uint64_t lost = 0;               // connections that broke
  uint64_t replaced = 0;           // connections that were too slow for too long
  uint64_t damaged = 0;            // connections that were left because what came was not what was sent
  int damaged_in_row[2] = {0, 0};  // of control lanes, of bulk lanes: since one has brought anything new that was whole

  bool ends() const { return closing || finished; }
  int peer() const { return target.peer; }
  // Connections that break are made again.
  bool repairs() const { return static_cast<bool>(core->directory); }
  bool repairs_while_closing() const { return repairs() && !(accepted && core->options.only_answers); }
  std::string name() const { return "rank " + std::to_string(peer()); }
  const char* damage() const { return core->identity.encrypt ? "damaged or tampered with" : "damaged"; }
  // "within 10 s (SLIPSTREAM_HEARTBEAT sets the limit)"
  std::string within_patience() const;
  void warn(const std::string& text) const;
  // For the timeline. `number`: from 1, 0 is the control lane.
  void note(TraceEvent::Kind what, const Lane& lane, uint32_t number) const;
};

}  // namespace slipstream
