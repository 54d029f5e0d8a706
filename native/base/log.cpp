#include "base/log.h"

#include <unistd.h>

namespace slipstream {

void log_warning(int rank, const std::string& text) {
  const std::string head = "slipstream: rank " + std::to_string(rank) + ": ";
  std::string lines = head;
  for (const char c : text) {
    lines += c;
    if (c == '\n') lines += head;
  }
  lines += '\n';
  [[maybe_unused]] const auto n = ::write(STDERR_FILENO, lines.data(), lines.size());  // one write: lines stay whole
}

}  // namespace slipstream
