#include <cerrno>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace slipstream {

const char* name_of(DType t) {
  static const char* const names[kDTypes] = {"float64",     "float32",    "float16",   "bfloat16", "float8_e4m3fn",
                                             "float8_e5m2", "int8",       "int16",     "int32",    "int64",
                                             "uint8",       "uint16",     "uint32",    "uint64",   "bool",
                                             "complex64",   "complex128", "block_int8"};
  const auto i = static_cast<unsigned>(t);
  return i < kDTypes ? names[i] : "?";
}

const char* name_of(Op op) {
  static const char* const names[kOps] = {"sum", "prod", "min", "max", "avg", "band", "bor", "bxor"};
  const auto i = static_cast<unsigned>(op);
  return i < kOps ? names[i] : "?";
}

const char* name_of(WireType wire) {
  static const char* const names[kWireTypes] = {"exact", "bf16", "f16", "f8", "int8"};
  const auto i = static_cast<unsigned>(wire);
  return i < kWireTypes ? names[i] : "?";
}

std::string errno_text(const char* what, int error_number) {
  return std::string(what) + ": " + std::strerror(error_number);
}

std::string errno_text(const char* what) { return errno_text(what, errno); }

}  // namespace slipstream
