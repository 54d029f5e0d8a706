#include "engine/work.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/futex.h"

namespace slipstream {

namespace {

constexpr uint64_t kWorthAClock = 1 << 14;  // elements: the exact time costs nothing beside so many

// FNV-1a, 64 bits: stable across processes and machines.
class Hash {
 public:
  void bytes(const void* data, size_t n) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < n; ++i) h_ = (h_ ^ p[i]) * 0x100000001b3ULL;
  }
  void text(const std::string& s) {
    number(s.size());
    bytes(s.data(), s.size());
  }
  void number(uint64_t v) {
    h_ = (h_ ^ v) * 0x9e3779b97f4a7c15ULL;
    h_ ^= h_ >> 29;
  }
  uint32_t folded() const { return static_cast<uint32_t>(h_ ^ (h_ >> 32)); }

 private:
  uint64_t h_ = 0xcbf29ce484222325ULL;
};

}  // namespace

std::shared_ptr<Group> group_of(uint64_t id, std::vector<int> ranks, int rank, int size) {
  auto group = std::make_shared<Group>();
  group->id = id;
  const auto me = std::find(ranks.begin(), ranks.end(), rank);
  if (me == ranks.end()) throw Failure(Code::invalid, "this rank is not a member of the group");
  group->rank = static_cast<int>(me - ranks.begin());
  for (const int r : ranks)
    if (r < 0 || r >= size) throw Failure(Code::invalid, "the group names a rank that does not exist");
  group->ranks = std::move(ranks);
  group->places.assign(static_cast<size_t>(size), -1);
  for (size_t i = 0; i < group->ranks.size(); ++i)
    group->places[static_cast<size_t>(group->ranks[i])] = static_cast<int>(i);
  return group;
}

uint32_t Signature::hash() const {
  Hash h;
  h.text(operation);
  h.text(name);
  h.number(static_cast<uint64_t>(dtype));
  h.number(reduces ? static_cast<uint64_t>(op) + 1 : 0);
  h.number(count);
  h.number(static_cast<uint64_t>(static_cast<int64_t>(root)));
  h.number(chunk_bytes);
  h.number(extra);
  h.number(static_cast<uint64_t>(wire));
  return h.folded();
}

std::string Signature::describe() const {
  std::string kind = operation.substr(0, operation.find('/'));
  std::vector<std::string> parts;
  if (side != Side::none) {
    kind = (side == Side::sender ? "send" : "recv") + kind.substr(std::min(kind.find('['), kind.size()));
    const std::string other = other_side < 0 ? "any rank" : "rank " + std::to_string(other_side);
    parts.push_back((side == Side::sender ? "to " : "from ") + other);
    if (extra != 0) parts.push_back("tag=" + std::to_string(static_cast<int32_t>(extra)));
  }
  if (!name.empty()) parts.push_back("name='" + name + "'");
  const bool is_barrier = kind.starts_with("barrier");  // how it reduces its byte is nobody's business
  if (!is_barrier && !operation.ends_with(kWithSizes)) {
    parts.emplace_back(name_of(dtype));
    if (count > 0) parts.push_back(std::to_string(count) + (count == 1 ? " element" : " elements"));
  }
  if (reduces && !is_barrier) parts.push_back(std::string("op=") + name_of(op));
  if (wire != WireType::exact) parts.push_back(std::string("wire=") + name_of(wire));
  if (root >= 0) parts.push_back("root=" + std::to_string(root));
  std::string text = kind + "(";
  for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? ", " : "") + parts[i];
  return text + ")";
}

Work::~Work() {
  for (Listener* next = listeners_.load(); next != nullptr;) {
    const std::unique_ptr<Listener> untold(next);
    next = untold->next_;
  }
  delete title_.load();
}

void Work::entitle(std::string title) {
  auto ours = std::make_unique<const std::string>(std::move(title));
  const std::string* none = nullptr;
  if (title_.compare_exchange_strong(none, ours.get(), std::memory_order_acq_rel)) static_cast<void>(ours.release());
}

// The listener is in the list before this looks at the state, and complete() sets the state before it looks at the
// list: one of them sees the other.
void Work::listen(std::unique_ptr<Listener> listener) {
  Listener* added = listener.release();
  added->next_ = listeners_.load(std::memory_order_relaxed);
  while (!listeners_.compare_exchange_weak(added->next_, added, std::memory_order_seq_cst)) {
  }
  if (state_.load(std::memory_order_seq_cst) != kPending) tell_listeners();
}

void Work::tell_listeners() {
  for (Listener* next = listeners_.exchange(nullptr, std::memory_order_seq_cst); next != nullptr;) {
    const std::unique_ptr<Listener> told(next);
    next = told->next_;
    told->work_done();
  }
}

bool Work::sleep_until_done(Time deadline) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (state_.load(std::memory_order_seq_cst) == kPending) {
    if (!futex_wait(state_, kPending, deadline)) break;
  }
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  return done();
}

int Work::peer() const {
  const Plan* plan = request.plan.get();
  return plan != nullptr && plan->peers().size() == 1 ? plan->peers().front().rank : -1;
}

void Work::complete(const Error& error) {
  if (done()) return;
  error_ = error;
  if (!error_) copy_out.run();
  finished = counters != nullptr || request.spaces[1].count >= kWorthAClock ? now() : coarse_now();
  if (counters != nullptr) counters->end(*this, !error_);
  state_.store(kDone, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(state_, INT_MAX);
  if (listeners_.load(std::memory_order_seq_cst) != nullptr) tell_listeners();
}

}  // namespace slipstream
