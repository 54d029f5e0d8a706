// Operations, as the table's functions ask for them. All throw Failure if nothing was begun.
#pragma once

#include <functional>
#include <string>

#include "capi/handle.h"
#include "capi/slipstream.h"

namespace slipstream::capi {

// What a wrong argument is: throws Failure(invalid). Returns what is read and written.
struct Memory {
  Range in, out;
  uint64_t count = 0;  // elements that the engine is told of
};
Memory checked(const slipstream_group& group, const slipstream_call& call);

// `title`: what reports of waits call it on this rank, in place of its name; "": that.
void submit(slipstream_group& group, const slipstream_call& call, slipstream_done done, void* user,
            const std::string& title = {});
// As submit(), but a call that may go over the group's board looks for the other ranks for a moment. True if it is
// done: then done() is not called.
bool submit_or_run(slipstream_group& group, const slipstream_call& call, slipstream_done done, void* user,
                   const std::string& title = {});
slipstream_work* begin(slipstream_group& group, const slipstream_call& call);
// Called now and then while an operation waits, in the thread that waits for it. It may end the job, and throws
// nothing.
using Pause = std::function<void()>;
// Throws the operation's error, too.
void run(slipstream_group& group, const slipstream_call& call, const Pause& pause = nullptr);

}  // namespace slipstream::capi
