// Describes as text what this rank waits for, from whom and since when. Driver's thread only.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/executions.h"
#include "engine/fabric.h"
#include "engine/ledger.h"
#include "engine/receives.h"

namespace slipstream {

class WaitReport {
 public:
  WaitReport(int rank, std::string name, const Fabric& fabric, const Executions& executions, const Receives& receives,
             const Ledger& ledger, std::function<std::string(Time now)> elsewhere)
      : rank_(rank),
        name_(std::move(name)),
        fabric_(fabric),
        executions_(executions),
        receives_(receives),
        ledger_(ledger),
        elsewhere_(std::move(elsewhere)) {}

  // This rank: "rank 0".
  const std::string& name() const { return name_; }
  // "rank 1 (host a), rank 2 (host b)"
  std::string who(const std::vector<int>& ranks) const;
  // "ranks 0, 1, 2"
  static std::string members(const Group& group);

  // "all_reduce(...) #0 has waited 2 s for rank 1 (host b)"
  std::string wait_of(const Execution& execution, Time now) const { return text_of(wait(execution, now)); }
  std::string wait_of(const Receives::Receive& receive, Time now) const { return text_of(wait(receive, now)); }
  // The same for other ranks: "rank 0 has waited 2 s in all_reduce(...) #0 for rank 1 (host b)".
  std::string our_wait_in(const Execution& execution, Time now) const { return our_text_of(wait(execution, now)); }
  std::string our_wait_in(const Receives::Receive& receive, Time now) const { return our_text_of(wait(receive, now)); }
  // For what `work` waits; empty if it is done.
  std::string wait_of(const Work& work, Time now) const;
  // For whom a part of a split work waits.
  std::string awaited_by(const Work& work) const;
  // What other ranks do instead of taking part in `work`, as far as they have said so; to be put behind a wait.
  std::string dissent(const Work& work, const Stall& stall, Time now) const;
  // What this rank does at the moment: "waits in ...".
  std::string occupation(Time now) const;
  // The oldest work that is not done, for other sessions: "waits in ..."; empty if there is none. Any thread.
  static std::string oldest_of(const Ledger& ledger, Time now);
  // All that this rank waits for, and its last operations: "waits for ...". Several lines. `failure`: why the session
  // has failed.
  std::string full(const Error& failure) const;
  // The same, behind the name and the host of this rank.
  std::string named(const Error& failure) const;

  // `error`, which names a rank that is gone, with the work that waits for that rank: `work`, ...
  Error still_waits(const Error& error, const Work& work) const;
  // ... or the oldest one that waits for it, or else the oldest of all.
  Error still_waits(const Error& error) const;

 private:
  struct Wait {
    std::string operation, time, sources;
  };
  Wait wait(const Execution& execution, Time now) const;
  Wait wait(const Receives::Receive& receive, Time now) const;
  static std::string text_of(const Wait& wait) { return wait.operation + " has waited " + wait.time + wait.sources; }
  std::string our_text_of(const Wait& wait) const {
    return name_ + " has waited " + wait.time + " in " + wait.operation + wait.sources;
  }

  int rank_;
  const std::string name_;
  const Fabric& fabric_;
  const Executions& executions_;
  const Receives& receives_;
  const Ledger& ledger_;
  const std::function<std::string(Time now)> elsewhere_;
};

}  // namespace slipstream
