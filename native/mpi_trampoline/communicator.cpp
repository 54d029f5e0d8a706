#include "mpi_trampoline/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "mpi_trampoline/engine.h"
#include "mpi_trampoline/error.h"

namespace slipstream::mpi {
namespace {

std::atomic<Communicator*> all_ranks{nullptr};
std::atomic<bool> jax{false};
std::atomic<int64_t> calls{0};  // of functions that communicate, by this process

// What a rank says as a communicator is split.
struct Part {
  int64_t color;
  int64_t key;
  int64_t calls;
};

struct Member {
  int64_t key;
  int32_t rank;  // of the communicator that is split
};

bool is_constant(Handle handle) { return handle < 0x10000; }

Communicator* failed(std::string why) {
  auto* made = new Communicator;
  made->failure = std::move(why);
  return made;
}

// What makes only some processes come, and what helps.
constexpr const char* kAllMustCome =
    "use one order of the devices in all meshes; call a collective over an axis once before a loop or a condition that "
    "some processes skip; let all processes compute; or set JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo";

std::string missing_in_jax(int size) {
  return "JAX makes a group of processes with all " + std::to_string(size) +
         " over MPI, and some have not come: " + kAllMustCome;
}

// JAX gives the keys 0, 1, 2 ... to the devices of a group, and the process of each device calls. With two devices in
// a process it calls twice, and so the members of one call have other keys. Their sums would be wrong.
std::string objection(const std::vector<Member>& members) {
  if (!jax) return {};
  std::string keys;
  bool right = true;
  for (size_t i = 0; i < members.size(); ++i) {
    keys.append(i ? ", " : "").append(std::to_string(members[i].key));
    right = right && members[i].key == static_cast<int64_t>(i);
  }
  if (right) return {};
  return "JAX makes a group of the devices numbered " + keys + " of " + std::to_string(members.size()) +
         " processes, and these are not one device of each: use JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo";
}

// XLA keeps the groups that it has made: where a collective has some of them again, their processes do not come, and
// those that do may meet the splits of a later collective. It is hardly so if all processes have called as many
// functions before, and the groups have as many members each.
bool may_be_mixed_up(const std::vector<Part>& parts) {
  std::map<int64_t, size_t> sizes;
  for (const Part& part : parts)
    if (part.color != MPI_UNDEFINED) ++sizes[part.color];
  return std::ranges::any_of(sizes, [&](const auto& one) { return one.second != sizes.begin()->second; }) ||
         std::ranges::any_of(parts, [&](const Part& part) { return part.calls != parts.front().calls; });
}

// The ranks of each group of JAX that this process has made, as "0,2;0,1,2,3".
class Made {
 public:
  void add(const std::string& ranks) {
    const std::lock_guard lock(mutex_);
    groups_.append(groups_.empty() ? "" : ";").append(ranks);
  }
  std::string all() const {
    const std::lock_guard lock(mutex_);
    return groups_;
  }

