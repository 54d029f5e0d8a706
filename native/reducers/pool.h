// A job's reducers, as one worker sees them: which take part, with which shares, and this worker's sessions with them.
//
// What the workers do (which reducers take part, with which shares) follows from verdicts alone, so no worker ever
// differs from another about it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "reducers/express.h"
#include "reducers/parts.h"
#include "reducers/session_keeper.h"
#include "reducers/verdict.h"

namespace slipstream {

struct ReducerPoolOptions {
  struct Reducer {
    std::string name;  // for people
    std::vector<std::string> addresses;
    uint64_t incarnation = 0;  // port << 48 | 48 random bits of its session with this job; 0: there is none
  };
  std::vector<Reducer> reducers;  // at most 32
  std::string job;
  std::string secret;  // what the reducers' sessions are derived from
  double heartbeat_seconds = 1;
  LinkOptions link{};
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

// The context's mutex is held by whoever calls, but for the constructor and close().
class ReducerPool {
 public:
  ReducerPool(const ReducerContext& context, ReducerPoolOptions options);
  ~ReducerPool() { close(); }

  size_t size() const { return reducers_.size(); }
  // "reducer a:29700"
  std::string name(size_t reducer) const { return "reducer " + reducers_[reducer].state.name; }
  bool any_used() const;
  // Of the reducers that take part, 0 for others.
  std::vector<uint64_t> incarnations() const;
  // Of the workers' own part, and of each reducer's, in 1/65536 of a work.
  std::vector<uint32_t> shares() const;
  // Bytes of a shard that this worker may have under way to a reducer at least. The same on all ranks.
  size_t window_least(size_t reducer) const;
  // Those that small works go through.
  std::vector<std::pair<size_t, Express*>> ways() const;

  // This rank's session with a reducer that takes part; null if it cannot be used.
  std::shared_ptr<Session> session(size_t reducer) const;
  // In that session: of the carriers of a shard that this rank carries, and the reducer.
  const std::shared_ptr<const Group>& group(size_t reducer, size_t shard) const {
    return reducers_[reducer].groups[shard];
  }
  void count_sent(size_t reducer, uint64_t bytes) { reducers_[reducer].state.sent += bytes; }
  void count_redone(size_t reducer, uint64_t chunks) { reducers_[reducer].state.redone += chunks; }
  // This rank cannot use its session with that incarnation of the reducer any more.
  void lose(size_t reducer, uint64_t incarnation, const std::string& why);
  // Rank 0 gives a reducer that stays behind the others less, and slowly more again when it does not. `seconds`: that
  // the reducers' parts of one work took; 0: there was none.
  void see_lags(const std::vector<double>& seconds);

  // What this rank has to say.
  void speak(Verdict& verdict) const;
  // Tells people, at once, and once for each session that is lost. `incarnations`: of the reducers that took part.
  void warn(const Verdict& verdict, const std::vector<uint64_t>& incarnations);
  // Does what all ranks do.
  void obey(const Verdict& verdict, const std::vector<uint64_t>& incarnations);

  std::vector<ReducerState> states() const;
  // Of each reducer; null where there is none.
  std::vector<std::shared_ptr<Session>> sessions() const;
  // ReducerClient::set_rates().
  void set_rates(const std::vector<double>& rates, double worker);
  // Has a verdict say the rates that there are now.
  void put_rates(Verdict& verdict) const;
  void registered(size_t reducer, uint64_t incarnation);

  // Leaves all sessions. The works in them end once nothing writes to their memory any more.
  void leave_all();
  // Ends all sessions, and waits for that. Idempotent.
  void close();

 private:
  struct Reducer {
    ReducerState state;
    std::shared_ptr<Session> session;
    std::vector<std::shared_ptr<const Group>> groups;  // by shard: null if another rank of the host carries it
    std::shared_ptr<Express> fresh;                    // of `session`
    std::shared_ptr<Express> express;  // the one that small works use, perhaps of a session that is over
    double lag = 1;                    // of its parts behind the others', as rank 0 sees it
    double most = 1;                   // the rate that was measured
    double agreed = 1;                 // what works are split by: what rank 0 said a while ago
    uint64_t wanted = 0;               // the incarnation that verdicts speak of
    uint64_t connected = 0;            // the one that `session` is up with
    bool failed = false;               // this rank could not use `session`
    bool refused = false;              // the handshake failed: people have been told
    std::string why;
    uint64_t warned = 0;  // the incarnation whose loss people have been told of

    bool up() const { return session && connected == wanted && !failed; }
  };

  int rank() const { return context_.group->rank; }
  int workers() const { return static_cast<int>(context_.group->ranks.size()); }
  int hosts() const { return context_.shards.hosts(); }
  std::shared_ptr<Session> open(size_t reducer, uint64_t incarnation);
  void warn_of_refusal(size_t reducer, std::string why);
  void open_all();
  bool take(size_t reducer, uint64_t incarnation, const std::shared_ptr<Session>& session);
  void leave(Reducer& reducer);
  void session_ended(size_t reducer, uint64_t incarnation, const std::string& why);

  const ReducerContext& context_;
  const ReducerPoolOptions options_;
  std::vector<Reducer> reducers_;
  double worker_rate_ = 60e6;  // bytes a second
  SessionKeeper keeper_;
};

}  // namespace slipstream
