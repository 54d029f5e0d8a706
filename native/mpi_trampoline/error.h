// Errors: a code that MPI knows, and the text of the thread's last one, which MPI_Error_string gives.
#pragma once

#include <atomic>
#include <string>

#include "mpi_trampoline/abi.h"

namespace slipstream::mpi {

// Keeps the text for MPI_Error_string in this thread, and returns `code`.
int fail(int code, std::string text) noexcept;

// Says once on standard error that the function is not there, and fails. `said`: whether it has been said.
int unsupported(const char* function, std::atomic<bool>* said) noexcept;

// The text of a code: what this thread's last failure said, if it had that code.
std::string text_of(int code);

}  // namespace slipstream::mpi
