#include "lines/mismatch.h"

#include <algorithm>

namespace slipstream::lines {

namespace {

constexpr size_t kMostShown = 4;  // ranks that an error names

}  // namespace

std::string mismatch(const std::string& what, const std::vector<Called>& called) {
  std::vector<uint64_t> seen;
  std::string text = "Mismatched " + what;
  for (const Called& one : called) {
    if (std::find(seen.begin(), seen.end(), one.form) != seen.end()) continue;
    if (seen.size() < kMostShown)
      text += (seen.empty() ? ": rank " : "; rank ") + std::to_string(one.rank) + " with " + one.title;
    seen.push_back(one.form);
  }
  if (seen.size() < 2) return "";
  return text + ". All ranks must call the same operations in the same order, with the same shapes and dtypes";
}

}  // namespace slipstream::lines
