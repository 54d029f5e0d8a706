// All-reduces of which reducers take a part: how a worker splits one, and what becomes of it when a reducer is lost.
//
// A split all-reduce is a work of its own that no engine knows. Its bytes are cut into slices: one that the workers
// reduce among themselves, and one for each reducer, in a session with that reducer alone; so a reducer's failure ends
// that session and nothing else. When all slices are done or lost, the workers agree with a tiny all-reduce, the
// *verdict*, on what has been lost by anybody. If nothing was, the work is done. Else they agree on the chunks that
// nobody has the result of, and reduce those among themselves; of the others, those who have them give them to the
// rest. So every rank ends with the same bits, and no rank believes itself done while another one still needs its
// memory.
//
// Small ones have no verdict to wait for: see express.h.
//
// What the workers do next (which reducers take part, with which shares) follows from verdicts alone: that of work s
// from those up to s - kAhead, which all have been heard when s begins. So no rank ever differs from another about it.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/memory_in_use.h"
#include "engine/work.h"
#include "reducers/express.h"
#include "session/splitter.h"
#include "transport/tcp/options.h"

namespace slipstream {

class Session;

struct ReducerClientOptions {
  struct Reducer {
    std::string name;  // for people
    std::vector<std::string> addresses;
    uint64_t incarnation = 0;  // port << 48 | 48 random bits of its session with this job; 0: there is none
  };
  std::vector<Reducer> reducers;  // at most 32
  std::string job;
  std::string secret;  // what the reducers' sessions are derived from
  int rank = 0;
  int size = 1;
  double heartbeat_seconds = 1;
  LinkOptions link{};
  std::shared_ptr<const Plan> star;   // of this rank, with the reducer as rank `size`
  std::shared_ptr<const Plan> small;  // an all-reduce of few bytes among the workers
  std::shared_ptr<const Group> group;
};

// The name and the secret of the session that a job has with one reducer.
struct ReducerSession {
  std::string job;
  std::string secret;
};
ReducerSession reducer_session(const std::string& job, const std::string& secret, uint64_t incarnation);

// What people may know of a reducer.
struct ReducerState {
  std::string name;
  bool used = false;    // takes part in the works that begin now
  bool ready = false;   // this rank has a link to it
  uint64_t lost = 0;    // how often it was
  uint64_t redone = 0;  // chunks that were reduced again for it
  uint64_t sent = 0;    // bytes given to it
  double rate = 1;      // of its link, relative to a worker's, as far as known
  uint64_t incarnation = 0;
};

class ReducerClient final : public Splitter {
 public:
  ReducerClient(Session& session, ReducerClientOptions options);
  ~ReducerClient() override;

  void split(const WorkPtr& work) override;
  bool holds(const WorkPtr& work) override;
  // Fails the session if a work has waited in line for longer than it may.
  Time tick(Time now) override;
  // No work waits for a reducer any more.
  void session_failed() override;
  // Ends the sessions with the reducers.
  void close() override;

  // Rank 0: the reducer has a new session for this job. The others learn it by a verdict.
  void registered(size_t reducer, uint64_t incarnation);
  std::vector<ReducerState> states();
  // The rate of each reducer's link, relative to a worker's, from now on; negative: it is not used. The same on all
  // ranks, while none of them has works under way.
  // `worker`: bytes a second of a worker's link.
  void set_rates(const std::vector<double>& rates, double worker);
  // How long the parts of the last large work took: the workers' own, then each reducer's; 0: it had none.
  std::vector<double> part_seconds();

 private:
  static constexpr uint64_t kAhead = 4;                    // works under way at once
  static constexpr int kHeader = 2;                        // words of a verdict before those of the reducers
  static constexpr double kRateUnit = 65536;               // a rate of 1 in a verdict
  static constexpr uint64_t kSmall = Express::kMostBytes;  // of a work from which on it is a large one

