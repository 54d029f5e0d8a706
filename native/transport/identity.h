// Who this process is in its job, and what proves it.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace slipstream {

struct Identity {
  std::array<std::byte, 16> job{};  // first 16 bytes of SHA-256(job name)
  std::string secret;               // raw bytes, shared by all ranks of the job
  int rank = 0;
  int size = 1;
  bool encrypt = false;  // connections over tcp
};

}  // namespace slipstream
