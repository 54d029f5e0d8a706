#include "mxnet/pushes.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/fd.h"
#include "capi/table.h"
#include "mxnet/operation.h"

namespace slipstream::mxnet {

namespace {

const slipstream_api& table() { return *capi::table(SLIPSTREAM_API_VERSION); }

Api the_api;

// What this process has pushed. A forked child has pushed nothing, and a thread of its parent may have held the locks.
struct Pushes {
  // Two pushes of one array must come to the engine in the order of their places: else each would wait for the other.
  std::mutex order;
  std::mutex mutex;
  std::condition_variable none;
  size_t in_flight = 0;
  Failures failures;
  const uint32_t forks = slipstream::forks();
};

// Never freed: threads may outlive static variables.
Pushes& pushes() {
  static std::atomic<Pushes*> current{nullptr};
  Pushes* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->forks != forks()) {
    auto* const made = new Pushes;
    if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
    delete made;
  }
  return *found;
}

}  // namespace

struct JobLine::Source {
  std::mutex mutex;
  slipstream_group* group;  // a reference, until the job is left

  slipstream_group* find() {
    const std::lock_guard lock(mutex);
    if (group == nullptr) throw Failure(Code::aborted, "the job was left before this operation was started");
    table().group_retain(group);
    return group;
  }
};

JobLine::JobLine(slipstream_group* group)
    : source_(new Source{{}, group}),
      line_(std::make_shared<PushLine>([source = source_] { return source->find(); })) {}

void JobLine::leave() {
  slipstream_group* gone = nullptr;
  {
    const std::lock_guard lock(source_->mutex);
    gone = std::exchange(source_->group, nullptr);
  }
  if (gone == nullptr) return;
  line_->forget();
  table().group_release(gone);
}

void JobLine::check() const {
  slipstream_group* const group = source_->find();
  const std::shared_ptr<Session> session = group->session;
  table().group_release(group);
  if (!has_ended(*session)) return;
  const Error error = session->failure();
  throw error ? Failure(error) : Failure(Code::aborted, "this process has left the job");
}

std::string prepare(const char* library) { return look_up(library, the_api); }

bool push(JobLine& line, const Pushed& pushed) {
  line.check();
  const std::shared_ptr<Operation> operation = Operation::make(the_api, line.line(), pushed);
  if (operation == nullptr) return false;
  const std::lock_guard lock(pushes().order);
  line.line()->take_place(operation);
  operation->push();
  return true;
}

void count_flight(int more) {
  Pushes& all = pushes();
  const std::lock_guard lock(all.mutex);
  all.in_flight += static_cast<size_t>(more);
  if (all.in_flight == 0) all.none.notify_all();
}

void count_failure(const std::string& text) {
  Pushes& all = pushes();
  const std::lock_guard lock(all.mutex);
  all.failures = {all.failures.count + 1, text};
}

Failures failures() {
  Pushes& all = pushes();
  const std::lock_guard lock(all.mutex);
  return all.failures;
}

bool drained(double seconds) {
  Pushes& all = pushes();
  std::unique_lock lock(all.mutex);
  return all.none.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return all.in_flight == 0; });
}

}  // namespace slipstream::mxnet