  struct Part {
    int reducer = -1;  // -1: the workers' own
    uint64_t begin = 0;
    uint64_t count = 0;
    uint64_t chunk = 1;  // elements
    double seconds = 0;  // that it took
    WorkPtr work;
    std::shared_ptr<std::vector<uint8_t>> done;  // which chunks of the result are here
  };
  struct Split {
    uint64_t number = 0;
    WorkPtr parent;
    Time begun{};
    std::vector<Part> parts;
    size_t left = 0;  // parts, or repairs, that are not done
    WorkPtr verdict;
    std::vector<uint64_t> words;
    uint32_t lost = 0;  // by this rank
    bool judged = false;
    std::vector<uint8_t> chunks;  // of the lost parts, one after another: does anybody have the result
    std::vector<WorkPtr> repairs;
    std::vector<uint64_t> incarnations;  // of the reducers that took part, 0 for others
    Error error;
  };
  struct Reducer {
    ReducerState state;
    std::shared_ptr<Session> session;
    std::shared_ptr<const Group> group;
    std::shared_ptr<Express> fresh;    // of `session`
    std::shared_ptr<Express> express;  // the one that small works use, perhaps of a session that is over
    double lag = 1;                    // of its parts behind the others', as rank 0 sees it
    double most = 1;                   // the rate that was measured
    double agreed = 1;                 // what works are split by: what rank 0 said a while ago
    uint64_t wanted = 0;               // the incarnation that verdicts speak of
    uint64_t connected = 0;            // the one that `session` is up with
    bool failed = false;               // this rank could not use `session`
    std::string why;
    uint64_t warned = 0;  // the incarnation whose loss people have been told of
  };
  enum class Stage { part, verdict, chunks, repair };
  class Ear;
  class End;
  using SplitPtr = std::shared_ptr<Split>;

  void use(const WorkPtr& work, MemoryInUse& memory);
  void wait_in_line(const WorkPtr& work);
  static const Work* conflict(const Work& work, const MemoryInUse& others, bool elsewhere = false);  // null: none
  std::string objection(const Work& work) const;                                                     // empty: none
  void ended(const Work& work, MemoryInUse& memory);
  void begin_ready();
  void leave_line(const WorkPtr& work, MemoryInUse& memory);
  void begin(const WorkPtr& parent);
  bool begin_small(const WorkPtr& parent);
  bool is_small(const Request& request) const;
  size_t window_least(const Reducer& reducer) const;
  void add_part(Split& split, int reducer, uint64_t begin, uint64_t count);
  static Request slice(const Request& whole, uint64_t begin, uint64_t count);
  void listen(const SplitPtr& split, Stage stage, size_t index, const WorkPtr& work);
  void heard(const SplitPtr& split, Stage stage, size_t index, const WorkPtr& work);
  void part_done(const SplitPtr& split, Part& part);
  void see_lags(const Split& split);
  void give_verdict(const SplitPtr& split);
  void judged(const SplitPtr& split, const Error& error);
  void apply(const Split& split);
  void warn(const Split& split);
  void ask_chunks(const SplitPtr& split);
  void repair(const SplitPtr& split);
  void finish(const SplitPtr& split, const Error& error);
  Request status_request(const Split& split, std::byte* data, uint64_t bytes, DType dtype) const;

  static void close_all(const std::vector<std::shared_ptr<Session>>& sessions);
  void keep();  // the thread that opens and closes sessions
  std::shared_ptr<Session> open(size_t index, uint64_t incarnation);
  void open_all();
  void take(size_t index, uint64_t incarnation, std::shared_ptr<Session> session);
  void leave(Reducer& reducer);
  void lose(Reducer& reducer, const std::string& why);
  void session_ended(size_t index, uint64_t incarnation, const std::string& why);

  Session& session_;
  const ReducerClientOptions options_;
  std::recursive_mutex mutex_;
  std::vector<Reducer> reducers_;
  std::deque<WorkPtr> waiting_;
  Time waiting_due_ = Time::max();  // no work in line is late before
  // An engine knows the memory of its session's works alone, and a split work runs in several sessions. So a split work
  // and any other of its group on the same memory begin one after another here; those of other groups are refused.
  uint64_t channel_ = 0;           // of split works: they all have the same
  MemoryInUse in_line_;            // of works in `waiting_`
  MemoryInUse begun_;              // of split works
  MemoryInUse others_;             // of works that are not split
  uint64_t passing_ = 0;           // of these, in `waiting_`: later ones of the group have to wait behind them
  std::deque<SplitPtr> unjudged_;  // in their order
  std::deque<SplitPtr> judged_;    // not applied yet, in their order
  uint64_t next_ = 0;
  double worker_rate_ = 60e6;   // bytes a second
  uint64_t since_verdict_ = 0;  // small works
  bool beginning_ = false;
  std::vector<double> seconds_;

  std::mutex keeper_mutex_;
  std::condition_variable keeper_bell_;
  std::vector<std::pair<size_t, uint64_t>> to_open_;
  std::vector<std::shared_ptr<Session>> to_close_;
  bool stop_ = false;
  std::thread keeper_;
};

}  // namespace slipstream
