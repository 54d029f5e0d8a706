// Whether the step of a kernel was cancelled. TensorFlow's C interface has the object that tells, but no function that
// gives a kernel that of its step. So its place is found once: an operation is run with an object that is known, and
// looks where it has it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "tensorflow/abi.h"

namespace slipstream::tensorflow {

// Once in a process, after the operations were added. `library`: that of TensorFlow's eager C interface, which the
// process has loaded; `config`: a ConfigProto for a moment's context of its own. Returns what is wrong, or "": until
// then steps are taken for ones that nobody cancels. The first watch looks for the place: a context has threads, and
// those of the first one in a process are all that it gets, so a program's own has to come before. If the watch does
// not find it, a message by `rank` says so.
std::string prepare_cancellation(const Api& tf, const char* library, std::string config, int rank);

// One kernel's look at its step.
class StepWatch {
 public:
  StepWatch() = default;
  StepWatch(const StepWatch&) = delete;

  // Has `cancelled` called when the step is cancelled, unless end() comes before; it must not call end(). False, if the
  // step is cancelled already: then it is not called.
  bool begin(Context* context, std::function<void()> cancelled);
  // Afterwards it is not called any more. Waits for it, if it is being called.
  void end();

 private:
  void* manager_ = nullptr;
  int64_t token_ = 0;
  std::function<void()>* kept_ = nullptr;  // its own, once the watch has begun, until it is called
};

}  // namespace slipstream::tensorflow
