// The steps of TensorFlow that have started operations of a line, the latest ones. A step is one run of a function,
// with all functions that it calls.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

namespace slipstream::tensorflow {

class StartedSteps {
 public:
  // A step starts an operation. Returns how many it has started before. `number`: of this start in the process.
  uint64_t started(int64_t step, uint64_t number);
  // The ranks have agreed that this step fails. What is still to be started of it, does not start: TensorFlow cancels
  // the step a moment later.
  void end(int64_t step, const std::string& problem);
  // Why a step has ended so; nullptr, if it has not.
  const std::string* why_ended(int64_t step) const;
  // A step has failed that began after the start of this number: how many operations it has started. Nothing, if the
  // ranks have agreed about that already.
  std::optional<uint64_t> given_up(uint64_t since) const;

 private:
  struct Known {
    int64_t step;
    uint64_t started = 0;
    uint64_t latest = 0;  // the number of its latest start
    bool ended = false;
    std::string problem;
  };
  Known& find_or_add(int64_t step);

  std::deque<Known> steps_;  // the latest first
};

}  // namespace slipstream::tensorflow
