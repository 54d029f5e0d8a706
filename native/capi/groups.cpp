// Handles of groups: one for each group of the process that C knows.
#include <unordered_map>

#include "base/fd.h"
#include "capi/handle.h"

namespace slipstream::capi {

namespace {

struct Known {
  std::mutex mutex;
  std::unordered_map<uint64_t, slipstream_group*> handles;  // by id; no references of ours
  slipstream_group* world = nullptr;                        // a reference
  const uint32_t forks = slipstream::forks();
};

std::atomic<Finder> the_finder{nullptr};
std::atomic<GroupMaker> the_group_maker{nullptr};

// Never freed. A forked child is no rank of its parent's job, and a thread of the parent may have held the lock.
Known& known() {
  static std::atomic<Known*> current{nullptr};
  Known* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->forks != forks()) {
    auto* const made = new Known;
    if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
    delete made;
  }
  return *found;
}

// A new reference; null if the last one is being given back.
slipstream_group* retained(slipstream_group* group) {
  uint32_t references = group->references.load(std::memory_order_relaxed);
  while (references != 0)
    if (group->references.compare_exchange_weak(references, references + 1, std::memory_order_relaxed)) return group;
  return nullptr;
}

}  // namespace

void set_finders(Finder finder, GroupMaker group_maker) {
  the_finder.store(finder, std::memory_order_release);
  the_group_maker.store(group_maker, std::memory_order_release);
}

slipstream_group* handle_of(const std::shared_ptr<Session>& session, const std::shared_ptr<const Group>& group,
                            std::unique_ptr<Maker> maker) {
  Known& all = known();
  auto made = std::make_unique<slipstream_group>(session, group, std::move(maker));
  const std::lock_guard lock(all.mutex);
  slipstream_group*& place = all.handles[group->id];
  if (place != nullptr && place->session == session)
    if (slipstream_group* const found = retained(place)) return found;
  return place = made.release();
}

slipstream_group* find_group(uint64_t id) {
  Known& all = known();
  {
    const std::lock_guard lock(all.mutex);
    if (id == 0) {
      // A job that has failed may have been replaced.
      if (all.world != nullptr && !has_ended(*all.world->session)) return retained(all.world);
    } else if (const auto found = all.handles.find(id); found != all.handles.end()) {
      if (slipstream_group* const group = retained(found->second)) return group;
    }
  }
  const Finder finder = the_finder.load(std::memory_order_acquire);
  if (finder == nullptr) throw Failure(Code::invalid, "there is no job: call slipstream.init() in Python first");
  slipstream_group* const group = finder(id);
  if (id != 0) return group;
  slipstream_group* before = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    before = std::exchange(all.world, retained(group));
  }
  release(before);
  return group;
}

slipstream_group* make_group(const int32_t* ranks, uint32_t n) {
  const GroupMaker maker = the_group_maker.load(std::memory_order_acquire);
  if (maker == nullptr) throw Failure(Code::invalid, "there is no job: call slipstream.init() in Python first");
  return maker(ranks, n);
}

void retain(slipstream_group* group) { group->references.fetch_add(1, std::memory_order_relaxed); }

void release(slipstream_group* group) {
  if (group == nullptr || group->references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  Known& all = known();
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.handles.find(group->group->id);
    if (found != all.handles.end() && found->second == group) all.handles.erase(found);
  }
  delete group;
}

void forget_kept(uint64_t id) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.handles.find(id); found != all.handles.end()) found->second->kept.clear();
}

void forget_world(uint64_t id) {
  Known& all = known();
  slipstream_group* gone = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    if (all.world != nullptr && all.world->group->id == id) gone = std::exchange(all.world, nullptr);
  }
  release(gone);
}

}  // namespace slipstream::capi
