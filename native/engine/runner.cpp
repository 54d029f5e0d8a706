#include "engine/runner.h"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>

#include "base/float_state.h"
#include "base/relax.h"
#include "base/thread.h"
#include "engine/private_sends.h"

namespace slipstream {

namespace {

constexpr auto kParkStep = std::chrono::milliseconds(2);
constexpr uint32_t kTurnsPerTick = 64;
constexpr auto kMessageLooks = std::chrono::microseconds(20);

}  // namespace

Runner::Runner(Engine& engine, Poller& poller, Bell& bell, Patience patience, std::vector<int> cpus)
    : engine_(engine), poller_(poller), bell_(bell), bell_handler_(bell), patience_(patience), cpus_(std::move(cpus)) {
  poller_.add(bell_.event_fd(), EPOLLIN, &bell_handler_);
}

Runner::~Runner() {
  stop();
  poller_.remove(bell_.event_fd(), &bell_handler_);
}

void Runner::start() {
  thread_ = start_thread("the engine's thread", [this] { loop(); });
  present(thread_, "slipstream", cpus_);
}

void Runner::stop() {
  stop_.store(true);
  unpark();
  bell_.ring_always();
  if (thread_.joinable()) thread_.join();
}

// ---- guards

void Runner::broke(const std::exception& e) {
  engine_.fail(Error{Code::internal, -1, {}, std::string("the engine failed: ") + e.what()});
}

bool Runner::turn() {
  try {
    return engine_.turn();
  } catch (const std::exception& e) {
    broke(e);
    return true;
  }
}

Time Runner::tick(Time now) {
  try {
    return engine_.tick(now);
  } catch (const std::exception& e) {
    broke(e);
    return now;
  }
}

void Runner::sleep(Time until) {
  try {
    engine_.sleep(until);
  } catch (const std::exception& e) {
    broke(e);
  }
}

// ---- the engine thread

void Runner::loop() {
  const DefaultFloatState state;  // the thread has inherited its maker's
  while (!stop_.load()) {
    let_guests_in();
    Time until = Time::max();
    {
      std::lock_guard lock(drive_);
      drive_until_idle();
      if (guests_.load() > 0) continue;
      until = tick(now());
      bell_.arm();
      if (engine_.must_turn()) {
        bell_.disarm();
        continue;
      }
      if (engine_.congested()) until = std::min(until, now() + std::chrono::milliseconds(1));
      asleep_until_.store(until.time_since_epoch().count());
    }
    idle_watch(until);
    asleep_until_.store(0);
    park();
  }
}

void Runner::drive_until_idle() {
  bell_.disarm();
  turn();
  while (!stop_.load() && engine_.busy() && guests_.load() == 0) {
    const bool moved = turn();
    const Time next = tick(now());
    if (!moved && engine_.busy()) sleep(next);
  }
}

void Runner::idle_watch(Time until) {
  if (stop_.load()) return;
  pollfd event{poller_.fd(), POLLIN, 0};
  int timeout = -1;
  if (until != Time::max()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now()).count() + 1;
    timeout = static_cast<int>(std::clamp<long long>(left, 0, 60'000));
  }
  ::poll(&event, 1, timeout);
}

void Runner::park() {
  std::unique_lock lock(park_mutex_);
  parked_.store(true);
  while (!stop_.load() && !unparked_) {
    if (!caller_drives_.load() && now() - Time(Clock::duration(caller_left_.load())) > kParkStep) break;
    park_bell_.wait_for(lock, kParkStep);
  }
  unparked_ = false;
  parked_.store(false);
}

void Runner::unpark() {
  std::lock_guard lock(park_mutex_);
  unparked_ = true;
  park_bell_.notify_one();
}

// ---- callers

void Runner::submit(WorkPtr work) {
  const Request& request = work->request;
  if (guests_.load() == 0 && request.signature.side != Side::none) {
    const std::unique_lock lock(drive_, std::try_to_lock);
    if (lock.owns_lock() && (is_short_message(request) || is_lent_message(request, engine_.fabric())))
      return begin(std::move(work));
  }
  engine_.submit(std::move(work));
  unpark();
}

void Runner::begin(WorkPtr work) {
  const DefaultFloatState state;
  const bool alone = !engine_.busy();
  bell_.disarm();
  const HandOver after{*this, alone};
  engine_.submit(std::move(work));
  if (alone) turn();
}

void Runner::submit_deferred(WorkPtr work) {
  work->deferred = true;
  engine_.submit(std::move(work));  // perhaps by who drives: it must not begin here
  unpark();
}

bool Runner::run(WorkPtr work, Time deadline, std::unique_lock<std::mutex> order) {
  {
    const std::unique_lock lock(drive_, std::try_to_lock);
    if (lock.owns_lock()) {
      bell_.disarm();
      engine_.submit(work);
      order = {};
      if (drive_for(*work, deadline)) return true;
    } else {
      submit(work);
      order = {};
    }
  }
  return wait(*work, deadline);
}

bool Runner::send_at_once(const ShortMessage& message) {
  const std::unique_lock lock(drive_, std::try_to_lock);
  if (!lock.owns_lock() || guests_.load() != 0 || !engine_.short_messages().possible()) return false;
  bool sent = false;
  guarded([&] { sent = engine_.short_messages().send(message); });
  if (engine_.congested()) hand_over();
  return sent;
}

ShortMessages::State Runner::receive_at_once(ShortMessage& message, bool patient) {
  using State = ShortMessages::State;
  const std::unique_lock lock(drive_, std::try_to_lock);
  ShortMessages& messages = engine_.short_messages();
  if (!lock.owns_lock() || guests_.load() != 0 || !messages.possible()) return State::needs_work;
  const DefaultFloatState state;
  State found = State::needs_work;
  guarded([&] { found = messages.expect(message); });
  if (found != State::waits) {
    if (engine_.congested()) hand_over();
    return found;
  }
  look_for_messages(patient, [&] { return messages.state() == State::waits; });
  messages.forget();
  return messages.state();
}

ShortMessages::State Runner::relay_at_once(const Relay& relay, bool patient, std::vector<int>& missing) {
  using State = ShortMessages::State;
  const std::unique_lock lock(drive_, std::try_to_lock);
  ShortMessages& messages = engine_.short_messages();
  if (!lock.owns_lock() || guests_.load() != 0 || !messages.possible()) return State::needs_work;
  const DefaultFloatState state;
  bool begun = false;
  guarded([&] { begun = messages.begin(relay); });
  if (!begun) return State::needs_work;
  State found = messages.state_of(relay);
  if (found == State::waits) {
    missing = messages.missing(relay);
    look_for_messages(patient, [&] { return (found = messages.state_of(relay)) == State::waits; });
  }
  bool finished = false;
  guarded([&] {
    if (found == State::taken)
      messages.finish(relay);
    else
      messages.give_up(relay);
    finished = true;
  });
  if (engine_.congested()) hand_over();
  return finished ? found : State::needs_work;
}

template <class Waits>
void Runner::look_for_messages(bool patient, Waits waits) {
  bell_.disarm();
  caller_drives_.store(true);
  const Time begun = now();
  // What does not come in that time is a work, and then its caller looks as long as all do.
  const Clock::duration limit = patient ? std::min<Clock::duration>(kMessageLooks, patience_.looks) : patience_.held;
  const auto may_look = [this] {
    return engine_.short_messages().possible() && guests_.load(std::memory_order_relaxed) == 0;
  };
  for (int looks = 1; waits() && may_look(); ++looks) {
    bool moved = false;
    guarded([&] { moved = engine_.turn(false); });
    if (++caller_turns_ % kTurnsPerTick == 0) tick(now());
    if (moved) continue;
    if (patient)
      ::sched_yield();
    else
      relax();
    if ((patient || looks % 8 == 0) && now() - begun >= limit) break;
  }
  caller_left_.store(now().time_since_epoch().count());
  caller_drives_.store(false);
  hand_over(parked_.load());
}

bool Runner::wait(Work& work, Time deadline) {
  while (!work.done()) {
    let_guests_in();
    std::unique_lock lock(drive_, std::defer_lock);
    if (!take_over(lock)) return work.sleep_until_done(deadline);
    bell_.disarm();
    if (drive_for(work, deadline) || now() >= deadline) break;
  }
  return work.done();
}

bool Runner::take_over(std::unique_lock<std::mutex>& lock) {
  if (lock.try_lock()) return true;
  if (caller_drives_.load()) return false;
  enter(lock, [this] { caller_drives_.store(true); });
  return true;
}

void Runner::let_guests_in() {
  for (int guests = guests_.load(); guests > 0; guests = guests_.load()) guests_.wait(guests);
}

bool Runner::drive_for(Work& work, Time deadline) {
  const DefaultFloatState state;
  caller_drives_.store(true);
  Time idle_since{};
  while (!work.done() && guests_.load(std::memory_order_relaxed) == 0) {
    const bool moved = turn();
    if (work.done()) break;
    if (moved) {
      idle_since = {};
      if (++caller_turns_ % kTurnsPerTick == 0) tick(now());
      continue;
    }
    const Time t = now();
    if (t >= deadline) break;
    if (idle_since == Time{}) idle_since = t;
    if (t - idle_since < patience_.looks) {
      // The rank waited for may be queued behind us on this core: after a moment, let it run.
      if (t - idle_since < patience_.held)
        relax();
      else
        ::sched_yield();
      continue;
    }
    const Time next = tick(t);
    if (work.done()) break;  // it has timed out, say
    sleep(std::min(deadline, next));
    idle_since = {};
  }
  caller_left_.store(now().time_since_epoch().count());
  caller_drives_.store(false);
  hand_over();
  return work.done();
}

void Runner::hand_over(bool will_look) {
  if (stop_.load()) return;          // there is no thread: the bell would only end the driver's own next wait
  if (!parked_.load()) bell_.arm();  // a thread that is parked looks before it sleeps
  // Works that need no driver have limits of time all the same. Once woken, the thread looks every so often.
  const auto sleeps = [&] {
    const Time soon = now() + seconds(2 * StallWatch::kTickSeconds);
    return engine_.works() != 0 && asleep_until_.load() > soon.time_since_epoch().count();
  };
  if (!will_look && (engine_.must_turn() || engine_.busy() || engine_.congested() || sleeps())) {
    bell_.ring();
    unpark();
  }
}

}  // namespace slipstream
