// What an error says where ranks call different operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace slipstream::lines {

// What a rank (its number in the job) calls. `form`: the digest of its form; `title`: the same for people.
struct Called {
  int32_t rank = 0;
  uint64_t form = 0;
  std::string title;
};

// Names a rank for each form that there is; "" if there is one alone. `what`: the operation as this rank calls it.
std::string mismatch(const std::string& what, const std::vector<Called>& called);

}  // namespace slipstream::lines
