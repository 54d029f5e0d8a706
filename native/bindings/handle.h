// What Python holds of a running work, and how its threads wait.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bindings/gil.h"
#include "bindings/orphans.h"
#include "session/session.h"

namespace slipstream {

inline constexpr double kSignalSeconds = 0.2;  // how often a waiting thread lets Python handle signals (Ctrl-C)

inline Time deadline_of(std::optional<double> timeout) { return timeout ? now() + seconds(*timeout) : Time::max(); }

// Waits in slices; raises what Python's signal handlers raise. `step(deadline)` returns true when done.
template <class Step>
bool wait_in_slices(Time deadline, Step step) {
  for (;;) {
    bool done = false;
    const Time slice = std::min(deadline, now() + seconds(kSignalSeconds));
    {
      WithoutGil release;
      done = step(slice);
    }
    if (done) return true;
    if (now() >= deadline) return false;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

// A work, the session that runs it, and what must live until it is done. Whichever way a handle goes (an exception
// of a signal handler, say), what it keeps outlives the work. Made and destroyed with the interpreter's lock.
class Handle {
 public:
  Handle(std::shared_ptr<Session> session, WorkPtr work, nanobind::object keep)
      : session_(std::move(session)), work_(std::move(work)), keep_(std::move(keep)) {}
  Handle(Handle&&) = default;
  Handle& operator=(Handle&&) = delete;
  ~Handle() { let_go(); }

  Work& work() const { return *work_; }
  const WorkPtr& shared_work() const { return work_; }
  std::optional<double> finished() const {
    if (!work_->done() || work_->error()) return std::nullopt;
    return Seconds(work_->finished.time_since_epoch()).count();
  }
  int source() const { return work_->done() && !work_->error() ? work_->peer() : -1; }

  bool wait(std::optional<double> timeout) {
    if (!work_->done()) {
      const Waiting waiting(*this);
      if (!wait_in_slices(deadline_of(timeout), [this](Time until) { return session_->wait(*work_, until); }))
        return false;
    }
    end();
    return true;
  }
  void entitle(std::string title) { work_->entitle(std::move(title)); }
  // For what the work waits; empty if it is done.
  std::string waits() {
    const WithoutGil release;
    return work_->done() ? std::string() : session_->report(work_.get());
  }
  // Submits the work, and drives it to its end.
  void run() {
    bool begun = false;
    const Waiting waiting(*this);
    wait_in_slices(Time::max(), [&](Time until) {
      return std::exchange(begun, true) ? session_->wait(*work_, until) : session_->run(work_, until);
    });
    end();
  }

  // For Python's search for cycles: nothing that a running work needs is ever garbage.
  nanobind::handle collectable() const { return work_ && work_->done() ? nanobind::handle(keep_) : nanobind::handle(); }
  void let_go() {
    nanobind::object keep = std::move(keep_);
    if (work_ && keep.is_valid() && !keep.is_none() && !work_->done()) keep_until_done(work_, std::move(keep));
  }

 private:
  // Counts for how long the caller waits, whichever way that ends.
  struct Waiting {
    explicit Waiting(const Handle& of) : handle(of) {}
    Waiting(const Waiting&) = delete;
    ~Waiting() { handle.session_->options().counters->add_wait(now() - begun); }
    const Handle& handle;
    const Time begun = now();
  };

  void end() {
    nanobind::object dropped = std::move(keep_);
    if (work_->error()) throw Failure(work_->error());
  }

  std::shared_ptr<Session> session_;
  WorkPtr work_;
  nanobind::object keep_;
};

}  // namespace slipstream
