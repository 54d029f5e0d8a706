// The way to slipstream's engine: its C table, which Python hands out.
#pragma once

#include <string>

#include "capi/slipstream.h"

namespace slipstream::mpi {

// Imports slipstream in this process's Python, joins the job that `slipstream run` has started, and gets the table.
// Any thread. MPI_SUCCESS, or a code with its text.
int start_engine() noexcept;

// How many seconds MPI_Finalize may wait for the other ranks: 0 if this one ends by an exception.
double parting_seconds() noexcept;

// Asks Python's slipstream.faces.mpi_trampoline, whose functions these are.

// The number that JAX gives this process; "-1" if it gives none.
std::string process_number() noexcept;

// The numbers of all processes of JAX, by rank, with spaces between.
void watch_jax(const std::string& numbers) noexcept;

// The group that JAX makes now, if it is known, as "HANDLE 2,3": its handle, with a reference, and the rank of each
// device. Or "!" and why it cannot be made.
std::string group_made_now(int first, int place) noexcept;

// The sizes of groups, with spaces between, that the computation of JAX which runs now in this thread may want to make
// (slipstream.faces.mpi_trampoline.groups). Empty if that cannot be found out.
std::string group_sizes(int first, int place, const std::string& made) noexcept;

// Without Python's lock while it lives, if this thread has it.
class WithoutGil {
 public:
  WithoutGil() noexcept;
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  void* state_ = nullptr;
};

// Lets go of the table. Later calls find none. Also without `start_engine`.
void stop_engine() noexcept;

// The table; null before `start_engine` and after `stop_engine`.
const slipstream_api* engine() noexcept;

// Seconds that the ranks have to come to the making of a communicator.
double gathering_seconds() noexcept;

// Seconds that an operation may take.
double operation_seconds() noexcept;

// Why there is no table, for errors.
std::string why_no_engine();

// The MPI code for what a function of the table has returned in this thread; its text goes to MPI_Error_string.
// `function`: of MPI. `missing`: what the text says first if some ranks have not come, or have
// come to something else: MPI cuts long texts.
int code_of(int32_t status, const char* function, const std::string& missing = {}) noexcept;

}  // namespace slipstream::mpi
