// Entries reach the ring in the order in which they were sent, whether or not there was room.
#include <memory>
#include <string>
#include <vector>

#include "tests/check.h"
#include "transport/shm/entry_queue.h"

namespace {

using namespace slipstream;

struct Ends {
  std::unique_ptr<Ring::Shared> shared = std::make_unique<Ring::Shared>();
  std::vector<std::byte> memory;
  EntryQueue out;
  Ring in;

  explicit Ends(size_t bytes = Ring::kMost) : memory(bytes), in(shared.get(), memory.data(), bytes) { out.open(in); }

  // The values of all entries that are in the ring, whose bodies have to be what body() makes of them.
  std::vector<uint64_t> take() {
    std::vector<uint64_t> values;
    Ring::EntryHeader entry{};
    const std::byte* body = nullptr;
    while (in.peek(entry, body) == Ring::Peek::entry) {
      const std::vector<std::byte> expected = body_of(entry.value);
      CHECK_EQ(entry.size, sizeof(entry) + expected.size());
      CHECK(std::equal(expected.begin(), expected.end(), body));
      values.push_back(entry.value);
      in.pop();
    }
    return values;
  }

  static std::vector<std::byte> body_of(uint64_t value) {
    return std::vector<std::byte>(value * 997 % 9000, static_cast<std::byte>(value));
  }

  bool push(uint64_t value, bool hold = false, uint32_t kind = 1) {
    const auto body = body_of(value);
    const size_t half = body.size() / 2;
    return out.push(kind, value, {body.data(), half}, {body.data() + half, body.size() - half}, hold);
  }
};

}  // namespace

TEST(what_has_no_room_waits_and_keeps_its_order) {
  for (size_t bytes = Ring::kLeast; bytes <= Ring::kMost; bytes *= 2) {
    Ends ends(bytes);
    bool waited = false;
    for (uint64_t value = 0; value < 200; ++value) waited |= !ends.push(value);
    CHECK(waited);  // 200 bodies of 4500 bytes are more than a ring holds
    std::vector<uint64_t> got;
    for (int rounds = 0; got.size() < 200 && rounds < 30; ++rounds) {
      const auto some = ends.take();
      CHECK(!some.empty());
      got.insert(got.end(), some.begin(), some.end());
      ends.out.flush();
    }
    CHECK_EQ(got.size(), 200u);
    for (uint64_t value = 0; value < got.size(); ++value) CHECK_EQ(got[value], value);
    CHECK(ends.out.empty());
  }
}

TEST(nothing_overtakes_what_is_held_back) {
  Ends ends;
  CHECK(ends.push(1));
  CHECK(!ends.push(2, true));
  CHECK(!ends.push(3));
  CHECK(ends.take() == std::vector<uint64_t>{1});
  CHECK(ends.out.flush());
  CHECK(!ends.out.flush());
  CHECK((ends.take() == std::vector<uint64_t>{2, 3}));
}

TEST(whether_there_is_room_is_known_before) {
  for (size_t bytes = Ring::kLeast; bytes <= Ring::kMost; bytes *= 2) {
    Ends ends(bytes);
    for (uint64_t value = 0; value < 500; ++value) {
      const bool takes = ends.out.takes(Ends::body_of(value).size());
      CHECK_EQ(ends.push(value), takes);
      if (takes) continue;
      CHECK(!ends.out.takes(0));  // nothing overtakes what waits
      CHECK(!ends.take().empty());
      CHECK(ends.out.flush());
    }
  }
}

TEST(a_full_ring_has_room_for_a_last_entry) {
  const std::vector<std::byte> last(EntryQueue::kMostLast);
  for (size_t bytes = Ring::kLeast; bytes <= Ring::kMost; bytes *= 2) {
    for (uint64_t first = 0; first < 100; ++first) {  // so the ring ends at different places
      Ends ends(bytes);
      for (uint64_t value = 0; value < first; ++value) {
        ends.push(value);
        ends.take();
      }
      std::vector<uint64_t> in_ring;
      for (uint64_t value = first; ends.push(value); ++value) in_ring.push_back(value);
      ends.out.make_way(true);
      CHECK(ends.out.empty());
      CHECK(ends.out.push(9, 0, {last.data(), 32}, {last.data() + 32, last.size() - 32}, false));
      std::vector<uint64_t> got;
      Ring::EntryHeader entry{};
      const std::byte* body = nullptr;
      while (ends.in.peek(entry, body) == Ring::Peek::entry && entry.kind != 9) {
        got.push_back(entry.value);
        ends.in.pop();
      }
      CHECK(got == in_ring);
      CHECK_EQ(entry.kind, 9u);
      CHECK_EQ(entry.size, sizeof(entry) + last.size());
    }
  }
}
