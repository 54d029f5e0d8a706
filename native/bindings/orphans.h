// What Python holds for works that run on although no handle of them is left: the caller was interrupted by an
// exception of a signal handler, or dropped the handle. The engine still reads and writes their memory.
//
// All of it is called with the interpreter's lock. The engine's thread does no more than set a flag: it must destroy
// nothing of Python's (docs/architecture.md, Threads).
#pragma once

#include <nanobind/nanobind.h>

#include "engine/work.h"

namespace slipstream {

// Holds `keep` until `work` is done, and until drop_orphans() after that.
void keep_until_done(const WorkPtr& work, nanobind::object keep);
// Lets go of what is kept for works that are done. Quick where there is none.
void drop_orphans();
// For how many works something is kept.
size_t orphans();

}  // namespace slipstream
