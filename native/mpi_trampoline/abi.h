// The types and constants of MPItrampoline's ABI, as far as this library needs them. It has no header of MPI.
#pragma once

#include <cstddef>
#include <cstdint>

// A function or a constant that MPItrampoline looks up.
#define SLIPSTREAM_MPI_EXPORT extern "C" __attribute__((visibility("default")))

namespace slipstream::mpi {

using Handle = uintptr_t;  // of a communicator, a type, an operation, a request ...
using Aint = intptr_t;
using Count = int64_t;

// Its first bytes belong to the library that fills it in.
struct Status {
  int64_t bytes;  // of the message
  int64_t reserved[2];
  int source;
  int tag;
  int error;
};
static_assert(sizeof(Status) == 10 * sizeof(int) && offsetof(Status, source) == 24);

inline constexpr int kErrorStringBytes = 1024;
inline constexpr int kNameBytes = 128;
inline constexpr int kProcessorNameBytes = 256;
inline constexpr int kLibraryVersionBytes = 8192;

#define HANDLE(name, value) inline constexpr Handle MPI_##name = value;
#define INTEGER(name, value) inline constexpr int MPI_##name = value;
#define OFFSET(name, value) inline constexpr int64_t MPI_##name = value;
#define ADDRESS(name, value) inline constexpr intptr_t MPI_##name = value;
#include "mpi_trampoline/constants.def"
#undef HANDLE
#undef INTEGER
#undef OFFSET
#undef ADDRESS

}  // namespace slipstream::mpi
