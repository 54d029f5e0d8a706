#include "mpi_trampoline/error.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace slipstream::mpi {
namespace {

struct Last {
  int code = MPI_SUCCESS;
  std::string text;
};
thread_local Last last;

// The name of an error class; null if there is none with this number.
const char* name_of(int code) {
#define HANDLE(name, value)
#define OFFSET(name, value)
#define ADDRESS(name, value)
#define INTEGER(name, value) \
  if (code == value && std::strncmp(#name, "ERR_", 4) == 0) return "MPI_" #name;
#include "mpi_trampoline/constants.def"
  return nullptr;
}

}  // namespace

int fail(int code, std::string text) noexcept {
  last.code = code;
  last.text = std::move(text);
  return code;
}

int unsupported(const char* function, std::atomic<bool>* said) noexcept {
  const std::string text = std::string(function) + " is not supported by slipstream's MPI library";
  if (!said->exchange(true)) std::fprintf(stderr, "slipstream: %s\n", text.c_str());
  return fail(MPI_ERR_UNSUPPORTED_OPERATION, text);
}

std::string text_of(int code) {
  if (code == MPI_SUCCESS) return "no error";
  if (code == last.code && !last.text.empty()) return last.text;
  const char* name = name_of(code);
  return name ? name : "unknown error code " + std::to_string(code);
}

}  // namespace slipstream::mpi

SLIPSTREAM_MPI_EXPORT int MPIABI_Error_string(int code, char* text, int* length) {
  using namespace slipstream::mpi;
  const std::string full = text_of(code);
  const size_t kept = std::min<size_t>(full.size(), kErrorStringBytes - 1);
  std::memcpy(text, full.data(), kept);
  text[kept] = '\0';
  *length = static_cast<int>(kept);
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Error_class(int code, int* error_class) {
  *error_class = code;  // every code is a class
  return slipstream::mpi::MPI_SUCCESS;
}
