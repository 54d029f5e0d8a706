// All that is tested of tcp links, once more with encrypted connections; and what these are for.
#define SLIPSTREAM_TEST_ENCRYPT 1

#include "tests/tcp_lanes_test.cpp"
#include "tests/tcp_relay.h"
#include "tests/tcp_test.cpp"

TEST(ranks_that_differ_about_encryption_both_say_so) {
  Identity plain = identity(0);
  plain.encrypt = false;
  for (const bool dialler : {true, false}) {
    Rank a(0, {}, dialler ? identity(0) : plain);
    Rank b(1, {}, dialler ? plain : identity(0));
    a.dial(b, 1);
    CHECK(run({&a, &b}, [&] { return !a.downs.empty() && !b.strangers.empty(); }));
    CHECK(a.downs[0].code == Code::refused);
    CHECK(a.downs[0].text.find("SLIPSTREAM_ENCRYPT must be the same on all ranks") != std::string::npos);
    CHECK(b.strangers[0].find("SLIPSTREAM_ENCRYPT must be the same on all ranks") != std::string::npos);
    CHECK(b.links.empty());
    a.transport->knock(1, {"127.0.0.1"}, b.port, a);
    CHECK(run({&a, &b}, [&] { return !a.knock_results.empty(); }));
    CHECK(!a.knock_results[0]);
    CHECK(b.knocks.empty());
  }
}

namespace {

// Two ranks, and a relay between them that sees what both say.
struct Wire {
  Wire() : relay(b.port) {
    const auto directory = [ours = a.port, theirs = relay.port](int rank) {
      return TcpTarget{rank, {"127.0.0.1"}, rank == 0 ? ours : theirs};
    };
    a.transport->set_directory(directory);
    b.transport->set_directory(directory);
    a.links.push_back(a.transport->dial(1, {"127.0.0.1"}, relay.port));
    CHECK(go_on([&] { return !a.ups.empty() && !b.ups.empty(); }));
  }
  bool go_on(const std::function<bool()>& until) {
    return run(
        {&a, &b},
        [&] {
          relay.turn();
          return until();
        },
        60);
  }
  uint64_t damaged() const { return a.ups[0]->statistics().damaged + b.ups[0]->statistics().damaged; }

  Rank a{0};
  Rank b{1};
  Relay relay;
};

}  // namespace

TEST(nothing_can_be_read_on_the_wire) {
  Wire wire;
  size_t seen = 0;
  size_t bytes = 0;
  std::vector<std::byte> last[2];
  const auto text = pattern(300'000, 8);
  const auto needle = std::span(text).first(16);
  wire.relay.on_bytes = [&](std::vector<std::byte>& passing, int direction) {
    bytes += passing.size();
    auto& all = last[direction];
    all.insert(all.end(), passing.begin(), passing.end());
    seen += std::search(all.begin(), all.end(), needle.begin(), needle.end()) != all.end() ? 1 : 0;
    all.erase(all.begin(), all.end() - static_cast<ptrdiff_t>(std::min<size_t>(all.size(), 15)));
  };
  for (const uint32_t size : {300'000u, 1000u})
    for (uint64_t i = 0; i < 5; ++i) wire.a.ups[0]->send(frame(FrameType::data, size), text.data(), i);
  CHECK(wire.go_on([&] { return wire.b.received.size() == 10; }));
  for (const Received& r : wire.b.received) CHECK(std::equal(r.bytes.begin(), r.bytes.end(), text.begin()));
  CHECK(bytes > 1'500'000);
  CHECK_EQ(seen, 0u);
  CHECK(wire.a.ups[0]->statistics().encrypted);
}

// Each kind of change, many times, of each direction: no message is lost, and none is wrong.
TEST(what_is_changed_on_the_way_costs_a_connection_and_no_message) {
  for (const int how : {0, 1, 2, 3}) {
    Wire wire;
    uint32_t passed = 0;
    uint32_t changes = 0;
    std::vector<std::byte> before;
    wire.relay.on_bytes = [&](std::vector<std::byte>& passing, int) {
      if (++passed % 40 != 0 || passing.size() < 64 || changes >= 12) {
        before = passing;
        return;
      }
      ++changes;
      const size_t at = passed * 7919 % (passing.size() - 32);
      const auto from = passing.begin() + static_cast<ptrdiff_t>(at);
      if (how == 0) *from ^= std::byte{4};
      if (how == 1) passing.erase(from, from + 17);
      if (how == 2) std::swap_ranges(from, from + 8, from + 16);
      if (how == 3) passing.insert(passing.end(), before.begin(), before.end());  // a replay
    };
    const auto text = pattern(200'000, 3);
    for (uint32_t i = 0; i < 200; ++i)
      for (Rank* rank : {&wire.a, &wire.b})
        rank->ups[0]->send(frame(FrameType::data, i % 2 == 0 ? 100 + i : 20'000 + 800 * i, i), text.data(), i);
    CHECK(wire.go_on([&] { return wire.a.received.size() == 200 && wire.b.received.size() == 200; }));
    for (const Rank* rank : {&wire.a, &wire.b}) {
      CHECK(rank->downs.empty());
      for (const Received& r : rank->received) CHECK(std::equal(r.bytes.begin(), r.bytes.end(), text.begin()));
    }
    CHECK(changes > 0);
    CHECK(wire.damaged() > 0);
  }
}
