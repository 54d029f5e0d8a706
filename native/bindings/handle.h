// What Python holds of a running work, and how its threads wait.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <memory>
#include <optional>

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
      nanobind::gil_scoped_release release;
      done = step(slice);
    }
    if (done) return true;
    if (now() >= deadline) return false;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
  }
}

// A work and the session that runs it.
struct Handle {
  std::shared_ptr<Session> session;
  WorkPtr work;

  void raise_error() const {
    if (work->error()) throw Failure(work->error());
  }
  int source() const { return work->done() && !work->error() ? work->peer() : -1; }
  bool wait(std::optional<double> timeout) const {
    if (!work->done() &&
        !wait_in_slices(deadline_of(timeout), [this](Time until) { return session->wait(*work, until); }))
      return false;
    raise_error();
    return true;
  }
};

}  // namespace slipstream
