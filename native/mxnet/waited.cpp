#include "mxnet/waited.h"

#include <chrono>
#include <utility>

#include "lines/plan.h"

namespace slipstream::mxnet {

Waited::Waited(const lines::Asked& asked, const std::vector<lines::Operand>& operands, std::string name,
               bool compared) {
  what = std::move(name);
  asks = compared;
  describe(asked, operands);
  lines::plan(asked, operands, *this);
}

Waited::Waited(std::string of, std::string name, std::string arguments) {
  kind = std::move(of);
  what = std::move(name);
  title = std::move(arguments);
  form = kind + '\0' + what;  // those of operations on tensors begin with a number
  label = what.empty() ? kind : what;
}

bool Waited::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return ends_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return is_over(); });
}

void Waited::told() {
  const std::lock_guard lock(mutex_);  // else whoever waits may have looked before, and sleep after
  ends_.notify_all();
}

void start(JobLine& line, const std::shared_ptr<Waited>& operation) {
  line.check();
  line.line()->start(operation);
}

}  // namespace slipstream::mxnet
