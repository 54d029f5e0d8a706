// The single-threaded core: takes requests, runs their executions over the fabric's links, and fails as a whole.
// Every method but submit() belongs to the driver (engine/runner.h decides who that is).
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/trace.h"
#include "engine/bucket.h"
#include "engine/execution.h"
#include "engine/fabric.h"
#include "engine/ledger.h"
#include "engine/memory_in_use.h"
#include "engine/offer.h"
#include "engine/receives.h"
#include "engine/work.h"
#include "transport/bell.h"
#include "transport/poller.h"
#include "transport/region.h"

namespace slipstream {

struct EngineOptions {
  double heartbeat_seconds = 10;
  double stall_seconds = 2;        // without progress: compare notes with the ranks waited for
  double warn_seconds = 10;        // without progress: tell people who is waited for ...
  double warn_again_seconds = 60;  // ... and again each time
  double suspicion_seconds = 0.1;  // after a closed connection: wait this long for the root cause from others
  // Works that wait for a rank that left in good order fail the session only after this time. The others of its last
  // collective may still be in it, and what waits may be a daemon thread's work, which their own leaving will end.
  double farewell_seconds = 2;
  double intake = 0;              // bytes a second that works take in; 0: no bound
  size_t early_bytes = SIZE_MAX;  // of one peer, that are kept for works that have not begun
  bool spreads_failure = true;    // a failed session tells ranks that have no link to it, too
};

// What moves bytes, beside the poller: the session's transports.
class Pump {
 public:
  virtual ~Pump() = default;
  virtual bool poll() = 0;             // true if anything moved
  virtual bool pending() const = 0;    // true if poll() would move something
  virtual bool congested() const = 0;  // true if poll() must be tried again soon
  virtual Time tick(Time now) = 0;     // returns when to call again
};

class Engine final : public Events {
 public:
  Engine(int rank, int size, Poller& poller, Bell& bell, Regions& regions, Dialer& dialer, EngineOptions options);
  ~Engine() override;
  void set_pump(Pump* pump) { pump_ = pump; }
  // Where works with a time in `traced` are put when they are done.
  void set_trace(Trace* trace) { trace_ = trace; }
  void set_host(Host* host) { host_ = host; }
  // Called once by fail(), after all works have been told.
  void set_failed(std::function<void(const Error&)> f) { told_failure_ = std::move(f); }

  // Any thread. What comes before submit().
  Ledger& ledger() { return ledger_; }
  // Any thread. The work fails at once if the session has failed.
  void submit(WorkPtr work);
  // Works that were submitted and are not done.
  size_t works() const;
  // Any thread. The session's sticky error, Code::ok while it is well.
  Error failure() const;

  // One turn without blocking. True if anything moved.
  bool turn();
  // Sleeps until something happens, or a timer is due. Returns at once if there is work.
  void sleep(Time until);
  // True while there are works to drive.
  bool busy() const {
    return !executions_.empty() || !receives_.empty() || inbox_size_.load(std::memory_order_acquire) > 0 ||
           static_cast<bool>(suspicion_);
  }
  // True if a turn would move something now. To be asked after Bell::arm.
  bool must_turn() const { return pump_->pending() || inbox_size_.load(std::memory_order_seq_cst) > 0; }
  bool congested() const { return pump_->congested(); }
  // Runs what is due; returns when to call again.
  Time tick(Time now);
  // Fails for a work that has waited for too long before it came here, as `wait` says.
  void expire(const std::string& wait) { expire(Stall{}, {}, wait); }
  // Fails every pending and later work with `error`, tells all linked ranks, and closes the links. Those that are
  // still being set up are told when they come up.
  void fail(Error error);
  // Good order: says goodbye and closes the links. Works still pending fail with Code::aborted. `words`: why, for ranks
  // that wait for this one, such as "raised an exception and left the job"; empty: it has finished.
  void leave(const std::string& words = {});

  // True while a failed session still has to tell ranks that run, or will run, one of the failed works: they may come
  // only after our process would have gone, and would take that for the reason.
  bool must_tell() const { return !abort_.empty() && (fabric_.connecting() || !untold_.empty()); }

  // For people: what this rank waits for, from whom and since when, and its last operations. Several lines.
  std::string report();

  // Links.
  bool adopt(std::unique_ptr<Link> link);  // false: it was refused (Fabric::adopt)
  void knocked(int rank, bool alive, const Error& why);
  // The peer asked us to dial.
  void dial_back(int rank);
  Fabric& fabric() { return fabric_; }

  // For executions.
  // Why a peer's chunk of such a work is refused.
  std::string twice(int peer, const Signature& signature) const;
  bool intake_bounded() const { return intake_.bounded(); }
  // True if a work may take in `bytes` now. Else it is to ask again in the next turn, and the engine wakes in time.
  bool may_take_in(uint64_t bytes);
  Arena& arena() { return arena_; }
  const Regions& regions() const { return regions_; }
  uint64_t track_send(Execution& execution, uint32_t step, uint64_t chunk);
  void forget_send(uint64_t cookie) { free_sends_.push_back(cookie); }

  // Events.
  Landing land(Link& link, const Frame& frame) override;
  void arrived(Link& link, const Frame& frame, const Payload& payload) override;
  void sent(Link& link, uint64_t cookie) override;
  void up(Link& link) override;
  void down(Link& link, const Error& error) override;

 private:
  static constexpr size_t kMostEarlyWorks = 1 << 20;
  static constexpr int kWordsPerSecond = 1000;
  static constexpr double kTickSeconds = 0.1;

