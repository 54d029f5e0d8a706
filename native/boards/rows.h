// The shared memory of a board, and the rules by which the ranks of a group use it.
//
// The operations of a group are counted from 1, on every rank alike. For each operation a rank *publishes* its number
// in its row, with a contribution (a *post*, which carries the number too) or without one: then it takes this
// operation's messages. An operation is done on the board if all ranks have posted, and all posts have the same hash.
// Else every rank runs it by messages.
//
//  1. A rank waits until it has seen what all others published for the operation, or until one of them shows that the
//     operation goes by messages. What it sees does not change as long as it looks (3, 4). So all decide alike.
//  2. A rank publishes in order. It posts before it publishes, so who sees a number published without its post knows
//     that there is none. A post alone tells as much as both.
//  3. There are two posts in a row, for even and for odd numbers. A rank overwrites one only when all others have
//     *passed* the operation of the old one: they have published a later number, and do not look at it any more.
//  4. A rank that publishes a number while it still looks for an earlier one (another thread has called; or the call
//     was interrupted) says before that which number it looks for: it is *held*.
//  5. Nobody posts before all ranks have *joined*: a rank joins once, with the number of its next operation.
//  6. In a broadcast the root decides for all: it posts last, and only if all others have posted with its hash. Else it
//     publishes without a post. The others wait for the root alone.
//
// A rank that has looked for long asks the missing ones to wake it: it *claims* them, counts itself as a sleeper, and
// looks at their rows once more. Who publishes looks at the sleepers afterwards, and takes the claims on itself.
// Both use sequentially consistent order: either the sleeper sees the number, or the other one sees the claim. A claim
// is taken once, by exchange: by whom it is about, who then owes a message, or back by whose it is.
//
// Zero memory is a board that nobody has joined. What other ranks have written is not trusted: a size that is read is
// bounded.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace slipstream {

class BoardRows {
 public:
  static constexpr int kMostRanks = 64;
  static constexpr size_t kMostBytes = 16 << 10;  // of a contribution, in any group
  static constexpr size_t kAllBytes = 64 << 10;   // of the contributions of all ranks
  static constexpr size_t kSmallBytes = 48;       // that fit into a post's own line

  static constexpr bool fits(int size) { return size >= 2 && size <= kMostRanks; }
  // Bytes of a contribution at most.
  static constexpr size_t room(int size) {
    return size < 4 ? kMostBytes : kAllBytes / static_cast<size_t>(size) / 64 * 64;
  }
  // Bytes of a board. Its address is a multiple of 64.
  static size_t bytes(int size);

  // `memory` lives as long as this.
  BoardRows(std::byte* memory, int rank, int size) : memory_(memory), rank_(rank), size_(size) {}

  enum class Look : uint8_t { waits, all, messages };
  struct Wake {  // a message that this rank owes to another one, which has claimed it
    int rank;
    uint64_t number;
    uint32_t tag;
  };

  // This rank takes part from operation `number` on.
  void join(uint64_t number);
  // Of operation `number`, which is this rank's next one. False as long as not all ranks take part in it, or while the
  // place of its post is still in use.
  bool may_post(uint64_t number);
  // Where the contribution goes.
  std::byte* place(uint64_t number, size_t bytes) { return payload(rank_, number, bytes); }
  void post(uint64_t number, uint64_t hash);
  // Without a contribution. `held`: the operation that this rank still looks for; 0: none.
  void pass(uint64_t number, uint64_t held);

  // What has become of the operation that this rank has posted for. Once it does not wait, that stays. `decides`: the
  // only rank to be looked at; -1: all others are.
  void look_for(uint64_t number, uint64_t hash, int decides = -1);
  Look look();
  // Another rank's contribution, when all have posted.
  const std::byte* posted(int rank, uint64_t number, size_t bytes) { return payload(rank, number, bytes); }
  // This rank does not look any more.
  void let_go();

  // To be called after post() or pass(), before the rank does anything else for long. True: take_claims() then.
  bool any_sleeps();
  // Whom this rank has to wake, as it has published `number`.
  std::vector<Wake> take_claims(uint64_t number);
  // Ranks that have not shown what they do. Group numbers.
  std::vector<int> missing() const;
  // The rank will wake this one when it has published `number` (true); or it has.
  bool claim(int rank, uint64_t number, uint32_t tag);
  // What was claimed has come.
  void woken() { sleepers().fetch_sub(1, std::memory_order_relaxed); }

 private:
  struct alignas(64) Post {
    std::atomic<uint64_t> number;
    uint64_t hash;
    std::array<std::byte, kSmallBytes> small;
  };
  struct alignas(64) Row {
    std::atomic<uint64_t> published;
    std::atomic<uint64_t> joined;  // from this number on; 0: not yet
    std::atomic<uint64_t> held;    // the number this rank still looks for; 0: the one after `published`
    std::array<Post, 2> posts;
  };
  static_assert(sizeof(Post) == 64 && sizeof(Row) == 192);

  std::atomic<uint32_t>& sleepers() { return *reinterpret_cast<std::atomic<uint32_t>*>(memory_); }
  Row& row(int rank) { return reinterpret_cast<Row*>(memory_ + 64)[rank]; }
  // What `waiter` asks of `rank`: the low 31 bits of the number, a bit that is set, and the tag; 0: nothing.
  std::atomic<uint64_t>& claim_of(int waiter, int rank);
  std::byte* payload(int rank, uint64_t number, size_t bytes);
  bool everyone_joined(uint64_t number);
  // Reads a rank's row for the number that is looked for.
  Look look_at(int rank);

  std::byte* memory_;
  int rank_;
  int size_;
  bool everyone_ = false;                    // has joined
  uint64_t number_ = 0;                      // that is looked for
  uint64_t hash_ = 0;                        // of its post
  uint64_t missing_ = 0;                     // a bit for each rank
  std::array<uint64_t, 2> own_{};            // the numbers of this rank's posts
  std::array<uint64_t, kMostRanks> past_{};  // a rank looks for no operation below this one
};

}  // namespace slipstream
