// Decides which thread drives the engine. The engine thread drives asynchronous works and watches while idle. A caller
// that waits drives by itself if no other thread does, which saves two thread switches.
//
//   idle      the engine thread sleeps in poll() on the poller, without the lock; the bell is armed
//   driving   one thread holds the lock: the engine thread while there is work, or a waiting caller
//   parked    callers have driven within the last milliseconds: the engine thread does not even look at events,
//             so that a loop of small synchronous operations runs undisturbed
//
// Whoever drives computes in the default floating-point state (base/float_state.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "base/float_state.h"
#include "engine/engine.h"

namespace slipstream {

class Runner {
 public:
  // Of callers that wait.
  struct Patience {
    Clock::duration looks{};                             // again and again before it sleeps
    Clock::duration held{std::chrono::microseconds(1)};  // its core, before it yields
  };
  // `cpus`: those that the engine thread is confined to; none: all.
  Runner(Engine& engine, Poller& poller, Bell& bell, Patience patience, std::vector<int> cpus = {});
  ~Runner();
  void start();
  // Ends the engine thread; pending works stay as they are.
  void stop();

  // Any thread: hands the work to the engine thread. A short message begins here and now, if nobody drives.
  void submit(WorkPtr work);
  // For a call that was made before (Work::deferred).
  void submit_deferred(WorkPtr work);
  // Any thread: submits, and drives until the work is done or `deadline` passes. True if done. Gives `order` back once
  // the engine has the work.
  bool run(WorkPtr work, Time deadline, std::unique_lock<std::mutex> order = {});
  // Any thread: waits for a work submitted before. True if done.
  bool wait(Work& work, Time deadline);

  // Any thread: sends a short message here and now, without a work. False, and nothing has happened, if that cannot be.
  bool send_at_once(const ShortMessage& message);
  // Any thread: looks for it, for a moment or, if `patient`, for some, and receives it without a work. Unless it is
  // taken then, nothing has happened.
  ShortMessages::State receive_at_once(ShortMessage& message, bool patient);

  // Any thread: the same for this rank's part in a collective. Unless it is taken then, nothing has happened.
  // `missing`: the ranks that it waits for, if it has to.
  ShortMessages::State relay_at_once(const Relay& relay, bool patient, std::vector<int>& missing);

  // Any thread but one that drives: runs `f` as the driver, then hands over. Whoever drives now makes room at once.
  template <class F>
  void as_driver(F f) {
    std::unique_lock lock(drive_, std::try_to_lock);
    if (!lock.owns_lock()) enter(lock, [] {});
    const DefaultFloatState state;
    const HandOver after{*this};
    f();
  }
  // As the driver: what `f` throws fails the session.
  template <class F>
  void guarded(F f) {
    try {
      f();
    } catch (const std::exception& e) {
      broke(e);
    }
  }

 private:
  // Hands over when it goes, whether the guest has thrown or not.
  struct HandOver {
    Runner& runner;
    bool parked_will_do = false;  // the engine thread looks soon
    ~HandOver() { runner.hand_over(parked_will_do && runner.parked_.load()); }
  };
  class BellHandler : public Handler {
   public:
    explicit BellHandler(Bell& bell) : bell_(bell) {}
    void ready(uint32_t) override { bell_.clear(); }

   private:
    Bell& bell_;
  };

  // The engine's, but what they throw fails the session: no thread may end, and no lock stay held, because of it.
  bool turn();
  Time tick(Time now);
  void sleep(Time until);
  void broke(const std::exception& e);

  void loop();
  void drive_until_idle();
  void idle_watch(Time until);
  void park();
  void unpark();
  // Without the lock: lets those in who want to be the driver.
  void let_guests_in();
  // Gets the lock from whoever drives, and then calls `first` before others can want it.
  template <class F>
  void enter(std::unique_lock<std::mutex>& lock, F first) {
    guests_.fetch_add(1);
    bell_.ring_always();
    lock.lock();
    first();
    guests_.fetch_sub(1);
    guests_.notify_all();
  }
  // A caller that waits gets the lock from the engine thread: that one sleeps whenever nothing has arrived, and a peer
  // that it waits for would have to wake it for each chunk. False if another caller drives, who looks again and again
  // as well.
  bool take_over(std::unique_lock<std::mutex>& lock);
  // With the lock held: drives until `work` is done, the deadline passes or a guest comes, then hands over.
  bool drive_for(Work& work, Time deadline);
  // With the lock held: turns while `waits()`, until a work has to be made, or a guest comes.
  template <class Waits>
  void look_for_messages(bool patient, Waits waits);
  // With the lock held: what is left to do wakes the engine thread, unless that `will_look` soon, and so does what
  // comes later. The driver may have read the event of a bell that had been rung for that thread.
  void hand_over(bool will_look = false);
  // With the lock held: a short message, and a turn if it is the only work. If callers have driven lately, what is left
  // to do does not wake the engine thread: the caller is likely to drive next. If it does not, that thread looks after
  // kParkStep.
  void begin(WorkPtr work);

  Engine& engine_;
  Poller& poller_;
  Bell& bell_;
  BellHandler bell_handler_;
  const Patience patience_;
  std::vector<int> cpus_;
  std::mutex drive_;
  std::atomic<int> guests_{0};  // threads in enter() that have not got the lock yet
  std::thread thread_;
  std::atomic<bool> stop_{false};

  std::atomic<bool> caller_drives_{false};
  uint32_t caller_turns_ = 0;               // of all callers, so that timers run also in a loop of short operations
  std::atomic<Clock::rep> caller_left_{0};  // when a caller last stopped driving
  std::mutex park_mutex_;
  std::condition_variable park_bell_;
  bool unparked_ = false;            // guarded by park_mutex_
  std::atomic<bool> parked_{false};  // the engine thread is, and looks again after kParkStep
  // When the engine thread, asleep, looks by itself; 0: it is awake, or parked.
  std::atomic<Clock::rep> asleep_until_{0};
};

}  // namespace slipstream