  struct Key {
    uint64_t channel;
    uint32_t seq;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& k) const { return (k.channel ^ k.seq) * 0x9e3779b97f4a7c15ULL >> 7; }
  };
  struct Early {  // came before its work was submitted
    int peer;
    uint64_t order;  // of arrival
    Frame frame;
    std::vector<std::byte> payload;
    size_t bytes() const { return sizeof(Early) + payload.size(); }
  };
  struct Past {  // a work that is done
    uint32_t seq;
    Signature signature;
    Time at;
  };
  struct Channel {  // works of one channel in submission order
    std::deque<WorkPtr> waiting;
    int running_bulk = 0;
    bool used = false;  // since forget_idle() saw it last
    std::deque<Past> history;
  };
  struct PendingSend {
    Execution* execution;
    uint32_t step;
    uint64_t chunk;
  };

  // All works end here.
  void complete(Work& work, const Error& error);
  void take_inbox();
  void enqueue(WorkPtr work);
  bool overlaps_earlier(const Work& work);
  bool must_wait(const Work& work) const;
  void watch_waiting(Time now);
  void expire_waiting(const Work& work, Time now);
  Channel& channel_of(uint64_t id);
  void forget_idle();
  void start_waiting(Channel& channel);
  void try_begin(Channel& channel, WorkPtr work);
  void begin(Channel& channel, WorkPtr work);
  void retire_finished();
  void deliver_early(Execution& execution);
  bool came_before(const Request& request, int global_rank) const;
  bool just_left(int global_rank, Time now) const;
  void await_source(WorkPtr work);
  void settle(std::deque<uint64_t> channels);
  bool needs(int global_rank) const;
  bool is_candidate(int global_rank) const;
  bool chatters(int peer, FrameType type);
  void keep_early(Link& link, const Frame& frame, const Payload& payload);
  void frame_for(Execution& execution, Link& link, const Frame& frame, const Payload& payload);
  int peer_index(const Execution& execution, int global_rank) const;
  void down_without_link(int rank, const Error& error);

  void send_description(uint64_t channel, uint32_t seq, const Signature& signature, int peer, bool compare = true);
  void described(int peer, const Frame& frame, const std::string& theirs);
  void mismatch(uint32_t seq, const Signature& ours, int peer, const std::string& theirs);
  std::vector<int> global_waiting_on(const Execution& execution) const;
  void watch(Execution& execution, Time now);
  void watch(Receives::Pending& pending, Time now);
  bool must_ask(const Stall& stall, Time now) const;
  void expire(const Stall& stall, const std::vector<int>& waiting_on, const std::string& wait);
  std::string describe_wait(const Execution& execution, Time now) const;
  std::string describe_wait(const Receives::Pending& pending, Time now) const;
  void warn(Stall& stall, Time now, const std::function<std::string()>& wait) const;
  std::string who(const std::vector<int>& ranks) const;
  std::string members(const Group& group) const;
  std::string dissent(const Stall& stall, Time now) const;
  void answer(int peer, const Frame& frame);
  void send_answer(int to, const Frame& asked, int subject, bool takes_part, const std::string& text);
  void answered(int peer, const Frame& frame, const std::string& text);
  Stall* stall_of(const Frame& frame, int subject);
  bool may_answer(int peer, Time now);
  std::string absence(const Frame& asked, Time now) const;
  std::string occupation(Time now) const;
  Frame abort_frame() const;
  void fail_works(const Error& error);
  std::vector<int> concerned(const Request& request) const;
  void remember_untold(const Error& error);
  void spread_failure(const Error& error);
  Error still_waits(const Error& error, const Request& request) const;
  Error still_waits(const Error& error) const;

  int rank_;
  Poller& poller_;
  Bell& bell_;
  Regions& regions_;
  Arena arena_;
  EngineOptions options_;
  Fabric fabric_;
  Pump* pump_ = nullptr;
  Trace* trace_ = nullptr;
  Host* host_ = nullptr;  // null: nobody may offer this rank anything

  mutable std::mutex inbox_mutex_;
  std::deque<WorkPtr> inbox_;  // guarded by inbox_mutex_, as is failure_
  std::atomic<size_t> inbox_size_{0};
  Error failure_;
  bool failed_ = false;
  std::function<void(const Error&)> told_failure_;
  std::vector<std::byte> abort_;  // for links that come up after the failure
  std::set<int> untold_;          // ranks of failed works that had no link to us at the failure and came not yet

  std::unordered_map<Key, std::unique_ptr<Execution>, KeyHash> executions_;
  std::vector<Execution*> running_;                 // the same, in order of submission
  std::unordered_map<uint64_t, Channel> channels_;  // with works, and some that have none at the moment
  std::deque<uint64_t> channels_in_turn_;           // the same: whom forget_idle() looks at next
  std::unordered_map<Key, std::vector<Early>, KeyHash> early_;
  uint64_t early_count_ = 0;
  std::unordered_map<int, size_t> early_bytes_;  // by peer
  Bucket intake_;
  bool intake_asked_ = false;  // in vain, since the last sleep
  Ledger ledger_;
  Receives receives_;
  MemoryInUse memory_;                                     // of the works that are enqueued and not done
  std::unordered_map<int, std::pair<Time, int>> answers_;  // by rank asked for: in the second since then, how many
  std::unordered_map<int, std::pair<Time, int>> words_;    // by peer, alike: that no work needs
  std::vector<PendingSend> sends_;
  std::vector<uint64_t> free_sends_;
  Time next_tick_{};
  Time waiting_due_ = Time::max();  // when the first work that waits for its turn may be out of time
  uint32_t turns_ = 0;
  Error suspicion_;
  Time suspicion_until_{};
};

}  // namespace slipstream
