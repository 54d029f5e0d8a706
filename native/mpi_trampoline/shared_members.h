// A communicator in which this process has several members, each a device of JAX's that calls in a thread of its own.
// They meet in memory, and one of them does the part between the processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "capi/slipstream.h"
#include "mpi_trampoline/layout.h"
#include "mpi_trampoline/local_messages.h"

namespace slipstream::mpi {

// A message that has been begun: the engine's, or one within this process.
struct Begun {
  slipstream_work* work = nullptr;
  std::shared_ptr<LocalMessage> message;
  LocalMessages::Key key{};
};

// Whatever fails here ends the job's operations: members of this process, and other processes, would wait otherwise.
class SharedMembers {
 public:
  // What the members of this process share, made by the first of them. `owners`: the rank of the world that each place
  // belongs to. `rank`: this process's.
  static std::shared_ptr<SharedMembers> of(slipstream_group* group, const std::vector<int32_t>& owners, int32_t rank);

  // Keeps a reference to the group.
  SharedMembers(slipstream_group* group, const std::vector<int32_t>& owners, int32_t rank);
  ~SharedMembers();
  SharedMembers(const SharedMembers&) = delete;
  SharedMembers& operator=(const SharedMembers&) = delete;

  // An operation of the member at `place`: a collective, or SEND or RECV with another place as its root. Runs it to its
  // end. MPI_SUCCESS, or a code with its text. `function`: of MPI.
  // `missing`: what the error says first if another process has not come.
  int run(int place, const slipstream_call& call, const char* function, const std::string& missing = {}) noexcept;
  // Begins a SEND or RECV.
  int begin(int place, const slipstream_call& call, const char* function, Begun* begun) noexcept;
  // Waits for one within this process, as LocalMessages does.
  int wait(const Begun& begun, double seconds, bool* done) noexcept;

 private:
  // A member that has come to a collective.
  struct Arrival {
    const slipstream_call* call;
    const char* function;
    const std::string* missing;
    bool done = false;
    int code = 0;
    std::string text{};  // of the code
  };

  using Act = std::function<int32_t(const slipstream_api& api, const slipstream_call& call)>;

  bool is_here(int place) const { return layout_.index_here(place) >= 0; }
  int between(int place, slipstream_call call, const char* function, const Act& act) noexcept;
  int meet(size_t index, Arrival* mine);
  void lead();
  int end(const std::string& why) noexcept;
  std::string missing() const;

  slipstream_group* const group_;
  const int32_t rank_;
  const Layout layout_;
  LocalMessages messages_;
  // Under the mutex of local waits.
  std::vector<Arrival*> come_;  // by member of this process; null: it has not
  size_t absent_;
};

}  // namespace slipstream::mpi
