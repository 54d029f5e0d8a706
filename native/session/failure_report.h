// Tells the launcher of this process why a session has failed, whether or not the program says so.
//
// A program may catch the error and end in its own way; the launcher would know nothing but an exit code. What is told
// is no judgement: the launcher counts it only if the process, or its job, ends badly.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace slipstream {

// The pipe to the launcher, which does not block. Nobody is told while the descriptor is another file than this.
struct ReportPipe {
  int fd = -1;
  uint64_t inode = 0;
};

// One line of JSON, of less than PIPE_BUF bytes, so that it is written as a whole or not at all.
std::string failure_record(const Error& error);

// A session of this process has failed. Never waits: the record is lost if the pipe is full.
void report_failure(const ReportPipe& pipe, const Error& error);
// A session starts. If one has failed before, the launcher learns that the program goes on.
void report_start(const ReportPipe& pipe);

}  // namespace slipstream
