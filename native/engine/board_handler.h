// What an engine asks and tells those who do works without it: the boards of the session's groups.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/error.h"
#include "engine/channels.h"
#include "engine/work_header.h"
#include "transport/link.h"

namespace slipstream {

class BoardHandler {
 public:
  virtual ~BoardHandler() = default;
  // On the driver's thread: a `board` frame has come. An error if the session has to fail.
  [[nodiscard]] virtual Error offered_board(Link& link, const WorkHeader& frame,
                                            std::span<const std::byte> payload) = 0;
  // Works that are submitted from now on fail at once.
  virtual void session_ended() = 0;
  // Whether the channel's operation with this number may still become a work, or has become one that waits for the
  // decision.
  virtual bool undecided_on_board(uint64_t channel, uint32_t seq) = 0;
  // The latest work of the channel that a board has done.
  virtual std::optional<Channels::Past> latest_on_board(uint64_t channel) = 0;
};

}  // namespace slipstream
