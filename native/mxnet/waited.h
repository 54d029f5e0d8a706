// Operations of a line that their caller waits for, because MXNet's engine cannot run them.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lines/planned.h"
#include "mxnet/pushes.h"
#include "mxnet/ticket.h"

namespace slipstream::mxnet {

class Waited final : public Ticket {
 public:
  // Works on memory that stays until it is over.
  Waited(const lines::Asked& asked, const std::vector<lines::Operand>& operands, std::string what, bool asks);
  // A place in the line alone, for an operation that is none of the line's: all ranks have come to it, once it is over.
  // `title`: what errors tell of its arguments, which the ranks do not compare.
  Waited(std::string kind, std::string what, std::string title);

  // True: it is over, now or within so long.
  bool wait(double seconds);

 private:
  void told() override;

  std::mutex mutex_;
  std::condition_variable ends_;
};

// Gives it its place. Throws Failure if the job has failed.
void start(JobLine& line, const std::shared_ptr<Waited>& operation);

}  // namespace slipstream::mxnet
