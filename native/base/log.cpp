#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace slipstream {

namespace {

bool level_is(std::string_view level) {
  const char* chosen = std::getenv("SLIPSTREAM_LOG");
  return chosen != nullptr && chosen == level;
}

}  // namespace

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

void log_info(int rank, const std::string& text) {
  static const bool wanted = level_is("info") || level_is("debug");
  if (wanted) log_warning(rank, text);
}

void log_debug(int rank, const std::string& text) {
  static const bool wanted = level_is("debug");
  if (wanted) log_warning(rank, text);
}

}  // namespace slipstream
