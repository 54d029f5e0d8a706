// Watches the works that do not move: asks the ranks for which they wait, logs warnings, and finds those that have to
// fail. Driver's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/channels.h"
#include "engine/executions.h"
#include "engine/fabric.h"
#include "engine/ledger.h"
#include "engine/quota.h"
#include "engine/receives.h"
#include "engine/stall_questions.h"
#include "engine/wait_report.h"

namespace slipstream {

struct StallOptions {
  double ask_seconds = 2;          // without progress: ask the ranks that are waited for
  double warn_seconds = 10;        // without progress: log for whom the work waits ...
  double warn_again_seconds = 60;  // ... and again each time
  // Works that wait for a rank that left in good order fail the session only after this time. The others of its last
  // collective may still be in it, and what waits may be a daemon thread's work, which their own leaving will end.
  double farewell_seconds = 2;
};

class StallWatch {
 public:
  static constexpr double kTickSeconds = 0.1;  // how often tick() is to be called while works wait

  StallWatch(int rank, Fabric& fabric, const Executions& executions, Receives& receives, Channels& channels,
             const Ledger& ledger, StallQuestions& questions, const WaitReport& report, StallOptions options)
      : rank_(rank),
        fabric_(fabric),
        executions_(executions),
        receives_(receives),
        channels_(channels),
        ledger_(ledger),
        questions_(questions),
        report_(report),
        options_(options) {}

  // Looks at the works that wait, and at what nobody has explained. An error if the session has to fail. `next`: made
  // earlier, if it is to be called before then.
  [[nodiscard]] Error tick(Time now, Time& next);
  // The error of a work that has waited for too long, as `wait` says: "rank 0 has waited ...".
  Error expired(const Work& work, const std::string& wait) const { return expired(work, Stall{}, {}, wait); }
  // True if a rank left in good order so short a time ago that works that wait for it do not fail yet.
  bool just_left(int rank, Time now) const;

 private:
  Error watch_executions(Time now);
  Error watch(Execution& execution, Time now);
  Error watch(Receives::Receive& receive, Time now);
  Error watch_line(Time now);
  Error expired(const Work& work, const Stall& stall, const std::vector<int>& waiting_on,
                const std::string& wait) const;
  bool must_ask(const Stall& stall, Time now);
  void warn(Stall& stall, const Work& work, const std::vector<int>& ranks, Time now,
            const std::function<std::string()>& wait);
  bool worth_a_line(const std::vector<int>& causes, Time now);
  void warn_of_the_rest(Time now);

  int rank_;
  Fabric& fabric_;
  const Executions& executions_;
  Receives& receives_;
  Channels& channels_;
  const Ledger& ledger_;
  StallQuestions& questions_;
  const WaitReport& report_;
  StallOptions options_;
  size_t next_ = 0;                   // of executions_: who is looked at next
  Quota asked_, warned_;              // for all works that wait
  std::set<std::vector<int>> named_;  // the ranks that warnings have named as the cause since warned_ began
  bool others_wait_ = false;          // works wait too long and were not named
};

}  // namespace slipstream