 private:
  mutable std::mutex mutex_;
  std::string groups_;
};
Made made_before;

std::string listed(const std::vector<int32_t>& ranks, const char* between) {
  std::string text;
  for (size_t i = 0; i < ranks.size(); ++i) text.append(i ? between : "").append(std::to_string(ranks[i]));
  return text;
}

// Whether this process's computation wants a group of `size` here. `doubtful`: only if it is sure that it does.
bool is_wanted(Part mine, size_t size, bool doubtful) {
  const std::string wanted = group_sizes(static_cast<int>(mine.color), static_cast<int>(mine.key), made_before.all());
  if (doubtful || wanted.empty()) return wanted == std::to_string(size) || !doubtful;
  return (" " + wanted + " ").find(" " + std::to_string(size) + " ") != std::string::npos;
}

int gather(const slipstream_api* api, const Communicator& from, const int64_t* mine, int64_t* all, size_t count,
           const char* function, const std::string& cure) {
  slipstream_call call;
  slipstream_call_init(&call, SLIPSTREAM_ALL_GATHER);
  call.src = mine;
  call.dst = all;
  call.count = count;
  call.dtype = SLIPSTREAM_I64;
  call.timeout = gathering_seconds();
  call.name = function;
  return code_of(api->run(from.group, &call), function, cure);
}

// The ranks of the world that have this rank's color, in the order of their keys.
int members_of(const slipstream_api* api, const Communicator& from, Part mine, std::vector<Member>* members) {
  std::vector<Part> parts(static_cast<size_t>(from.size));
  const std::string cure = jax ? missing_in_jax(from.size) : "";
  int code =
      gather(api, from, &mine.color, &parts.front().color, sizeof(Part) / sizeof(int64_t), "MPI_Comm_split", cure);
  if (code != MPI_SUCCESS) return code;
  for (int32_t rank = 0; rank < from.size; ++rank) {
    const Part& part = parts[static_cast<size_t>(rank)];
    if (part.color == mine.color) members->push_back({part.key, rank});
  }
  std::stable_sort(members->begin(), members->end(), [](auto& a, auto& b) { return a.key < b.key; });
  if (!jax) return MPI_SUCCESS;
  std::vector<int64_t> wanted(parts.size());
  const int64_t here = mine.color == MPI_UNDEFINED || is_wanted(mine, members->size(), may_be_mixed_up(parts));
  code = gather(api, from, &here, wanted.data(), 1, "MPI_Comm_split", cure);
  if (code != MPI_SUCCESS || std::ranges::find(wanted, 0) == wanted.end()) return code;
  return fail(MPI_ERR_ARG, std::string("JAX makes groups of processes for different collectives at once, and over MPI "
                                       "all must come for one: ") +
                               kAllMustCome);
}

int make_group(const slipstream_api* api, const std::vector<int32_t>& ranks, Communicator* made) {
  const int code =
      code_of(api->group_make(ranks.data(), static_cast<uint32_t>(ranks.size()), &made->group), "MPI_Comm_split");
  if (code != MPI_SUCCESS) return code;
  made->rank = api->group_rank(made->group);
  made->size = api->group_size(made->group);
  return MPI_SUCCESS;
}

int split(const Communicator& from, int color, int key, Handle* made) {
  const slipstream_api* api = engine();
  if (!api) return fail(MPI_ERR_OTHER, "MPI_Comm_split: " + why_no_engine());
  std::vector<Member> members;
  int code = members_of(api, from, {color, key, calls}, &members);
  if (code != MPI_SUCCESS) return code;
  if (color == MPI_UNDEFINED) {
    *made = MPI_COMM_NULL;
    return MPI_SUCCESS;
  }
  if (std::string why = objection(members); !why.empty()) return fail(MPI_ERR_ARG, why);
  std::vector<int32_t> below(static_cast<size_t>(from.size)), ranks;
  code = code_of(api->group_ranks(from.group, below.data()), "MPI_Comm_split");
  if (code != MPI_SUCCESS) return code;
  for (const Member& member : members) ranks.push_back(below[static_cast<size_t>(member.rank)]);
  auto communicator = std::make_unique<Communicator>();
  code = make_group(api, ranks, communicator.get());
  if (code != MPI_SUCCESS) return code;
  if (jax) made_before.add(listed(ranks, ","));
  *made = reinterpret_cast<Handle>(communicator.release());
  return code;
}

// The ranks of "2,3".
std::vector<int32_t> ranks_of(const char* text) {
  std::vector<int32_t> ranks;
  for (char* end = nullptr; *text; text = *end ? end + 1 : end)
    ranks.push_back(static_cast<int32_t>(std::strtol(text, &end, 10)));
  return ranks;
}

// Each rank once.
std::vector<int32_t> processes_of(std::vector<int32_t> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  return ranks;
}

// The members of a group that JAX makes now meet in it: those that have not come get their time here, and a name.
int meet(const slipstream_api* api, const Communicator& members, const std::string& processes) {
  slipstream_call call;
  slipstream_call_init(&call, SLIPSTREAM_BARRIER);
  call.timeout = gathering_seconds();
  call.name = "MPI_Comm_split";
  const std::string missing =
      "JAX makes the group of processes " + processes +
      ", and some of them have not come: each must run the computations that need it, in the same order; "
      "those that come late have 300 seconds, or SLIPSTREAM_TIMEOUT if that is less";
  if (members.shared) return members.shared->run(members.rank, call, "MPI_Comm_split", missing);
  return code_of(api->run(members.group, &call), "MPI_Comm_split", missing);
}

// The group that JAX makes ahead of a computation that needs it (faces/mpi_trampoline/ahead.py). Its members alone
// come. Each device of this process that is one calls, in a thread of its own. *known: whether it is one.
int join_made_now(int first, int place, Handle* made, bool* known) {
  const std::string told = group_made_now(first, place);
  *known = !told.empty();
  const slipstream_api* api = engine();
  if (!*known) return MPI_SUCCESS;
  if (!api) return fail(MPI_ERR_OTHER, "MPI_Comm_split: " + why_no_engine());
  if (told.front() == '!') {
    // Other processes may wait for this one.
    const std::string why = "rank " + std::to_string(world()->rank) + " cannot make a group: " + told.substr(1);
    api->abort(world()->group, why.c_str());
    return fail(MPI_ERR_OTHER, why);
  }
  char* text = nullptr;
  auto communicator = std::make_unique<Communicator>();
  communicator->group = reinterpret_cast<slipstream_group*>(std::strtoull(told.c_str(), &text, 10));
  const std::vector<int32_t> ranks = ranks_of(++text), processes = processes_of(ranks);
  communicator->rank = place;
  communicator->size = static_cast<int>(ranks.size());
  if (processes.size() < ranks.size())
    communicator->shared = SharedMembers::of(communicator->group, ranks, world()->rank);
  const int code = meet(api, *communicator, processes.size() < ranks.size() ? listed(processes, ",") : text);
  if (code != MPI_SUCCESS) {
    communicator->failure = text_of(code);
  } else {
    made_before.add(text);
  }
  *made = reinterpret_cast<Handle>(communicator.release());
  return code;
}

}  // namespace

int meet_jax() noexcept {
  const Communicator* all = world();
  const slipstream_api* api = engine();
  if (!jax || !all || !api) return MPI_SUCCESS;
  const int64_t mine = std::strtoll(process_number().c_str(), nullptr, 10);
  std::vector<int64_t> numbers(static_cast<size_t>(all->size));
  const WithoutGil without;  // other threads of the program go on until the last process comes
  const int code = gather(api, *all, &mine, numbers.data(), 1, "MPI_Init",
                          "all processes must begin to use JAX's devices; those that come late have 300 seconds, or "
                          "SLIPSTREAM_TIMEOUT if that is less");
  if (code != MPI_SUCCESS) return code;
  std::string text;
  for (const int64_t number : numbers) text += std::to_string(number) + " ";
  watch_jax(text);
  return MPI_SUCCESS;
}

Communicator* world() noexcept { return all_ranks.load(std::memory_order_acquire); }

void used_by_jax(bool yes) noexcept { jax = yes; }

bool is_used_by_jax() noexcept { return jax; }

void count_call() noexcept { ++calls; }

int open_world() noexcept {
  const slipstream_api* api = engine();
  slipstream_group* group = nullptr;
  int code = code_of(api->group_world(&group), "MPI_Init");
  if (code != MPI_SUCCESS) return code;
  std::vector<int32_t> ranks(static_cast<size_t>(api->group_size(group)));
  for (size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank] = static_cast<int32_t>(rank);
  api->group_release(group);
  // A group of its own: the program's own operations on all ranks have another order.
  auto made = std::make_unique<Communicator>();
  code = make_group(api, ranks, made.get());
  if (code == MPI_SUCCESS) all_ranks.store(made.release(), std::memory_order_release);
  return code;
}

const Communicator* known(Handle handle) noexcept {
  if (handle == MPI_COMM_WORLD) return world();
  return is_constant(handle) ? nullptr : reinterpret_cast<const Communicator*>(handle);
}

const Communicator* communicator(Handle handle, const char* function, int* code) noexcept {
  const Communicator* found = known(handle);
  if (!engine()) {
    *code = fail(MPI_ERR_OTHER, std::string(function) + ": " + why_no_engine());
  } else if (!found) {
    const bool self = handle == MPI_COMM_SELF;
    *code = fail(MPI_ERR_COMM,
                 std::string(function) + (self ? ": MPI_COMM_SELF is not supported by slipstream's MPI library"
                                               : ": this is no communicator"));
  } else if (!found->failure.empty()) {
    *code = fail(MPI_ERR_COMM, found->failure);
  } else {
    return found;
  }
  return nullptr;
}

}  // namespace slipstream::mpi

