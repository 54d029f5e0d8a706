#include "engine/channels.h"

#include <algorithm>
#include <utility>

namespace slipstream {

namespace {

constexpr size_t kSmallBytes = 4 << 10;  // of a work that begins at once, whatever its channel is busy with
constexpr int kBulkAtOnce = 2;           // bulk works of one channel, as urgent, under way together

bool is_small(const Request& request) {
  if (request.ragged) return true;  // its messages are short, however much room there is for them
  uint64_t most = 0;
  for (const Layout& space : request.spaces)
    most = std::max(most, space.offsets.empty() ? space.count : space.offsets.back());
  return most * size_of(dtype_of(request)) <= kSmallBytes;
}

}  // namespace

Channels::Overlap Channels::overlap(const Work& work) const {
  Overlap found;
  const auto own = channels_.find(work.request.channel);
  // Where all works are of one channel, the first one that conflicts is enough.
  const bool may_be_elsewhere = works_ > (own == channels_.end() ? 0 : own->second.works_);
  const auto see = [&](const Work& other) {
    found.any = true;
    if (other.request.channel != work.request.channel) found.elsewhere = &other;
    return may_be_elsewhere && found.elsewhere == nullptr;
  };
  begun_.conflicts(work, see);
  if (found.elsewhere == nullptr && (may_be_elsewhere || !found.any)) in_line_.conflicts(work, see);
  return found;
}

Channels::Channel& Channels::at(uint64_t id) {
  const auto [it, created] = channels_.try_emplace(id);
  if (created) in_turn_.push_back(id);
  return it->second;
}

bool Channels::enter(Channel& channel, const WorkPtr& work, bool overlaps) {
  ++channel.works_;
  ++works_;
  // A small work never waits behind bulk; but offers go out in order.
  const bool offers = work->request.part && !work->request.part->offer.empty();
  if (overlaps || offers) work->request.urgency = 0;
  work->entry = ++channel.entries_;
  if (!overlaps && !offers && is_small(work->request)) {
    begun_.add(*work);
    return true;
  }
  in_line_.add(*work);
  if (work->request.timed) due_ = std::min(due_, work->due());
  channel.urgent_ += work->request.urgency != 0;
  channel.waiting_.push_back(work);
  return false;
}

// False while a work that has begun needs the same memory. Those in line before `work` have begun.
bool Channels::may_begin(const Work& work) const {
  bool may = true;
  begun_.conflicts(work, [&](const Work&) { return may = false; });
  return may;
}

void Channels::put_back(Channel& channel, WorkPtr work) {
  begun_.remove(*work);
  in_line_.add(*work);
  channel.urgent_ += work->request.urgency != 0;
  channel.waiting_.push_front(std::move(work));
}

void Channels::leave(Channel& channel, const Work& work) {
  begun_.remove(work);
  --channel.works_;
  --works_;
}

WorkPtr Channels::next(Channel& channel) {
  auto& waiting = channel.waiting_;
  if (waiting.empty()) return nullptr;
  const auto take = [&](std::deque<WorkPtr>::iterator place) {
    WorkPtr work = std::move(*place);
    waiting.erase(place);
    channel.urgent_ -= work->request.urgency != 0;
    in_line_.remove(*work);
    begun_.add(*work);
    return work;
  };
  const auto running = [&](auto holds_up) { return std::ranges::count_if(channel.bulk_, holds_up); };
  // Of equals the one that came first. Works that are as urgent hold it up. Without urgencies nobody need look at all.
  const auto urgency_of = [](const WorkPtr& work) { return work->request.urgency; };
  const auto first = channel.urgent_ == 0 ? waiting.begin() : std::ranges::max_element(waiting, {}, urgency_of);
  const int urgency = (*first)->request.urgency;
  if (running([&](const auto& other) { return other.urgency >= urgency; }) < kBulkAtOnce && may_begin(**first))
    return take(first);
  // The oldest is held up by older ones alone. So the oldest work that is not done has begun wherever it was called,
  // and no urgency makes ranks wait for each other.
  const auto oldest = waiting.begin();
  const uint64_t entry = (*oldest)->entry;
  if (running([&](const auto& other) { return other.entry < entry; }) < kBulkAtOnce && may_begin(**oldest))
    return take(oldest);
  return nullptr;
}

void Channels::remember(Channel& channel, uint32_t seq, const Signature& signature, uint32_t hash) {
  channel.used_ = true;
  channel.newest_ = std::max(channel.newest_, seq);
  channel.history_.push_back({seq, signature, coarse_now(), hash});
  if (channel.history_.size() > kHistory) channel.history_.pop_front();
}

void Channels::ended(Channel& channel, const Work& work, bool bulk) {
  remember(channel, work.request.seq, work.request.signature, work.request.signature_hash);
  if (bulk) std::erase_if(channel.bulk_, [&](const auto& running) { return running.work == &work; });
  leave(channel, work);
}

// A program may use each tag and each group once, without end. The ledger's numbers stay: both sides count.
void Channels::forget_idle() {
  for (int looks = 0; looks < 4 && channels_.size() > kChannels; ++looks) {  // each work adds at most one channel
    const uint64_t id = in_turn_.front();
    in_turn_.pop_front();
    const auto it = channels_.find(id);
    Channel& channel = it->second;
    const bool used = std::exchange(channel.used_, false);
    if (used || channel.works_ != 0)
      in_turn_.push_back(id);
    else
      channels_.erase(it);
  }
}

std::vector<WorkPtr> Channels::clear() {
  std::vector<WorkPtr> works;
  for (auto& [id, channel] : channels_) {
    channel.works_ -= channel.waiting_.size();
    works_ -= channel.waiting_.size();
    for (WorkPtr& work : channel.waiting_) works.push_back(std::move(work));
    channel.waiting_.clear();
    channel.urgent_ = 0;
    channel.bulk_.clear();
  }
  begun_.clear();
  in_line_.clear();
  return works;
}

size_t Channels::waiting() const {
  size_t count = 0;
  for (const auto& [id, channel] : channels_) count += channel.waiting_.size();
  return count;
}

const Work* Channels::overdue(Time now) {
  if (now < due_) return nullptr;
  due_ = Time::max();
  const Work* found = nullptr;
  each_waiting([&](const Work& work) {
    if (!work.request.timed) return;
    const Time due = work.due();
    if (now >= due && found == nullptr) found = &work;
    due_ = std::min(due_, due);
  });
  return found;
}

const Channels::Past* Channels::past(uint64_t id, uint32_t seq) const {
  const auto it = channels_.find(id);
  if (it == channels_.end() || seq > it->second.newest_) return nullptr;
  const auto& history = it->second.history_;
  const auto found = std::find_if(history.begin(), history.end(), [seq](const Past& past) { return past.seq == seq; });
  return found == history.end() ? nullptr : &*found;
}

const Channels::Past* Channels::latest(uint64_t id) const {
  const auto it = channels_.find(id);
  if (it == channels_.end() || it->second.history_.empty()) return nullptr;
  return &*std::max_element(it->second.history_.begin(), it->second.history_.end(),
                            [](const Past& a, const Past& b) { return a.seq < b.seq; });
}

}  // namespace slipstream
