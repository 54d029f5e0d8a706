// The constants of the ABI, and a stub for each of its functions: files beside this one define those that are
// supported.

#include <cstdio>

#include "mpi_trampoline/abi.h"
#include "mpi_trampoline/error.h"

using slipstream::mpi::Handle;

SLIPSTREAM_MPI_EXPORT const int mpiabi_version_major = 2;
SLIPSTREAM_MPI_EXPORT const int mpiabi_version_minor = 10;
SLIPSTREAM_MPI_EXPORT const int mpiabi_version_patch = 0;
SLIPSTREAM_MPI_EXPORT const int mpiwrapper_version_major = 2;
SLIPSTREAM_MPI_EXPORT const int mpiwrapper_version_minor = 10;
SLIPSTREAM_MPI_EXPORT const int mpiwrapper_version_patch = 0;

// Without Fortran there is nothing to do.
SLIPSTREAM_MPI_EXPORT void mpiwrapper_export_fortran_constants_() {}

#define HANDLE(name, value) SLIPSTREAM_MPI_EXPORT const Handle MPIABI_##name = value;
#define INTEGER(name, value) SLIPSTREAM_MPI_EXPORT const int MPIABI_##name = value;
#define OFFSET(name, value) SLIPSTREAM_MPI_EXPORT const int64_t MPIABI_##name = value;
#define ADDRESS(name, value) SLIPSTREAM_MPI_EXPORT const intptr_t MPIABI_##name = value;
#include "mpi_trampoline/constants.def"

// A stub is weak: where another file defines the function, the linker takes that. It reads no arguments, so it needs
// none.
#define SLIPSTREAM_MPI_STUB(name, told, result)                  \
  SLIPSTREAM_MPI_EXPORT __attribute__((weak)) int64_t name() {   \
    static std::atomic<bool> said{false};                        \
    const int error = slipstream::mpi::unsupported(told, &said); \
    return result;                                               \
  }
#define FUNCTION(name) SLIPSTREAM_MPI_STUB(MPIABI_##name, "MPI_" #name, error)
#define EXTENSION(name) SLIPSTREAM_MPI_STUB(MPIXABI_##name, "MPIX_" #name, error)
// It returns no error code: 0 stands for no object.
#define CONVERSION(name) SLIPSTREAM_MPI_STUB(MPIABI_##name, "MPI_" #name, error * 0)
#include "mpi_trampoline/functions.def"
