// Ranks ask each other about works that do not move. Driver's thread only.
//
// A rank asks by describing its work (`describe`). A rank that is in another work of that number says so (mismatch);
// all others answer with a `status`. Ranks that wait in the work too pass on what they hear of ranks that do not take
// part, so that every rank knows these at its time-out, whomever it waits for itself.
//
// A rank that leaves cannot answer later: it describes its latest works to the ranks that take part in them, unasked.
#pragma once

#include <map>
#include <string>
#include <unordered_map>

#include "engine/board_handler.h"
#include "engine/channels.h"
#include "engine/executions.h"
#include "engine/fabric.h"
#include "engine/last_words.h"
#include "engine/ledger.h"
#include "engine/quota.h"
#include "engine/receives.h"
#include "engine/short_messages.h"
#include "engine/wait_report.h"

namespace slipstream {

class StallQuestions {
 public:
  StallQuestions(int rank, Fabric& fabric, const Executions& executions, Receives& receives, const Channels& channels,
                 const Ledger& ledger, const WaitReport& report, BoardHandler* boards)
      : rank_(rank),
        fabric_(fabric),
        executions_(executions),
        receives_(receives),
        channels_(channels),
        ledger_(ledger),
        report_(report),
        boards_(boards) {}

  // Describes a work to `peer`, which compares it with its own work of that number.
  void describe(const WorkKey& work, const Signature& signature, int peer) { describe(work, signature, peer, 0); }
  // The same, but `peer` only answers.
  void ask(const WorkKey& work, const Signature& signature, int peer);
  // This rank leaves. `messages`: its latest that were no works.
  void describe_latest(const std::vector<ShortMessages::Past>& messages);
  // A peer has described a work. An error if it is another work than this rank's of that number.
  [[nodiscard]] Error described(int peer, const WorkHeader& frame, const std::string& theirs);
  // `work` begins. An error if a rank that has left since says that it called another work of that number.
  [[nodiscard]] Error compare_last_words(const Work& work);
  // A frame for the work that `execution` runs is one of another work. An error if `peer`, its sender, has left.
  [[nodiscard]] Error differs(Execution& execution, int peer);
  // A frame is one of another work than this rank's of that number, which is done. `counts`: if `peer` does not say
  // which it has called, the session fails (unexplained()).
  void differs(const WorkKey& key, const Channels::Past& past, int peer, bool counts);
  // The error for a peer that has called another work than this rank, and has not said which in time; Code::ok if there
  // is none.
  [[nodiscard]] Error unexplained(Time now) const;
  // When unexplained() is to be asked next; Time::max() if never.
  Time explained_by() const;
  // The same error for one peer, without waiting for what it says; null if there is none.
  const Error* unexplained_by(int peer) const;
  // A peer has answered, for itself or for the rank `frame.chunk`.
  void answered(int peer, const WorkHeader& frame, const std::string& text);

 private:
  static constexpr double kExplainSeconds = 2;

  struct Unexplained {
    Time at;
    Error error;
  };

  void describe(const WorkKey& work, const Signature& signature, int peer, uint8_t flags);
  void note(uint32_t seq, const Signature& ours, int peer);
  Error unlike(uint32_t seq, const Signature& ours, int peer) const;
  Error mismatch(uint32_t seq, const Signature& ours, int peer, const std::string& theirs) const;
  void answer(int peer, const WorkHeader& asked);
  bool may_answer(int peer, Time now);
  void send_answer(int to, const WorkHeader& asked, int subject, bool takes_part, const std::string& text,
                   Clock::duration age = {});
  Stall* stall_of(const WorkHeader& frame, int subject);
  const char* cure_with(int rank) const;      // where both wait for messages of each other; may be empty
  bool waits_for(int rank, Side side) const;  // in a message to it (sender) or from it
  std::string beyond(const WorkHeader& asked, const Channels::Past* past, const Channels::Past* board, Time now) const;
  std::string absence(int asker, const WorkHeader& asked, Time now) const;

  int rank_;
  Fabric& fabric_;
  const Executions& executions_;
  Receives& receives_;
  const Channels& channels_;
  const Ledger& ledger_;
  const WaitReport& report_;
  BoardHandler* boards_;  // null: no group has a board
  LastWords last_words_;
  std::map<int, Unexplained> unexplained_;  // by peer: the first one
  std::unordered_map<int, Quota> answers_;  // by rank that asked
};

}  // namespace slipstream
