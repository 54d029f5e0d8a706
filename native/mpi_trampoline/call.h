// An operation of the engine, made of the arguments of an MPI function.
#pragma once

#include <vector>

#include "capi/slipstream.h"
#include "mpi_trampoline/abi.h"
#include "mpi_trampoline/communicator.h"
#include "mpi_trampoline/types.h"

namespace slipstream::mpi {

// A step that has failed makes the rest do nothing, so callers need not look in between. `function`: of MPI.
class Call {
 public:
  Call(const char* function, int32_t collective, Handle comm) noexcept;

  // `count` elements of a type, as the engine counts.
  Call& of(int count, Handle type) noexcept;
  // The second of two pairs of a count and a type has as many bytes as the first.
  Call& same(int count, Handle type) noexcept;
  Call& reduced_by(Handle op) noexcept;
  // A rank of the communicator.
  Call& with(int rank) noexcept;
  Call& tagged(int tag) noexcept;
  // Blocks of different lengths, which lie one after another as `places` (in elements) say; null: they do.
  Call& blocks(const int* counts, const int* places, Handle type) noexcept;
  Call& taken_blocks(const int* counts, const int* places, Handle type) noexcept;
  Call& from(const void* src) noexcept;
  Call& to(void* dst) noexcept;

  bool good() const noexcept { return code_ == MPI_SUCCESS; }
  int code() const noexcept { return code_; }
  // Of `good()` calls only.
  const Communicator& comm() const noexcept { return *comm_; }
  slipstream_call& raw() noexcept { return call_; }
  size_t bytes() const noexcept { return call_.count * type_.bytes; }

  int run() noexcept;
  // Begins a message. `begun` has none if there is an error.
  int begin(Begun* begun) noexcept;
  int refuse(int code, const std::string& why) noexcept;

 private:
  const slipstream_api* ready() noexcept;
  void blocks(const int* counts, const int* places, Handle type, std::vector<uint64_t>* made) noexcept;

  const char* function_;
  int code_ = MPI_SUCCESS;
  const Communicator* comm_;
  Type type_;
  slipstream_call call_;
  std::vector<uint64_t> counts_, taken_;
};

inline bool in_place(const void* address) { return reinterpret_cast<intptr_t>(address) == MPI_IN_PLACE; }

}  // namespace slipstream::mpi
