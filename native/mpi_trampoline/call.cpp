#include "mpi_trampoline/call.h"

#include "mpi_trampoline/engine.h"
#include "mpi_trampoline/error.h"

namespace slipstream::mpi {

Call::Call(const char* function, int32_t collective, Handle comm) noexcept
    : function_(function), comm_(communicator(comm, function, &code_)) {
  slipstream_call_init(&call_, collective);
}

int Call::refuse(int code, const std::string& why) noexcept {
  return code_ = fail(code, std::string(function_) + ": " + why);
}

Call& Call::of(int count, Handle type) noexcept {
  if (!good()) return *this;
  type_ = type_of(type);
  if (!type_.bytes) {
    refuse(MPI_ERR_TYPE, "the engine has no such type: " + constant_name(type));
  } else if (count < 0) {
    refuse(MPI_ERR_COUNT, "the count " + std::to_string(count) +
                              " is negative: MPI counts to 2^31 - 1, so split what is larger, or use another type");
  }
  call_.count = static_cast<uint64_t>(count);
  call_.dtype = type_.dtype;
  return *this;
}

Call& Call::same(int count, Handle type) noexcept {
  if (good() && (count < 0 || static_cast<uint64_t>(count) * type_of(type).bytes != bytes()))
    refuse(MPI_ERR_COUNT, "what is sent and what is received have different lengths");
  return *this;
}

Call& Call::reduced_by(Handle op) noexcept {
  if (!good()) return *this;
  call_.op = op_of(op, call_.dtype);
  const slipstream_api* api = engine();
  if (call_.op < 0 || (api && !api->reduces(call_.dtype, call_.op)))
    refuse(MPI_ERR_OP, "the engine does not reduce this type by " + constant_name(op));
  return *this;
}

Call& Call::with(int rank) noexcept {
  if (good() && (rank < 0 || rank >= comm_->size)) {
    refuse(MPI_ERR_RANK, std::to_string(rank) + " is no rank of 0 to " + std::to_string(comm_->size - 1) +
                             (rank == MPI_ANY_SOURCE ? " (MPI_ANY_SOURCE is not supported)" : ""));
  }
  call_.root = rank;
  return *this;
}

Call& Call::tagged(int tag) noexcept {
  if (good() && tag < 0) refuse(MPI_ERR_TAG, "the tag is negative (MPI_ANY_TAG is not supported)");
  call_.tag = tag;
  return *this;
}

void Call::blocks(const int* counts, const int* places, Handle type, std::vector<uint64_t>* made) noexcept {
  of(0, type);
  if (!good()) return;
  int64_t place = 0;
  for (int rank = 0; rank < comm_->size && good(); ++rank) {
    if (counts[rank] < 0) refuse(MPI_ERR_COUNT, "a count is negative");
    if (places && counts[rank] > 0 && places[rank] != place)
      refuse(MPI_ERR_ARG, "slipstream takes blocks that lie one after another, in the order of the ranks");
    made->push_back(static_cast<uint64_t>(counts[rank]));
    place += counts[rank];
  }
}

Call& Call::blocks(const int* counts, const int* places, Handle type) noexcept {
  blocks(counts, places, type, &counts_);
  return *this;
}

Call& Call::taken_blocks(const int* counts, const int* places, Handle type) noexcept {
  blocks(counts, places, type, &taken_);
  return *this;
}

Call& Call::from(const void* src) noexcept {
  call_.src = src;
  return *this;
}

Call& Call::to(void* dst) noexcept {
  call_.dst = dst;
  return *this;
}

// The engine's table, if this call can be made.
const slipstream_api* Call::ready() noexcept {
  if (!good()) return nullptr;
  const slipstream_api* api = engine();
  if (!api) refuse(MPI_ERR_OTHER, why_no_engine());
  call_.counts = counts_.empty() ? nullptr : counts_.data();
  call_.recv_counts = taken_.empty() ? nullptr : taken_.data();
  return api;
}

int Call::run() noexcept {
  count_call();
  const slipstream_api* api = ready();
  if (!api) return code_;
  if (comm_->shared) return code_ = comm_->shared->run(comm_->rank, call_, function_);
  return code_ = code_of(api->run(comm_->group, &call_), function_);
}

int Call::begin(Begun* begun) noexcept {
  *begun = {};
  count_call();
  const slipstream_api* api = ready();
  if (!api) return code_;
  if (comm_->shared) return code_ = comm_->shared->begin(comm_->rank, call_, function_, begun);
  return code_ = code_of(api->begin(comm_->group, &call_, &begun->work), function_);
}

}  // namespace slipstream::mpi
