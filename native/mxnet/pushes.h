// Collectives as operations of MXNet's engine: a call returns at once, and MXNet orders them with what it computes.
//
// A call takes its place in a line, and gives the engine a function for its arrays. When the arrays are ready, the
// engine calls the function, in whatever order; the line starts the operations in the order of their places. When
// the operation is done, a thread of completions tells the engine, which goes on with what waits for the arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "capi/handle.h"
#include "lines/planned.h"
#include "mxnet/line.h"

namespace slipstream::mxnet {

// Once in a process: looks MXNet up in the library of this file. Returns what is wrong, or "": until then nothing can
// be pushed.
std::string prepare(const char* library);

// A line of a job. It takes the reference to the group.
class JobLine {
 public:
  explicit JobLine(slipstream_group* group);
  ~JobLine() { leave(); }
  JobLine(const JobLine&) = delete;

  // The process has left the job: what is not started yet fails.
  void leave();
  // Throws Failure if the job has failed.
  void check() const;
  const std::shared_ptr<PushLine>& line() const { return line_; }

 private:
  struct Source;
  const std::shared_ptr<Source> source_;
  const std::shared_ptr<PushLine> line_;
};

struct Pushed {
  lines::Asked asked;
  std::string what;  // what errors call it; may be empty
  bool asks = true;  // whether the ranks compare it before it begins
  // Addresses of NDArrays; results: the same ones, if the operation works in place.
  std::vector<uintptr_t> inputs, results;
};

// False, and nothing is done, if an array is of a kind that cannot be pushed: sparse, not in the CPU's memory, of a
// dtype that the engine or the operation has not. Throws Failure if the job has failed.
bool push(JobLine& line, const Pushed& pushed);

// Waits until no operation that this process has pushed is under way, or for so long. True: there is none.
bool drained(double seconds);
// How many operations that this process has pushed have failed, and the error of the latest one.
struct Failures {
  size_t count = 0;
  std::string latest;
};
Failures failures();

// Of an operation, for drained(): it is there, or is gone.
void count_flight(int more);
// For failures(): one has failed, with this error.
void count_failure(const std::string& text);

}  // namespace slipstream::mxnet
