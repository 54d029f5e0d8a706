// How somebody who is no rank, a reducer say, takes part in the works of a session's ranks.
#pragma once

#include <string>

#include "base/clock.h"
#include "engine/work.h"

namespace slipstream {

// Takes works before the session's engine does. It splits those whose plan is split() into parts, each a work of its
// own in this session or in another one.
class Splitter {
 public:
  virtual ~Splitter() = default;
  // Any thread. `work` has a plan that is split(), and no number.
  virtual void split(const WorkPtr& work) = 0;
  // Any thread. Any other work, before it is submitted. True: the splitter submits it (Session::submit_unsplit) when no
  // split work that was called before it needs its memory any more.
  virtual bool holds(const WorkPtr& work) = 0;
  // The driver: runs what is due; returns when to call again.
  virtual Time tick(Time now) = 0;
  // The driver of any session: what this rank waits for that its engine does not know of ("waits in ..."); empty:
  // nothing.
  virtual std::string occupation(Time now) = 0;
  // The driver of this session: for what a work that was split waits; empty if it is done.
  virtual std::string wait_of(const Work& work, Time now) = 0;
  // The driver: the session has failed.
  virtual void session_failed() = 0;
  // The session has left: works still pending fail. Waits for that. Idempotent.
  virtual void close() = 0;
};

}  // namespace slipstream
