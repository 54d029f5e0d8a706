// The beginning and the end of a job, and what a process may ask about both.

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "mpi_trampoline/abi.h"
#include "mpi_trampoline/communicator.h"
#include "mpi_trampoline/engine.h"
#include "mpi_trampoline/error.h"

using namespace slipstream::mpi;

namespace {

std::atomic<bool> begun{false};
std::atomic<bool> ended{false};

// The calls come from MPItrampoline, which jaxlib has linked into a library of its own.
bool is_of_jax(const void* caller) {
  Dl_info info;
  return ::dladdr(caller, &info) && info.dli_fname && std::strstr(info.dli_fname, "jax");
}

int begin(const void* caller) {
  if (begun.exchange(true)) return fail(MPI_ERR_OTHER, "MPI_Init has been called before");
  used_by_jax(is_of_jax(caller));
  int code = start_engine();
  if (code == MPI_SUCCESS) code = open_world();
  if (code == MPI_SUCCESS) code = meet_jax();
  if (code == MPI_SUCCESS) return code;
  // XLA does not look at the code: the calls that follow will tell, and this line is there at once.
  std::fprintf(stderr, "slipstream: MPI_Init: %s\n", text_of(code).c_str());
  return code;
}

int copied(const std::string& from, char* to, int room, int* length) {
  const size_t kept = std::min<size_t>(from.size(), static_cast<size_t>(room) - 1);
  std::memcpy(to, from.data(), kept);
  to[kept] = '\0';
  *length = static_cast<int>(kept);
  return MPI_SUCCESS;
}

}  // namespace

SLIPSTREAM_MPI_EXPORT int MPIABI_Init(int*, char***) { return begin(__builtin_return_address(0)); }

SLIPSTREAM_MPI_EXPORT int MPIABI_Init_thread(int*, char***, int, int* provided) {
  *provided = MPI_THREAD_MULTIPLE;
  return begin(__builtin_return_address(0));
}

// Ranks leave together: JAX calls this while computations of this process may still be under way, whose results other
// processes wait for.
SLIPSTREAM_MPI_EXPORT int MPIABI_Finalize() {
  const double seconds = parting_seconds();
  const Communicator* all = world();
  if (all && seconds > 0.0) {
    const WithoutGil without;
    slipstream_call call;
    slipstream_call_init(&call, SLIPSTREAM_BARRIER);
    call.timeout = seconds;
    call.name = "the end of the program: this process calls no more collectives";
    engine()->run(all->group, &call);  // if it fails, its ranks have been told before
  }
  ended = true;
  stop_engine();
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Initialized(int* flag) {
  *flag = begun;
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Finalized(int* flag) {
  *flag = ended;
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Query_thread(int* provided) {
  *provided = MPI_THREAD_MULTIPLE;
  return MPI_SUCCESS;
}

// Every thread may call. XLA asks, and refuses to make a communicator in any other thread.
SLIPSTREAM_MPI_EXPORT int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Abort(Handle, int code) {
  const slipstream_api* api = engine();
  const Communicator* all = world();
  const std::string why = "MPI_Abort with code " + std::to_string(code);
  if (api && all) api->abort(all->group, why.c_str());
  std::fprintf(stderr, "slipstream: %s\n", why.c_str());
  ::_exit(code > 0 && code < 256 ? code : 1);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Get_version(int* version, int* subversion) {
  *version = 3;
  *subversion = 1;
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Get_library_version(char* version, int* length) {
  return copied("slipstream " SLIPSTREAM_VERSION ", a part of MPI 3.1", version, kLibraryVersionBytes, length);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Get_processor_name(char* name, int* length) {
  char host[kProcessorNameBytes] = {};
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return copied(host, name, kProcessorNameBytes, length);
}

SLIPSTREAM_MPI_EXPORT double MPIABI_Wtime() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

SLIPSTREAM_MPI_EXPORT double MPIABI_Wtick() { return 1e-9; }
