// MPI's basic types and operations, and what the engine calls them.
#pragma once

#include <cstdint>
#include <string>

#include "mpi_trampoline/abi.h"

namespace slipstream::mpi {

struct Type {
  int32_t dtype = -1;  // of the engine's; -1: none
  uint32_t bytes = 0;  // of an element
};

// The type of a handle; without a dtype if the engine has none for it, and of 0 bytes if it is unknown.
Type type_of(Handle handle) noexcept;

// The engine's operation, or -1. The logical ones exist for booleans.
int32_t op_of(Handle op, int32_t dtype) noexcept;

// "MPI_FLOAT"; "an unknown one" for handles that are no constants.
std::string constant_name(Handle handle);

}  // namespace slipstream::mpi
