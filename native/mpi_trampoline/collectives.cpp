// The blocking collectives.

#include <cstring>
#include <memory>

#include "mpi_trampoline/call.h"

using namespace slipstream::mpi;

namespace {

// The block of this rank in a buffer of one block for each rank.
char* own_block(Call& call, void* all) {
  return static_cast<char*>(all) + call.bytes() * static_cast<size_t>(call.comm().rank);
}

}  // namespace

SLIPSTREAM_MPI_EXPORT int MPIABI_Allreduce(const void* src, void* dst, int count, Handle type, Handle op, Handle comm) {
  return Call("MPI_Allreduce", SLIPSTREAM_ALL_REDUCE, comm)
      .of(count, type)
      .reduced_by(op)
      .from(in_place(src) ? dst : src)
      .to(dst)
      .run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Reduce(const void* src, void* dst, int count, Handle type, Handle op, int root,
                                        Handle comm) {
  Call call("MPI_Reduce", SLIPSTREAM_REDUCE, comm);
  call.of(count, type).reduced_by(op).with(root);
  if (!call.good()) return call.code();
  // On the other ranks MPI reads no dst, and the engine wants room for partial sums.
  std::unique_ptr<char[]> scratch;
  if (call.comm().rank != root) {
    scratch.reset(new (std::nothrow) char[call.bytes() + 1]);
    if (!scratch) return call.refuse(MPI_ERR_NO_MEM, "no memory for partial sums");
    dst = scratch.get();
  }
  return call.from(in_place(src) ? dst : src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Reduce_scatter(const void* src, void* dst, const int* counts, Handle type, Handle op,
                                                Handle comm) {
  Call call("MPI_Reduce_scatter", SLIPSTREAM_REDUCE_SCATTER, comm);
  if (!call.good()) return call.code();
  bool even = true;
  for (int rank = 1; rank < call.comm().size; ++rank) even = even && counts[rank] == counts[0];
  even ? call.of(counts[0], type) : call.blocks(counts, nullptr, type);
  if (in_place(src)) call.refuse(MPI_ERR_BUFFER, "MPI_IN_PLACE is not supported");
  return call.reduced_by(op).from(src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Reduce_scatter_block(const void* src, void* dst, int count, Handle type, Handle op,
                                                      Handle comm) {
  Call call("MPI_Reduce_scatter_block", SLIPSTREAM_REDUCE_SCATTER, comm);
  if (in_place(src)) call.refuse(MPI_ERR_BUFFER, "MPI_IN_PLACE is not supported");
  return call.of(count, type).reduced_by(op).from(src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Allgather(const void* src, int count, Handle type, void* dst, int taken,
                                           Handle taken_type, Handle comm) {
  Call call("MPI_Allgather", SLIPSTREAM_ALL_GATHER, comm);
  call.of(taken, taken_type);
  if (!in_place(src)) call.same(count, type);
  if (!call.good()) return call.code();
  return call.from(in_place(src) ? own_block(call, dst) : src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Allgatherv(const void* src, int, Handle, void* dst, const int* counts,
                                            const int* places, Handle type, Handle comm) {
  Call call("MPI_Allgatherv", SLIPSTREAM_ALL_GATHER, comm);
  if (in_place(src)) call.refuse(MPI_ERR_BUFFER, "MPI_IN_PLACE is not supported");
  return call.blocks(counts, places, type).from(src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Alltoall(const void* src, int count, Handle type, void* dst, int taken,
                                          Handle taken_type, Handle comm) {
  Call call("MPI_Alltoall", SLIPSTREAM_ALL_TO_ALL, comm);
  if (in_place(src)) call.refuse(MPI_ERR_BUFFER, "MPI_IN_PLACE is not supported");
  return call.of(count, type).same(taken, taken_type).from(src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Alltoallv(const void* src, const int* counts, const int* places, Handle type,
                                           void* dst, const int* taken, const int* taken_places, Handle taken_type,
                                           Handle comm) {
  Call call("MPI_Alltoallv", SLIPSTREAM_ALL_TO_ALL, comm);
  if (in_place(src)) call.refuse(MPI_ERR_BUFFER, "MPI_IN_PLACE is not supported");
  if (type != taken_type) call.refuse(MPI_ERR_TYPE, "both types must be the same");
  return call.blocks(counts, places, type).taken_blocks(taken, taken_places, type).from(src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Bcast(void* data, int count, Handle type, int root, Handle comm) {
  return Call("MPI_Bcast", SLIPSTREAM_BROADCAST, comm).of(count, type).with(root).from(data).to(data).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Gather(const void* src, int count, Handle type, void* dst, int taken,
                                        Handle taken_type, int root, Handle comm) {
  Call call("MPI_Gather", SLIPSTREAM_GATHER, comm);
  call.with(root);
  if (!call.good()) return call.code();
  if (call.comm().rank != root) return call.of(count, type).from(src).to(nullptr).run();
  call.of(taken, taken_type);
  if (!in_place(src)) call.same(count, type);
  if (!call.good()) return call.code();
  return call.from(in_place(src) ? own_block(call, dst) : src).to(dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Scatter(const void* src, int count, Handle type, void* dst, int taken,
                                         Handle taken_type, int root, Handle comm) {
  Call call("MPI_Scatter", SLIPSTREAM_SCATTER, comm);
  call.with(root);
  if (!call.good()) return call.code();
  if (call.comm().rank != root) return call.of(taken, taken_type).from(nullptr).to(dst).run();
  call.of(count, type);
  if (!in_place(dst)) call.same(taken, taken_type);
  if (!call.good()) return call.code();
  return call.from(src).to(in_place(dst) ? own_block(call, const_cast<void*>(src)) : dst).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Barrier(Handle comm) { return Call("MPI_Barrier", SLIPSTREAM_BARRIER, comm).run(); }
