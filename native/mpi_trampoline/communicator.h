// Communicators: the ranks of a group of slipstream's.
#pragma once

#include <memory>
#include <string>

#include "capi/slipstream.h"
#include "mpi_trampoline/abi.h"
#include "mpi_trampoline/shared_members.h"

namespace slipstream::mpi {

// A handle that is no constant is the address of one.
struct Communicator {
  slipstream_group* group = nullptr;
  int rank = 0;
  int size = 1;
  // Set if a process has several members. Ranks of the communicator are places then, and the group has one rank for a
  // process.
  std::shared_ptr<SharedMembers> shared;
  // Why it could not be made, if it could not. XLA does not look at what MPI_Comm_split returns, so each call tells.
  // Rank and size are those that it would have had, as far as they are known.
  std::string failure;
};

// The communicator of all ranks. Null unless `open_world` has made it.
Communicator* world() noexcept;

// Makes the communicator of all ranks. MPI_SUCCESS, or a code with its text.
int open_world() noexcept;

// From which library MPI_Init was called. JAX's rules are known, and are checked.
void used_by_jax(bool yes) noexcept;
bool is_used_by_jax() noexcept;

// Tells Python which of JAX's processes is which rank, if JAX has called MPI_Init. All ranks call it.
int meet_jax() noexcept;

// This process calls a function that communicates.
void count_call() noexcept;

// The communicator of a handle, which may have failed; null if there is none.
const Communicator* known(Handle handle) noexcept;

// The communicator of a handle that can communicate; null, and a failure of `function` in *code, if there is none.
const Communicator* communicator(Handle handle, const char* function, int* code) noexcept;

}  // namespace slipstream::mpi
