#include "base/log.h"

#include <unistd.h>

namespace slipstream {

void log_warning(int rank, const std::string& text) {
  const std::string line = "slipstream: rank " + std::to_string(rank) + ": " + text + "\n";
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, line.data(), line.size());  // one write: lines stay whole
}

}  // namespace slipstream
