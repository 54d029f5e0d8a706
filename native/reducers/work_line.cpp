#include "reducers/work_line.h"

#include <algorithm>

#include "engine/texts.h"
#include "reducers/when_done.h"

namespace slipstream {

bool WorkLine::must_wait(const Work& work) const {
  if (work.request.channel != channel_) return false;
  return passing_ > 0 || conflict(work, begun_) != nullptr || conflict(work, in_line_) != nullptr;
}

void WorkLine::push(const WorkPtr& work) {
  waiting_.push_back(work);
  in_line_.add(*work);
  if (!work->split) ++passing_;
}

WorkPtr WorkLine::front() const {
  if (waiting_.empty()) return nullptr;
  const WorkPtr& first = waiting_.front();
  if (conflict(*first, begun_) != nullptr) return nullptr;
  return first->split && conflict(*first, others_) != nullptr ? nullptr : first;
}

void WorkLine::pop() {
  const WorkPtr work = std::move(waiting_.front());
  waiting_.pop_front();
  in_line_.remove(*work);
  if (work->split)
    work->begun.store(true);
  else
    --passing_;
  work->copy_in.run();
  use(work, work->split ? begun_ : others_);
}

void WorkLine::use(const WorkPtr& work, MemoryInUse& memory) {
  memory.add(*work);
  when_done(work, [this, &work = *work, &memory] {
    const std::lock_guard lock(context_.mutex);
    memory.remove(work);
    context_.moved();
  });
}

bool WorkLine::is_due_first(const Work& work) {
  if (!work.request.timed || waiting_.empty() || work.due() >= due_) return false;
  due_ = work.due();
  return true;
}

const Work* WorkLine::overdue(Time now) {
  if (now < due_) return nullptr;
  due_ = Time::max();
  for (const WorkPtr& work : waiting_) {
    if (!work->request.timed) continue;
    if (now >= work->due()) return work.get();
    due_ = std::min(due_, work->due());
  }
  return nullptr;
}

std::string WorkLine::describe_wait(const Work& work, Time now) const {
  return work.request.signature.describe() + " has waited " + seconds_text(now - work.submitted) + " for its turn" +
         behind(work);
}

std::string WorkLine::describe_late(const Work& work, Time now) const {
  return "has waited " + seconds_text(now - work.submitted) + " for the turn of " + work.request.signature.describe() +
         behind(work);
}

std::string WorkLine::behind(const Work& work) const {
  const Work* other = conflict(work, begun_);
  return other == nullptr ? "" : ", behind " + other->request.signature.describe();
}

void WorkLine::fail(const Error& error) {
  for (const WorkPtr& work : waiting_) work->complete(error);
  waiting_.clear();
  in_line_.clear();
}

// `elsewhere`: of those of other groups, peers and tags alone.
const Work* WorkLine::conflict(const Work& work, const MemoryInUse& others, bool elsewhere) {
  const Work* found = nullptr;
  others.conflicts(work, [&](const Work& other) {
    if (elsewhere && other.request.channel == work.request.channel) return true;
    if (!other.done()) found = &other;  // one that is done may not have told us yet
    return found == nullptr;
  });
  return found;
}

std::string WorkLine::objection(const Work& work) const {
  const Work* other = conflict(work, begun_, true);
  if (other == nullptr) other = conflict(work, in_line_, true);
  if (other == nullptr && work.split) other = conflict(work, others_, true);
  if (other == nullptr) return {};
  return "rank " + std::to_string(context_.workers.options().rank) + " called " + work.request.signature.describe() +
         " on memory that " + other->request.signature.describe() +
         " of another group, or with another rank or tag, still works on, and one of them writes it: wait for the "
         "first before the second is called";
}

}  // namespace slipstream
