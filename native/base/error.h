// One value type for everything that can go wrong. A session keeps the first Error it meets (sticky) and
// every later call raises it; it also travels to the other ranks in an abort frame.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace slipstream {

enum class Code : uint8_t {
  ok = 0,
  peer_lost = 1,  // a rank died, fell silent or left; `rank` and `host` name it
  mismatch = 2,   // ranks disagree on what operation this is
  timeout = 3,    // an operation outlived its deadline
  refused = 4,    // authentication or connection refused
  aborted = 5,    // the session was shut down or aborted on purpose
  invalid = 6,    // the caller's arguments are wrong (local, not sticky)
  internal = 7,   // a bug or a resource failure (out of memory, protocol violation)
};

struct Error {
  Code code = Code::ok;
  int rank = -1;     // the global rank at fault, -1 if none
  std::string host;  // its host, empty if unknown
  std::string text;  // rank, operation and cure, for people
  int told_by = -1;  // the rank from which this process has it; -1: it has found it itself. Does not travel

  explicit operator bool() const { return code != Code::ok; }
};

// Thrown across layers inside one process, and turned into a Python exception by `bindings`.
class Failure : public std::runtime_error {
 public:
  explicit Failure(Error error) : std::runtime_error(error.text), error_(std::move(error)) {}
  Failure(Code code, std::string text) : Failure(Error{code, -1, {}, std::move(text)}) {}
  const Error& error() const { return error_; }

 private:
  Error error_;
};

// The last `errno` as text, prefixed: "connect: Connection refused".
std::string errno_text(const char* what);
std::string errno_text(const char* what, int error_number);

}  // namespace slipstream
