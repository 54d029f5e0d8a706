// Collectives of a communicator in which this process has several members: what they have is put together, the engine's
// group of processes does the part between these, and each member gets its result.
#pragma once

#include <string>
#include <vector>

#include "capi/slipstream.h"
#include "mpi_trampoline/layout.h"

namespace slipstream::mpi {

// "all_reduce(float32, 3 elements, op=sum)".
std::string described(const slipstream_call& call);

// Whether two members have called the same.
bool agree(const slipstream_call& one, const slipstream_call& other);

// Does it for all members of this process, whose calls agree, in the order of `layout.here`. A code of MPI, whose text
// is this thread's. `function`: of MPI.
// `missing`: what the error says first if another process has not come.
int run_for_all(const slipstream_api& api, slipstream_group* group, const Layout& layout,
                const std::vector<const slipstream_call*>& calls, const char* function,
                const std::string& missing) noexcept;

}  // namespace slipstream::mpi