using namespace slipstream::mpi;

SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_split(Handle comm, int color, int key, Handle* made) {
  int code = MPI_SUCCESS;
  *made = MPI_COMM_NULL;
  const Communicator* from = communicator(comm, "MPI_Comm_split", &code);
  bool known = false;
  if (from && is_used_by_jax()) code = join_made_now(color, key, made, &known);
  if (known && *made != MPI_COMM_NULL) return code;
  if (from && from->shared) code = fail(MPI_ERR_COMM, "MPI_Comm_split: not where a process has several devices");
  if (from && code == MPI_SUCCESS) code = split(*from, color, key, made);
  if (code != MPI_SUCCESS) *made = reinterpret_cast<Handle>(failed(text_of(code)));
  return code;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_dup(Handle comm, Handle* made) {
  int code = MPI_SUCCESS;
  const Communicator* from = communicator(comm, "MPI_Comm_dup", &code);
  return MPIABI_Comm_split(comm, 0, from ? from->rank : 0, made);
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_free(Handle* comm) {
  if (!is_constant(*comm)) {
    auto* freed = reinterpret_cast<Communicator*>(*comm);
    // After MPI_Finalize, and so maybe after Python's end, there is nobody to give the group back to.
    const slipstream_api* api = engine();
    if (api && freed->group) api->group_release(freed->group);
    delete freed;
  }
  *comm = MPI_COMM_NULL;
  return MPI_SUCCESS;
}

// XLA goes on with a communicator that has failed, whose rank and size it compares with its own: then the next call
// tells what is wrong.
SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_rank(Handle comm, int* rank) {
  int code = MPI_SUCCESS;
  communicator(comm, "MPI_Comm_rank", &code);
  const Communicator* found = known(comm);
  *rank = found ? found->rank : 0;
  return code;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_size(Handle comm, int* size) {
  int code = MPI_SUCCESS;
  communicator(comm, "MPI_Comm_size", &code);
  const Communicator* found = known(comm);
  *size = found ? found->size : 1;
  return code;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_test_inter(Handle, int* flag) {
  *flag = 0;
  return MPI_SUCCESS;
}

SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_get_attr(Handle, int keyval, void* value, int* flag) {
  static int largest_tag = 0x7fffffff;
  *flag = keyval == MPI_TAG_UB;
  if (*flag) *static_cast<int**>(value) = &largest_tag;
  return MPI_SUCCESS;
}

// Errors are returned, whatever handler is set.
SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_set_errhandler(Handle, Handle) { return MPI_SUCCESS; }

SLIPSTREAM_MPI_EXPORT int MPIABI_Comm_get_errhandler(Handle, Handle* handler) {
  *handler = MPI_ERRORS_RETURN;
  return MPI_SUCCESS;
}
