// The line in which works wait for memory that earlier ones beside reducers still need.
#include <algorithm>

#include "engine/texts.h"
#include "reducers/client.h"
#include "session/session.h"

namespace slipstream {

void ReducerClient::split(const WorkPtr& work) {
  std::string refused;
  {
    const std::lock_guard lock(mutex_);
    channel_ = work->request.channel;
    refused = objection(*work);
    if (refused.empty()) return wait_in_line(work);
  }
  session_.abort(refused);
  work->complete(session_.failure());
}

bool ReducerClient::holds(const WorkPtr& work) {
  std::string refused;
  {
    const std::lock_guard lock(mutex_);
    const bool ours = work->request.channel == channel_;
    if (ours && (passing_ > 0 || conflict(*work, begun_) != nullptr || conflict(*work, in_line_) != nullptr)) {
      ++passing_;
      wait_in_line(work);
      return true;
    }
    refused = objection(*work);
    if (refused.empty()) use(work, others_);
  }
  if (!refused.empty()) session_.abort(refused);  // that fails `work` too
  return false;
}

void ReducerClient::wait_in_line(const WorkPtr& work) {
  waiting_.push_back(work);
  in_line_.add(*work);
  begin_ready();
  if (work->request.timed && !waiting_.empty() && work->due() < waiting_due_) {
    waiting_due_ = work->due();
    session_.wake();  // nothing may be under way in its engine
  }
}

Time ReducerClient::tick(Time now) {
  const std::lock_guard lock(mutex_);
  if (now < waiting_due_) return waiting_due_;
  waiting_due_ = Time::max();
  for (const WorkPtr& work : waiting_) {
    if (!work->request.timed) continue;
    if (now < work->due()) {
      waiting_due_ = std::min(waiting_due_, work->due());
      continue;
    }
    std::string wait =
        work->request.signature.describe() + " has waited " + seconds_text(now - work->submitted) + " for its turn";
    if (const Work* other = conflict(*work, begun_)) wait += ", behind " + other->request.signature.describe();
    session_.engine().expire(wait);
    return Time::max();
  }
  return waiting_due_;
}

// `elsewhere`: of those of other groups, peers and tags alone.
const Work* ReducerClient::conflict(const Work& work, const MemoryInUse& others, bool elsewhere) {
  const Work* found = nullptr;
  others.conflicts(work, [&](const Work& other) {
    if (elsewhere && other.request.channel == work.request.channel) return true;
    if (!other.done()) found = &other;  // one that is done may not have told us yet
    return found == nullptr;
  });
  return found;
}

std::string ReducerClient::objection(const Work& work) const {
  const Work* other = conflict(work, begun_, true);
  if (other == nullptr) other = conflict(work, in_line_, true);
  if (other == nullptr && work.split) other = conflict(work, others_, true);
  if (other == nullptr) return {};
  return "rank " + std::to_string(options_.rank) + " called " + work.request.signature.describe() + " on memory that " +
         other->request.signature.describe() +
         " of another group, or with another rank or tag, still works on, and one of them writes it: wait for the "
         "first before the second is called";
}

class ReducerClient::End final : public Listener {
 public:
  End(ReducerClient& client, WorkPtr work, MemoryInUse& memory)
      : client_(client), work_(std::move(work)), memory_(memory) {}
  void work_done() override { client_.ended(*work_, memory_); }

 private:
  ReducerClient& client_;
  WorkPtr work_;
  MemoryInUse& memory_;
};

void ReducerClient::use(const WorkPtr& work, MemoryInUse& memory) {
  memory.add(*work);
  work->listen(std::make_unique<End>(*this, work, memory));
}

void ReducerClient::ended(const Work& work, MemoryInUse& memory) {
  const std::lock_guard lock(mutex_);
  memory.remove(work);
  begin_ready();
}

// The first in line begins.
void ReducerClient::leave_line(const WorkPtr& work, MemoryInUse& memory) {
  waiting_.pop_front();
  in_line_.remove(*work);
  work->copy_in.run();
  use(work, memory);
}

}  // namespace slipstream
