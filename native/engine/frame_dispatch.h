// Hands each frame that arrives to the part of the engine that it is for: an execution, the questions about stalls, or
// the frames that came too early. Driver's thread only.
#pragma once

#include <unordered_map>

#include "engine/board_handler.h"
#include "engine/channels.h"
#include "engine/early_frames.h"
#include "engine/executions.h"
#include "engine/fabric.h"
#include "engine/ledger.h"
#include "engine/offer_handler.h"
#include "engine/quota.h"
#include "engine/short_messages.h"
#include "engine/stall_questions.h"
#include "transport/link.h"

namespace slipstream {

class FrameDispatch {
 public:
  // Of frames that are for no work; null: this rank has none.
  struct Takers {
    BoardHandler* boards;
    OfferHandler* offers;
  };
  FrameDispatch(Fabric& fabric, const Executions& executions, const Channels& channels, const Ledger& ledger,
                EarlyFrames& early, ShortMessages& messages, StallQuestions& questions, Takers takers)
      : fabric_(fabric),
        executions_(executions),
        channels_(channels),
        ledger_(ledger),
        early_(early),
        messages_(messages),
        questions_(questions),
        boards_(takers.boards),
        offers_(takers.offers) {}

  // As Events::land() and Events::arrived(). An error if the session has to fail.
  Events::Landing land(const Link& link, const Frame& frame) const;
  [[nodiscard]] Error arrived(Link& link, const Frame& frame, const Payload& payload);
  // Gives an execution that has begun the frames that came before it.
  [[nodiscard]] Error deliver_early(Execution& execution);

 private:
  static constexpr int kUnneededPerSecond = 1000;

  bool floods(int peer, MessageType type);
  Error for_work(Link& link, const WorkHeader& frame, const Payload& payload);
  Error for_execution(Execution& execution, Link& link, const WorkHeader& frame, const Payload& payload);
  Error for_past(const Channels::Past& past, Link& link, const WorkHeader& frame, const Payload& payload);
  bool is_needless(const WorkHeader& frame) const;
  Error keep_early(Link& link, const WorkHeader& frame, const Payload& payload);

  Fabric& fabric_;
  const Executions& executions_;
  const Channels& channels_;
  const Ledger& ledger_;
  EarlyFrames& early_;
  ShortMessages& messages_;
  StallQuestions& questions_;
  BoardHandler* boards_;                     // null: no group has a board
  OfferHandler* offers_;                     // null: nobody may offer this rank anything
  std::unordered_map<int, Quota> unneeded_;  // by peer: control frames that no work needs
};

}  // namespace slipstream
