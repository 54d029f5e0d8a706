// A worker's end of its job's reducers: has them take a part in the session's all-reduces.
//
//     ReducerClient   takes works from the session, and begins them one after another
//       WorkLine      which works wait for memory
//       SplitWork     a large all-reduce, or a stretch of one: its parts, its verdict, its repair
//       Express       small all-reduces
//       ReducerPool   which reducers take part, with which shares; the sessions with them
//
// What work s does follows from the verdicts up to that of s - kAhead, which all have been heard when s begins.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "reducers/parts.h"
#include "reducers/pool.h"
#include "reducers/split_work.h"
#include "reducers/work_line.h"
#include "session/splitter.h"

namespace slipstream {

struct ReducerClientOptions : ReducerPoolOptions {
  std::shared_ptr<const Plan> star;    // of this rank, with the reducer as the rank after the workers
  std::shared_ptr<const Plan> small;   // an all-reduce of few bytes among the workers
  std::shared_ptr<const Group> group;  // of all ranks of the session
  Shards shards;
};

class ReducerClient final : public Splitter {
 public:
  // `workers` must stay, and have this as its splitter.
  ReducerClient(Session& workers, ReducerClientOptions options);
  ~ReducerClient() override { close(); }

  void split(const WorkPtr& work) override;
  bool holds(const WorkPtr& work) override;
  // Fails the session if a work has waited in line for longer than it may.
  Time tick(Time now) override;
  // Of works that reducers take part in.
  std::string occupation(Time now) override;
  std::string wait_of(const Work& work, Time now) override;
  // No work waits for a reducer any more.
  void session_failed() override;
  // Ends the sessions with the reducers.
  void close() override;

  // Rank 0: the reducer has a new session for this job. The others learn it by a verdict.
  void registered(size_t reducer, uint64_t incarnation);
  std::vector<ReducerState> states();
  // This rank's link to each reducer that it has a session with, by the reducer's number.
  std::map<size_t, LinkStatistics> links();
  // The rate of each reducer's link, relative to a worker host's, from now on; negative: it is not used. The same on
  // all ranks, while none of them has works under way. `worker`: bytes a second of a worker host's link.
  void set_rates(const std::vector<double>& rates, double worker);
  // How long the parts of the last large work took: the workers' own, then each reducer's; 0: it had none. Of its last
  // stretch alone: that is the time of all of them where they are no more than kAhead, as those begin at once.
  std::vector<double> part_seconds();

 private:
  static constexpr uint64_t kAhead = 4;  // large works, or stretches of them, under way at once

  // A large work that has begun. If its workers share hosts it is cut into stretches, so that one travels between the
  // hosts while the next is summed within them.
  struct Large {
    WorkPtr work;
    uint64_t stretches;
    uint64_t begun = 0;
    uint64_t done = 0;
    Error error{};
  };

  void stand_in_line(const WorkPtr& work);
  std::string awaited_by_small(const Request& whole) const;
  void begin_ready();
  bool begin_small(const WorkPtr& parent);
  void begin_slices(const WorkPtr& parent, const std::vector<std::pair<size_t, Express*>>& ways, uint64_t slices);
  void go_on();
  void begin_first();
  uint64_t stretches_of(const Request& whole) const;
  bool begin_stretch();
  void judged(SplitWork& split);

  std::recursive_mutex mutex_;
  const ReducerContext context_;
  std::deque<WorkPtr> calls_;  // what the program has had split, in its order, without those that were done long ago
  WorkLine line_;
  std::shared_ptr<Large> large_;                      // whose stretches have not all begun; null: none
  std::deque<std::shared_ptr<SplitWork>> to_send_;    // that sum within the host, in their order
  std::deque<std::shared_ptr<SplitWork>> to_gather_;  // whose result is not distributed within the host, in their order
  std::deque<std::shared_ptr<SplitWork>> unjudged_;   // in their order
  std::deque<std::shared_ptr<SplitWork>> judged_;     // not obeyed yet, in their order
  uint64_t next_ = 0;
  uint64_t since_verdict_ = 0;  // small works
  bool beginning_ = false;
  bool moved_ = false;  // meanwhile
  std::vector<double> seconds_;
  ReducerPool pool_;
};

}  // namespace slipstream
