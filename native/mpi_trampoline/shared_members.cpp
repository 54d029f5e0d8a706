#include "mpi_trampoline/shared_members.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "base/dtype.h"
#include "mpi_trampoline/abi.h"
#include "mpi_trampoline/engine.h"
#include "mpi_trampoline/error.h"
#include "mpi_trampoline/local_waits.h"
#include "mpi_trampoline/shared_collectives.h"

namespace slipstream::mpi {
namespace {

std::mutex made_mutex;
std::map<uint64_t, std::weak_ptr<SharedMembers>> made;  // by group; under the mutex

bool is_message(const slipstream_call& call) {
  return call.collective == SLIPSTREAM_SEND || call.collective == SLIPSTREAM_RECV;
}

}  // namespace

std::shared_ptr<SharedMembers> SharedMembers::of(slipstream_group* group, const std::vector<int32_t>& owners,
                                                 int32_t rank) {
  const std::lock_guard lock(made_mutex);
  std::weak_ptr<SharedMembers>& known = made[engine()->group_id(group)];
  std::shared_ptr<SharedMembers> found = known.lock();
  if (!found) known = found = std::make_shared<SharedMembers>(group, owners, rank);
  return found;
}

SharedMembers::SharedMembers(slipstream_group* group, const std::vector<int32_t>& owners, int32_t rank)
    : group_(group),
      rank_(rank),
      layout_(owners, rank),
      messages_(rank),
      come_(layout_.here.size()),
      absent_(come_.size()) {
  engine()->group_retain(group_);
}

SharedMembers::~SharedMembers() {
  // After MPI_Finalize there is nobody to give the group back to.
  if (const slipstream_api* api = engine()) api->group_release(group_);
}

int SharedMembers::end(const std::string& why) noexcept {
  std::string first;
  {
    const std::lock_guard lock(local_mutex());
    first = local_failure();
  }
  if (!first.empty()) return fail(MPI_ERR_OTHER, first);
  if (const slipstream_api* api = engine()) api->abort(group_, why.c_str());
  fail_local_waits(why);
  return fail(MPI_ERR_OTHER, why);
}

int SharedMembers::run(int place, const slipstream_call& call, const char* function,
                       const std::string& missing) noexcept {
  if (!is_message(call)) {
    Arrival mine{&call, function, &missing};
    return meet(static_cast<size_t>(layout_.index_here(place)), &mine);
  }
  if (is_here(call.root)) {
    Begun begun;
    bool done = false;
    const int code = begin(place, call, function, &begun);
    return code == MPI_SUCCESS ? wait(begun, -1.0, &done) : code;
  }
  return between(place, call, function,
                 [&](const slipstream_api& api, const slipstream_call& one) { return api.run(group_, &one); });
}

int SharedMembers::begin(int place, const slipstream_call& call, const char* function, Begun* begun) noexcept {
  if (!is_here(call.root)) {
    return between(place, call, function, [&](const slipstream_api& api, const slipstream_call& one) {
      return api.begin(group_, &one, &begun->work);
    });
  }
  const bool is_sent = call.collective == SLIPSTREAM_SEND;
  const size_t bytes = size_of(static_cast<DType>(call.dtype)) * call.count;
  void* data = is_sent ? const_cast<void*>(call.src) : call.dst;
  begun->key = {is_sent ? place : call.root, is_sent ? call.root : place, call.tag};
  begun->message = std::make_shared<LocalMessage>(LocalMessage{is_sent, data, bytes});
  const std::string wrong = messages_.post(begun->key, begun->message);
  return wrong.empty() ? MPI_SUCCESS : end(wrong + " (" + function + ")");
}

// A message to or from another process, whose tag says which of their devices it is of.
int SharedMembers::between(int place, slipstream_call call, const char* function, const Act& act) noexcept {
  const slipstream_api* api = engine();
  if (!api) return fail(MPI_ERR_OTHER, std::string(function) + ": " + why_no_engine());
  const bool is_sent = call.collective == SLIPSTREAM_SEND;
  const int64_t from = is_sent ? place : call.root, to = is_sent ? call.root : place;
  const auto size = static_cast<int64_t>(layout_.size());
  const int64_t tag = (call.tag * size + from) * size + to;
  if (tag > INT32_MAX) {
    return end("Invalid: rank " + std::to_string(rank_) + " uses the tag " + std::to_string(call.tag) +
               ", which is too large where a process has several devices: use a smaller one (" + function + ")");
  }
  call.tag = static_cast<int32_t>(tag);
  call.root = layout_.process[static_cast<size_t>(call.root)];
  const int code = code_of(act(*api, call), function);
  return code == MPI_SUCCESS ? code : end(text_of(code));
}

int SharedMembers::wait(const Begun& begun, double seconds, bool* done) noexcept {
  const std::string wrong = messages_.wait(begun.key, begun.message, seconds, done);
  return wrong.empty() ? MPI_SUCCESS : end(wrong);
}

// The last one to come leads: it does the collective for all.
int SharedMembers::meet(size_t index, Arrival* mine) {
  const double seconds = mine->call->timeout > 0.0 ? mine->call->timeout : operation_seconds();
  const auto ended = [&] { return mine->code == MPI_SUCCESS ? MPI_SUCCESS : fail(mine->code, mine->text); };
  const auto is_done = [&] { return mine->done; };
  std::unique_lock lock(local_mutex());
  // Another thread of this device may be here: its collective comes first.
  std::string absent = "another thread of its device";
  const Ended free = wait_locally(lock, seconds, [&] { return come_[index] == nullptr; });
  if (free == Ended::done && local_failure().empty()) {
    come_[index] = mine;
    if (--absent_ == 0) {
      lock.unlock();
      lead();
      return ended();
    }
    if (wait_locally(lock, seconds, is_done) == Ended::done) return ended();
    // While the collective runs, it uses this member's memory. If the job has failed it soon ends.
    if (absent_ == 0) {
      wait_for_end(lock, is_done);
      return ended();
    }
    absent = missing();
    come_[index] = nullptr;
    ++absent_;
  }
  std::string why = local_failure();
  lock.unlock();
  if (why.empty()) {
    why = "Timeout: " + described(*mine->call) + " of a device of rank " + std::to_string(rank_) + " has waited " +
          std::to_string(static_cast<int>(seconds)) + " s for " + absent +
          ": each must reach the collective; those that come later have SLIPSTREAM_TIMEOUT seconds (" + mine->function +
          ")";
  }
  return end(why);
}

// All members are here, and wait.
void SharedMembers::lead() {
  std::vector<const slipstream_call*> calls;
  for (const Arrival* one : come_) calls.push_back(one->call);
  const auto other = std::ranges::find_if(calls, [&](auto* call) { return !agree(*calls.front(), *call); });
  const slipstream_api* api = engine();
  const char* function = come_.front()->function;
  int code = MPI_SUCCESS;
  if (!api) {
    code = fail(MPI_ERR_OTHER, std::string(function) + ": " + why_no_engine());
  } else if (other != calls.end()) {
    const auto place = static_cast<size_t>(other - calls.begin());
    code = end("Mismatch: devices of rank " + std::to_string(rank_) + " differ: the one at place " +
               std::to_string(layout_.here.front()) + " called " + described(*calls.front()) + ", the one at place " +
               std::to_string(layout_.here[place]) + " " + described(**other) +
               "; all devices of a group must call the same operations, in the same order, with the same shape, dtype "
               "and op (" +
               function + ")");
  } else {
    code = run_for_all(*api, group_, layout_, calls, function, *come_.front()->missing);
    if (code != MPI_SUCCESS) code = end(text_of(code));
  }
  const std::string text = code == MPI_SUCCESS ? "" : text_of(code);
  {
    const std::lock_guard lock(local_mutex());
    for (Arrival*& one : come_) {
      one->code = code;
      one->text = text;
      one->done = true;
      one = nullptr;
    }
    absent_ = come_.size();
  }
  wake_local_waits();
}

// Whom a member waits for. Under the mutex.
std::string SharedMembers::missing() const {
  std::string places;
  for (size_t i = 0; i < come_.size(); ++i)
    if (!come_[i]) places.append(places.empty() ? "" : ", ").append(std::to_string(layout_.here[i]));
  return "its devices at the places " + places + " of the group";
}

}  // namespace slipstream::mpi
