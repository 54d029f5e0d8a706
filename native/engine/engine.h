// The single-threaded core: takes works, runs their executions over the fabric's links, and fails as a whole.
// Every method but submit() belongs to the driver (engine/runner.h decides who that is).
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "base/trace.h"
#include "engine/board_handler.h"
#include "engine/channels.h"
#include "engine/early_frames.h"
#include "engine/executions.h"
#include "engine/fabric.h"
#include "engine/failure_state.h"
#include "engine/frame_dispatch.h"
#include "engine/intake.h"
#include "engine/ledger.h"
#include "engine/pump.h"
#include "engine/receives.h"
#include "engine/send_table.h"
#include "engine/short_messages.h"
#include "engine/stall_questions.h"
#include "engine/stall_watch.h"
#include "engine/submit_queue.h"
#include "engine/unfinished_works.h"
#include "engine/wait_report.h"
#include "engine/work.h"
#include "transport/bell.h"
#include "transport/poller.h"
#include "transport/region.h"

namespace slipstream {

struct EngineOptions {
  double heartbeat_seconds = 10;
  std::string heartbeat_setting = "SLIPSTREAM_HEARTBEAT";  // what sets it
  double recovery_seconds = 0;                             // that a peer may be silent beyond the heartbeat
  double suspicion_seconds = 0.1;  // after a closed connection: wait this long for the root cause from others
  StallOptions stalls;
  double intake = 0;              // bytes a second that works take in; 0: no bound
  size_t early_bytes = SIZE_MAX;  // of one peer, that are kept for works that have not begun
  bool spreads_failure = true;    // a failed session tells ranks that have no link to it, too
  // What this rank waits for that is not in this session ("waits in ..."); empty: nothing.
  std::function<std::string(Time now)> elsewhere = [](Time) { return std::string(); };
  BoardHandler* boards = nullptr;  // null: no group has a board
  OfferHandler* offers = nullptr;  // a reducer's
  Trace* trace = nullptr;          // where works with a time in `traced` are put when they are done
  // Told why the session fails, before its works and the other ranks are: the program may end at that.
  std::function<void(const Error&)> failing = nullptr;
};

class Engine final : public Events {
 public:
  Engine(int rank, int size, Poller& poller, Bell& bell, Regions& regions, Dialer& dialer, EngineOptions options);
  ~Engine() override = default;
  void set_pump(Pump* pump) { pump_ = pump; }
  // Called once by fail(), after all works have been told.
  void set_failed(std::function<void(const Error&)> f) { told_failure_ = std::move(f); }

  // Any thread. What comes before submit().
  Ledger& ledger() { return ledger_; }
  // Any thread. The work fails at once if the session has failed.
  void submit(WorkPtr work);
  // Any thread. True if no work uses memory, of those that this thread knows of.
  bool quiet() const { return unfinished_.none(); }
  // Works that were submitted and are not done.
  size_t works() const { return submitted_.size() + executions_.size() + channels_.waiting(); }
  // Any thread. The session's sticky error, Code::ok while it is well.
  Error failure() const { return submitted_.closed(); }

  ShortMessages& short_messages() { return messages_; }

  // One turn without blocking. True if anything moved. Without `works` it takes in what has come, rarely by sockets.
  bool turn(bool works = true);
  // Sleeps until something happens, or a timer is due. Returns at once if there is work.
  void sleep(Time until);
  // True while there are works that must be driven.
  bool busy() const {
    return executions_.need_driver() || !receives_.empty() || submitted_.size() > 0 || failure_state_.suspects();
  }
  // True if a turn would move something now. To be asked after Bell::arm.
  bool must_turn() const { return pump_->pending() || submitted_.size(std::memory_order_seq_cst) > 0; }
  bool congested() const { return pump_->congested(); }
  // Runs what is due; returns when to call again.
  Time tick(Time now);
  // Fails for a work that has waited for too long before it came here, as `wait` says.
  void expire(const Work& work, const std::string& wait) { fail(watch_.expired(work, wait)); }
  // Fails every unfinished and later work with `error`, tells all linked ranks, and closes the links. Those that are
  // still being set up are told when they come up.
  void fail(Error error);
  // To be called before leave(): tells the linked ranks what the latest works were.
  void tell_latest();
  // Good order: says goodbye and closes the links. Works that are not done fail with Code::aborted. `reason`: why, for
  // ranks that wait for this one, such as "raised an exception and left the job"; empty: it has finished.
  void leave(const std::string& reason = {});
  // True while a failed session still has to tell ranks that run, or will run, one of the failed works: they may come
  // only after our process would have gone, and would take that for the reason.
  bool must_tell() const { return failure_state_.must_tell(); }

  // What this rank waits for, as text.
  const WaitReport& reports() const { return report_; }

  void knocked(int rank, bool alive, const Error& why);
  // The peer asked us to dial.
  void dial_back(int rank);
  Fabric& fabric() { return fabric_; }

  // Events.
  Landing land(Link& link, const Frame& frame) override;
  void arrived(Link& link, const Frame& frame, const Payload& payload) override;
  void sent(Link& link, uint64_t cookie) override;
  void up(Link& link) override;
  void down(Link& link, const Error& error) override;

 private:
  void take_submitted();
  void enqueue(WorkPtr work);
  void start_waiting(Channels::Channel& channel);
  void try_begin(Channels::Channel& channel, WorkPtr work);
  void begin(Channels::Channel& channel, const WorkPtr& work);
  Error missed(const Execution& execution) const;
  void retire_finished(bool starts_next = true);
  void await_source(WorkPtr work);
  void settle(std::deque<uint64_t> channels);
  bool needs(int global_rank) const;
  void suspect(const Error& error);
  Error with_host(int peer, Error error) const;
  std::set<int> concerned() const;
  void fail_works(const Error& error, const Error& refusal);

  int rank_;
  Poller& poller_;
  Bell& bell_;
  EngineOptions options_;
  Pump* pump_ = nullptr;
  std::function<void(const Error&)> told_failure_;

  SubmitQueue submitted_;
  UnfinishedWorks unfinished_;
  Ledger ledger_;
  Arena arena_;
  Fabric fabric_;
  SendTable sends_;
  Intake intake_;
  Receiving receiving_;
  ExecutionContext context_;
  Executions executions_;
  Receives receives_;
  Channels channels_;
  EarlyFrames early_;
  ShortMessages messages_;
  FailureState failure_state_;
  WaitReport report_;
  StallQuestions questions_;
  StallWatch watch_;
  FrameDispatch dispatch_;
  Time next_tick_{};
  uint32_t turns_ = 0;
};

}  // namespace slipstream
