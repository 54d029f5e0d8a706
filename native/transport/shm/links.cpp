#include "transport/shm/links.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "transport/shm/link.h"

namespace slipstream {

namespace {

constexpr size_t kFewRanks = 8;  // whose links are all looked at in each turn

constexpr uint64_t bit(size_t mark) { return uint64_t{1} << mark % 64; }

}  // namespace

void ShmLinks::expect(size_t ranks) {
  if (ranks <= kFewRanks) return;
  bell_.ask_for_marks();
  of_mark_.resize(Bell::kMarks);
}

void ShmLinks::add(ShmLink* link) {
  all_.push_back(link);
  if (!of_mark_.empty()) of_mark_[Bell::mark_of(link->peer())].push_back(link);
}

void ShmLinks::remove(ShmLink* link) {
  std::erase(all_, link);
  std::erase(blocked_, link);
  if (!of_mark_.empty()) std::erase(of_mark_[Bell::mark_of(link->peer())], link);
}

void ShmLinks::look_at(const ShmLink& link) {
  const size_t mark = Bell::mark_of(link.peer());
  due_[mark / 64] |= bit(mark);
}

void ShmLinks::wait_for_room(ShmLink& link) {
  if (link.congested() && std::ranges::find(blocked_, &link) == blocked_.end()) blocked_.push_back(&link);
}

bool ShmLinks::poll() {
  bool moved = false;
  if (of_mark_.empty())
    for (size_t i = 0; i < all_.size(); ++i) moved |= all_[i]->poll();
  else
    moved = poll_marked();
  std::erase_if(blocked_, [](const ShmLink* link) { return !link->congested(); });
  return moved;
}

bool ShmLinks::poll_marked() {
  bool moved = false;
  for (size_t i = 0; i < blocked_.size(); ++i) moved |= blocked_[i]->poll();
  for (size_t word = 0; word < due_.size(); ++word)
    for (uint64_t marks = std::exchange(due_[word], 0) | bell_.take_marks(word); marks != 0; marks &= marks - 1)
      moved |= poll_mark(64 * word + static_cast<size_t>(std::countr_zero(marks)));
  return moved;
}

bool ShmLinks::poll_mark(size_t mark) {
  const auto& links = of_mark_[mark];
  bool moved = false, more = false;
  for (size_t i = 0; i < links.size(); ++i) {
    const size_t before = links.size();
    moved |= links[i]->poll();
    more |= links.size() < before || links[i]->pending();
  }
  if (more) due_[mark / 64] |= bit(mark);
  return moved;
}

bool ShmLinks::pending() const {
  if (of_mark_.empty()) return std::ranges::any_of(all_, [](const ShmLink* link) { return link->pending(); });
  return bell_.any_marks() || std::ranges::any_of(due_, [](uint64_t marks) { return marks != 0; });
}

bool ShmLinks::congested() const {
  return std::ranges::any_of(blocked_, [](const ShmLink* link) { return link->congested(); });
}

}  // namespace slipstream
