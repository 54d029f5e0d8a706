#include "boards/rows.h"

#include <algorithm>

namespace slipstream {

namespace {

constexpr uint64_t kLow31 = (uint64_t{1} << 31) - 1;
constexpr uint64_t kSet = uint64_t{1} << 32;

constexpr size_t lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr uint64_t claim_text(uint64_t number, uint32_t tag) { return (number & kLow31) << 33 | kSet | tag; }

}  // namespace

size_t BoardRows::bytes(int size) {
  const auto n = static_cast<size_t>(size);
  return 64 + n * sizeof(Row) + lines(n * n * sizeof(uint64_t)) + 2 * n * room(size);
}

std::atomic<uint64_t>& BoardRows::claim_of(int waiter, int rank) {
  auto* claims = reinterpret_cast<std::atomic<uint64_t>*>(&row(size_));
  return claims[static_cast<size_t>(rank) * static_cast<size_t>(size_) + static_cast<size_t>(waiter)];
}

std::byte* BoardRows::payload(int rank, uint64_t number, size_t bytes) {
  if (bytes <= kSmallBytes) return row(rank).posts[number & 1].small.data();
  const auto n = static_cast<size_t>(size_);
  std::byte* begin = reinterpret_cast<std::byte*>(&row(size_)) + lines(n * n * sizeof(uint64_t));
  return begin + (2 * static_cast<size_t>(rank) + (number & 1)) * room(size_);
}

// ---- publishing

void BoardRows::join(uint64_t number) {
  row(rank_).published.store(number - 1, std::memory_order_release);
  row(rank_).joined.store(number, std::memory_order_release);
}

bool BoardRows::everyone_joined(uint64_t number) {
  if (everyone_) return true;  // later operations, too
  for (int r = 0; r < size_; ++r) {
    const uint64_t joined = row(r).joined.load(std::memory_order_acquire);
    if (joined == 0 || joined > number) return false;
  }
  return everyone_ = true;
}

bool BoardRows::may_post(uint64_t number) {
  if (!everyone_joined(number)) return false;
  const uint64_t old = own_[number & 1];
  if (old == 0) return true;
  for (int r = 0; r < size_; ++r) {
    uint64_t& past = past_[static_cast<size_t>(r)];
    if (r == rank_ || past > old) continue;
    past = row(r).published.load(std::memory_order_acquire);
    const uint64_t held = row(r).held.load(std::memory_order_acquire);
    if (held != 0) past = std::min(past, held);
    if (past <= old) return false;
  }
  return true;
}

void BoardRows::post(uint64_t number, uint64_t hash) {
  Post& own = row(rank_).posts[number & 1];
  own.hash = hash;
  own.number.store(number, std::memory_order_release);
  own_[number & 1] = number;
  row(rank_).published.store(number, std::memory_order_release);
}

void BoardRows::pass(uint64_t number, uint64_t held) {
  if (held != 0) row(rank_).held.store(held, std::memory_order_release);
  row(rank_).published.store(number, std::memory_order_release);
}

// ---- looking

void BoardRows::look_for(uint64_t number, uint64_t hash, int decides) {
  number_ = number;
  hash_ = hash;
  const uint64_t everyone = size_ == 64 ? ~uint64_t{0} : (uint64_t{1} << size_) - 1;
  missing_ = decides >= 0 ? uint64_t{1} << decides : everyone & ~(uint64_t{1} << rank_);
}

BoardRows::Look BoardRows::look_at(int rank) {
  Row& other = row(rank);
  Post& post = other.posts[number_ & 1];
  if (post.number.load(std::memory_order_acquire) != number_) {
    if (other.published.load(std::memory_order_acquire) < number_) return Look::waits;
    if (post.number.load(std::memory_order_acquire) != number_) return Look::messages;
  }
  if (post.hash != hash_) return Look::messages;
  past_[static_cast<size_t>(rank)] = number_;
  return Look::all;
}

BoardRows::Look BoardRows::look() {
  for (uint64_t left = missing_; left != 0; left &= left - 1) {
    const int rank = std::countr_zero(left);
    const Look found = look_at(rank);
    if (found == Look::messages) return found;
    if (found == Look::all) missing_ &= ~(uint64_t{1} << rank);
  }
  return missing_ == 0 ? Look::all : Look::waits;
}

void BoardRows::let_go() {
  // What was read has been read: release.
  if (row(rank_).held.load(std::memory_order_relaxed) != 0) row(rank_).held.store(0, std::memory_order_release);
}

// ---- sleeping, and waking

bool BoardRows::any_sleeps() {
  row(rank_).published.fetch_add(0, std::memory_order_seq_cst);
  return sleepers().load(std::memory_order_seq_cst) != 0;
}

std::vector<BoardRows::Wake> BoardRows::take_claims(uint64_t number) {
  std::vector<Wake> wakes;
  wakes.reserve(static_cast<size_t>(size_));  // before a claim is taken
  for (int waiter = 0; waiter < size_; ++waiter) {
    std::atomic<uint64_t>& claim = claim_of(waiter, rank_);
    uint64_t found = claim.load(std::memory_order_seq_cst);
    const uint64_t ago = (number - (found >> 33)) & kLow31;  // operations
    if (waiter == rank_ || found == 0 || ago > kLow31 / 2 || ago >= number) continue;
    if (claim.compare_exchange_strong(found, 0, std::memory_order_seq_cst))
      wakes.push_back({waiter, number - ago, static_cast<uint32_t>(found)});
  }
  return wakes;
}

std::vector<int> BoardRows::missing() const {
  std::vector<int> ranks;
  for (uint64_t left = missing_; left != 0; left &= left - 1) ranks.push_back(std::countr_zero(left));
  return ranks;
}

bool BoardRows::claim(int rank, uint64_t number, uint32_t tag) {
  std::atomic<uint64_t>& mine = claim_of(rank_, rank);
  const uint64_t text = claim_text(number, tag);
  mine.store(text, std::memory_order_seq_cst);
  sleepers().fetch_add(1, std::memory_order_seq_cst);
  if (row(rank).published.load(std::memory_order_seq_cst) < number) return true;
  if (mine.exchange(0, std::memory_order_seq_cst) == 0) return true;  // it has just been taken
  woken();
  return false;
}

}  // namespace slipstream
