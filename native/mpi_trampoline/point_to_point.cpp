// Messages between two ranks, and requests.

#include <cstring>
#include <memory>
#include <new>

#include "mpi_trampoline/call.h"
#include "mpi_trampoline/engine.h"
#include "mpi_trampoline/error.h"

using namespace slipstream::mpi;

namespace {

struct Request {
  Begun begun;
  std::shared_ptr<SharedMembers> shared;  // set if the message is one within this process
  Status status{};
};

void fill(Status* status, const Status& from) {
  if (status) *status = from;
}

Status status_of(int64_t bytes, int source, int tag) {
  Status status{};
  status.bytes = bytes;
  status.source = source;
  status.tag = tag;
  return status;
}

const Status kNothing = status_of(0, MPI_ANY_SOURCE, MPI_ANY_TAG);

Call message(const char* function, int32_t kind, void* data, int count, Handle type, int rank, int tag, Handle comm) {
  Call call(function, kind, comm);
  call.of(count, type).with(rank).tagged(tag).from(data).to(data);
  if (call.good() && call.comm().rank == rank)
    call.refuse(MPI_ERR_RANK, "a rank cannot send to itself, but by MPI_Sendrecv");
  return call;
}

int begin(Call call, int peer, Handle* request) {
  *request = MPI_REQUEST_NULL;
  auto made = std::make_unique<Request>();
  const int code = call.begin(&made->begun);
  if (code != MPI_SUCCESS) return code;
  if (made->begun.message) made->shared = call.comm().shared;
  made->status = status_of(static_cast<int64_t>(call.bytes()), peer, call.raw().tag);
  *request = reinterpret_cast<Handle>(made.release());
  return MPI_SUCCESS;
}

int begin_nothing(Handle* request) {
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

// Waits so many seconds, less than 0 without end. *done: whether the request has ended, and is no more.
int wait(Handle* handle, double seconds, bool* done, Status* status) {
  *done = true;
  if (*handle == MPI_REQUEST_NULL) {
    fill(status, kNothing);
    return MPI_SUCCESS;
  }
  auto* request = reinterpret_cast<Request*>(*handle);
  int code = MPI_SUCCESS;
  if (request->shared) {
    code = request->shared->wait(request->begun, seconds, done);
  } else {
    const slipstream_api* api = engine();
    if (!api) return fail(MPI_ERR_OTHER, "MPI_Wait: " + why_no_engine());
    const int32_t ended = api->work_wait(request->begun.work, seconds);
    *done = ended != SLIPSTREAM_PENDING;
    if (*done) {
      code = code_of(ended, "MPI_Wait");
      api->work_free(request->begun.work);
    }
  }
  if (!*done) return MPI_SUCCESS;
  fill(status, request->status);
  delete request;
  *handle = MPI_REQUEST_NULL;
  return code;
}

}  // namespace

SLIPSTREAM_MPI_EXPORT int MPIABI_Isend(const void* src, int count, Handle type, int to, int tag, Handle comm,
                                       Handle* request) {
  if (to == MPI_PROC_NULL) return begin_nothing(request);
  return begin(message("MPI_Isend", SLIPSTREAM_SEND, const_cast<void*>(src), count, type, to, tag, comm), to, request);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Irecv(void* dst, int count, Handle type, int from, int tag, Handle comm,
                                       Handle* request) {
  if (from == MPI_PROC_NULL) return begin_nothing(request);
  return begin(message("MPI_Irecv", SLIPSTREAM_RECV, dst, count, type, from, tag, comm), from, request);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Send(const void* src, int count, Handle type, int to, int tag, Handle comm) {
  if (to == MPI_PROC_NULL) return MPI_SUCCESS;
  return message("MPI_Send", SLIPSTREAM_SEND, const_cast<void*>(src), count, type, to, tag, comm).run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Recv(void* dst, int count, Handle type, int from, int tag, Handle comm,
                                      Status* status) {
  fill(status, kNothing);
  if (from == MPI_PROC_NULL) return MPI_SUCCESS;
  Call call = message("MPI_Recv", SLIPSTREAM_RECV, dst, count, type, from, tag, comm);
  fill(status, status_of(static_cast<int64_t>(call.bytes()), from, tag));
  return call.run();
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Sendrecv(const void* src, int count, Handle type, int to, int tag, void* dst,
                                          int taken, Handle taken_type, int from, int taken_tag, Handle comm,
                                          Status* status) {
  int code = MPI_SUCCESS;
  const Communicator* found = communicator(comm, "MPI_Sendrecv", &code);
  if (!found) return code;
  if (to == found->rank && from == found->rank) {
    Call call("MPI_Sendrecv", SLIPSTREAM_SEND, comm);
    call.of(count, type).same(taken, taken_type);
    if (call.good() && call.bytes()) std::memmove(dst, src, call.bytes());
    fill(status, status_of(static_cast<int64_t>(call.bytes()), from, tag));
    return call.code();
  }
  Handle receive = MPI_REQUEST_NULL;
  code = MPIABI_Irecv(dst, taken, taken_type, from, taken_tag, comm, &receive);
  if (code != MPI_SUCCESS) return code;
  code = MPIABI_Send(src, count, type, to, tag, comm);
  const std::string text = code == MPI_SUCCESS ? "" : text_of(code);
  bool done = false;
  const int received = wait(&receive, -1.0, &done, status);
  return code == MPI_SUCCESS ? received : fail(code, text);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Wait(Handle* request, Status* status) {
  bool done = false;
  return wait(request, -1.0, &done, status);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Test(Handle* request, int* flag, Status* status) {
  bool done = false;
  const int code = wait(request, 0.0, &done, status);
  *flag = done;
  return code;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Waitall(int count, Handle* requests, Status* statuses) {
  int first = MPI_SUCCESS;
  std::string text;
  for (int i = 0; i < count; ++i) {
    const int code = MPIABI_Wait(&requests[i], statuses ? &statuses[i] : nullptr);
    if (code == MPI_SUCCESS || first != MPI_SUCCESS) continue;
    first = code;
    text = text_of(code);
  }
  return first == MPI_SUCCESS ? first : fail(first, text);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Request_free(Handle* request) {
  const slipstream_api* api = engine();
  if (*request != MPI_REQUEST_NULL) {
    auto* freed = reinterpret_cast<Request*>(*request);
    if (api) api->work_free(freed->begun.work);
    delete freed;
  }
  *request = MPI_REQUEST_NULL;
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Get_count(const Status* status, Handle type, int* count) {
  const int64_t bytes = type_of(type).bytes;
  const bool whole = bytes && status->bytes % bytes == 0;
  *count = whole ? static_cast<int>(status->bytes / bytes) : MPI_UNDEFINED;
  return MPI_SUCCESS;
}
