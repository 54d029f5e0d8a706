// Links over several ways: loopback addresses stand for interfaces, and a filter on a socket that drops all that comes
// stands for a cable that is cut.
#include <linux/filter.h>

#include <functional>
#include <map>
#include <set>

#include "tests/check.h"
#include "tests/tcp_rig.h"
#include "transport/sockets.h"
#include "transport/tcp/paths.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

constexpr uint32_t kLength = 200'000;
const Time kStart = now();

Time after(double s) { return kStart + seconds(s); }

std::string address_of(const std::string& end) { return end.substr(0, end.rfind(':')); }

TcpOptions with_lanes(int lanes) {
  TcpOptions options;
  options.lanes = lanes;
  options.more_lanes = false;
  return options;
}

// Two ranks, the second one reached at any of `addresses`.
struct Pair {
  Pair(int lanes, std::vector<std::string> addresses, const std::string& listening = "0.0.0.0")
      : a(0, with_lanes(lanes)), b(1, with_lanes(lanes)) {
    const uint16_t to_a = a.transport->listen("0.0.0.0");
    port = b.transport->listen(listening);
    const auto directory = [=, at = port](int rank) { return TcpTarget{rank, addresses, rank == 0 ? to_a : at}; };
    a.transport->set_directory(directory);
    b.transport->set_directory(directory);
    a.links.push_back(a.transport->dial(1, addresses, port));
  }
  bool up() {
    return run({&a, &b}, [&] { return !a.ups.empty() && !b.ups.empty(); });
  }
  LinkStatistics statistics() const { return a.ups[0]->statistics(); }
  // How many bulk lanes are up, by the peer's address.
  std::map<std::string, int> spread() const {
    std::map<std::string, int> found;
    for (const auto& lane : statistics().lanes)
      if (!lane.control && lane.up) ++found[address_of(lane.remote)];
    return found;
  }
  bool spreads_to(const std::map<std::string, int>& wanted) {
    return run({&a, &b}, [&] { return spread() == wanted; });
  }

  // Sends `count` messages from each of `from` and calls `disturb` before each; true when all have come and are right.
  bool exchange(uint32_t count, std::vector<Rank*> from, const std::function<void(uint32_t)>& disturb = {}) {
    const auto bytes = pattern(kLength, 3);
    const size_t before_a = a.received.size();
    const size_t before_b = b.received.size();
    uint32_t sent = 0;
    const auto taken = [&](const Rank& rank) { return rank.cookies.size() - (&rank == &a ? sent_a : sent_b); };
    bool done = run(
        {&a, &b},
        [&] {
          size_t behind = 0;
          for (const Rank* rank : from) behind = std::max(behind, sent - taken(*rank));
          for (; sent < count && behind < 8; ++sent, ++behind) {
            if (disturb) disturb(sent);
            for (Rank* rank : from) rank->ups[0]->send(frame(FrameType::data, kLength), bytes.data(), sent);
          }
          return std::all_of(from.begin(), from.end(), [&](const Rank* rank) { return taken(*rank) == count; });
        },
        60);
    for (Rank* rank : from) (rank == &a ? sent_a : sent_b) += count;
    const auto right = [&](const Rank& rank, size_t before, bool was_sent) {
      done = done && rank.received.size() - before == (was_sent ? count : 0);
      for (size_t i = before; i < rank.received.size(); ++i) done = done && rank.received[i].bytes == bytes;
    };
    right(a, before_a, std::find(from.begin(), from.end(), &b) != from.end());
    right(b, before_b, std::find(from.begin(), from.end(), &a) != from.end());
    return done && a.downs.empty() && b.downs.empty();
  }

  Rank a;
  Rank b;
  uint16_t port = 0;
  size_t sent_a = 0;
  size_t sent_b = 0;
};

// Drops all that comes to a socket, or no longer.
void drop(int fd, bool yes) {
  sock_filter nothing{BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program{1, &nothing};
  if (yes)
    CHECK_EQ(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)), 0);
  else
    (void)::setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &yes, sizeof(int));
}

// Cuts the connection between these two ends without a word: neither hears of the other any more.
void cut(const LaneStatistics& lane) {
  int ends = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    const TcpState state = tcp_state(fd);
    const bool here = state.local == lane.local && state.remote == lane.remote;
    const bool there = state.local == lane.remote && state.remote == lane.local;
    if (!here && !there) continue;
    drop(fd, true);
    ++ends;
  }
  CHECK_EQ(ends, 2);
}

// Resets the connection, at one end.
bool reset(const std::string& local, const std::string& remote) {
  sockaddr nobody{};
  nobody.sa_family = AF_UNSPEC;
  for (int fd = 3; fd < 1024; ++fd) {
    const TcpState state = tcp_state(fd);
    if (state.local == local && state.remote == remote) return ::connect(fd, &nobody, sizeof(nobody)) == 0;
  }
  return false;
}

// All connections of this process, and its listeners.
void cut_all(bool yes) {
  for (int fd = 3; fd < 1024; ++fd)
    if (!tcp_state(fd).local.empty() && tcp_state(fd).local != ":0") drop(fd, yes);
}

// A listener that nobody serves: connections are made, and nothing is said.
Fd deaf(const std::string& address, uint16_t port) { return listen_tcp(address, port); }

}  // namespace

// ---- which path

TEST(lanes_are_spread_evenly_at_first) {
  const Paths paths({"10.0.0.1", "10.0.1.1", "10.0.2.1"});
  std::vector<Paths::Lane> lanes(9);
  for (Paths::Lane& lane : lanes) lane.path = paths.pick(lanes, kStart);
  for (size_t path = 0; path < 3; ++path)
    CHECK_EQ(std::count_if(lanes.begin(), lanes.end(), [&](auto& lane) { return lane.path == path; }), 3);
  CHECK(!paths.move(lanes, kStart));
}

TEST(a_path_that_fails_is_left_alone_longer_each_time) {
  Paths paths({"10.0.0.1", "10.0.1.1"});
  paths.failed(0, after(0));
  paths.failed(0, after(0.1));  // another lane of the same path: the same news
  CHECK_EQ(paths.pick({}, after(0.9)), 1u);
  CHECK_EQ(paths.pick({}, after(1.1)), 0u);
  paths.failed(0, after(1.2));
  CHECK_EQ(paths.pick({}, after(3.1)), 1u);
  CHECK_EQ(paths.pick({}, after(3.3)), 0u);
  CHECK(paths.usable(after(1.3)));
  CHECK(!paths.usable(after(1.3), 1));
  CHECK((paths.in_order(after(1.3)) == std::vector<std::string>{"10.0.1.1", "10.0.0.1"}));
  paths.failed(0, after(100));  // long forgotten
  CHECK_EQ(paths.pick({}, after(101.1)), 0u);
  paths.failed(1, after(101.2));
  paths.failed(0, after(101.3));
  CHECK_EQ(paths.pick({}, after(101.4)), 1u);  // none is left: the one that comes back first
}

TEST(lanes_keep_to_the_family_that_answered) {
  Paths paths({"10.0.0.1", "fd00::1", "10.0.1.1"});
  paths.answered(0);
  std::vector<Paths::Lane> lanes(4);
  for (Paths::Lane& lane : lanes) lane.path = paths.pick(lanes, kStart);
  CHECK(std::none_of(lanes.begin(), lanes.end(), [](auto& lane) { return lane.path == 1; }));
  paths.failed(0, kStart);
  paths.failed(2, kStart);
  CHECK_EQ(paths.pick(lanes, kStart), 1u);
  paths.answered(1);
  CHECK_EQ(paths.pick({}, after(10)), 1u);
}

TEST(a_new_lane_goes_where_lanes_achieve_most_each) {
  // Two paths of 400 and 200, shared by the lanes on them: lanes that are replaced come to follow that.
  const Paths paths({"10.0.0.1", "10.0.1.1"});
  std::vector<Paths::Lane> lanes(12);
  const auto share = [&] {
    std::map<size_t, int> count;
    for (const Paths::Lane& lane : lanes) ++count[lane.path];
    for (Paths::Lane& lane : lanes) lane.rate = (lane.path == 0 ? 400.0 : 200.0) / count[lane.path];
    return count;
  };
  for (Paths::Lane& lane : lanes) lane.path = paths.pick(lanes, kStart);
  for (size_t i = 0; i < 100; ++i) {
    share();
    Paths::Lane& lane = lanes[i * 7 % 12];
    lane = {};
    lane.path = paths.pick(lanes, kStart);
  }
  const auto count = share();
  CHECK(count.at(0) >= 7 && count.at(0) <= 9);
}

TEST(lanes_move_to_a_path_that_came_back_and_no_further) {
  Paths paths({"10.0.0.1", "10.0.1.1"});
  std::vector<Paths::Lane> lanes(8, {0, 25});
  paths.failed(1, kStart);
  CHECK(!paths.move(lanes, after(0.5)));
  int moves = 0;
  for (; moves < 20; ++moves) {
    const auto move = paths.move(lanes, after(2));
    if (!move) break;
    CHECK_EQ(move->path, 1u);
    lanes[move->lane].path = 1;
    const auto there = std::count_if(lanes.begin(), lanes.end(), [](auto& lane) { return lane.path == 1; });
    for (Paths::Lane& lane : lanes) lane.rate = 200.0 / static_cast<double>(lane.path == 1 ? there : 8 - there);
  }
  CHECK(moves >= 2 && moves <= 4);
  // Lanes that all carry the same, as those of short messages do, show nothing of what their paths could carry.
  std::vector<Paths::Lane> alike{{0, 5}, {0, 5}, {0, 5}, {0, 5}, {0, 5}, {1, 5}};
  for (int i = 0; i < 2; ++i) {
    const auto move = paths.move(alike, after(2));
    CHECK(move && move->path == 1);
    alike[move->lane].path = 1;
  }
  CHECK(!paths.move(alike, after(2)));
  // A lane of which nothing is known yet is waited for.
  CHECK(!paths.move(std::vector<Paths::Lane>{{0, 5}, {0, 5}, {0, 5}, {1, -1}}, after(2)));
  // Of a path that carries a quarter of what the other one does, two lanes are enough.
  CHECK(!paths.move(std::vector<Paths::Lane>{{0, 40}, {0, 40}, {0, 40}, {0, 40}, {1, 20}, {1, 20}}, after(2)));
  // Nor does one get lanes while nothing is sent, or soon after a lane of it was far behind.
  CHECK(!paths.move(std::vector<Paths::Lane>{{0, 0}, {0, 0}, {0, 0}, {1, 0}}, after(2)));
  const std::vector<Paths::Lane> even{{0, 5}, {0, 5}, {0, 5}, {1, 5}};
  CHECK(paths.move(even, after(2)).has_value());
  paths.too_slow(1, after(2));
  CHECK(!paths.move(even, after(31)));
  CHECK(paths.move(even, after(33)).has_value());
  paths.too_slow(1, after(33));
  CHECK(!paths.move(even, after(92)));
  CHECK(paths.move(even, after(94)).has_value());
  // A path that is merely faster gets no more than its equal share: its lanes pull more already.
  std::vector<Paths::Lane> unequal{{0, 100}, {0, 100}, {1, 1}, {1, 1}};
  CHECK(!paths.move(unequal, after(2)));
}

// The paths of the first `kept` lanes after the moves.
static std::multiset<size_t> kept_on(const Paths& paths, std::vector<Paths::Lane> lanes, size_t kept, Time now) {
  for (const Paths::Move& move : paths.keep(lanes, kept, now)) {
    CHECK(move.lane < kept);
    lanes[move.lane].path = move.path;
  }
  std::multiset<size_t> found;
  for (size_t i = 0; i < kept; ++i) found.insert(lanes[i].path);
  return found;
}

TEST(lanes_that_stay_keep_the_paths_that_carry_most) {
  Paths paths({"10.0.0.1", "10.0.1.1", "10.0.2.1", "10.0.3.1"});
  using On = std::multiset<size_t>;
  // Two lanes on each path; 10, 20, 40 and 80 MB/s.
  const std::vector<Paths::Lane> lanes{{0, 5}, {1, 10}, {0, 5}, {1, 10}, {2, 20}, {3, 40}, {2, 20}, {3, 40}};
  CHECK(kept_on(paths, lanes, 4, after(0)) == (On{0, 1, 2, 3}));
  CHECK(kept_on(paths, lanes, 3, after(0)) == (On{1, 2, 3}));
  CHECK(kept_on(paths, lanes, 2, after(0)) == (On{2, 3}));
  CHECK(kept_on(paths, lanes, 1, after(0)) == On{3});
  CHECK(kept_on(paths, lanes, 6, after(0)) == (On{0, 0, 1, 1, 2, 3}));
  CHECK(paths.keep(lanes, 8, after(0)).empty());
  // Paths that carry about the same are as good as each other, if no lanes share them.
  const std::vector<Paths::Lane> alike{{0, 9}, {1, 10}, {2, 11}, {3, 10}};
  CHECK(paths.keep(alike, 2, after(0)).empty());
  // Nothing is known yet: they are spread all the same.
  const std::vector<Paths::Lane> fresh{{0, -1}, {0, -1}, {1, -1}, {2, -1}};
  CHECK(kept_on(paths, fresh, 2, after(0)).count(0) == 1);
  CHECK(paths.keep(fresh, 1, after(0)).empty());
  // Neither to a path that does not answer, nor to one that has been far behind, nor with lanes that are not there.
  paths.failed(3, after(0));
  CHECK(kept_on(paths, lanes, 2, after(0.5)) == (On{1, 2}));
  paths.too_slow(2, after(0));
  CHECK(kept_on(paths, lanes, 2, after(0.5)) == (On{0, 1}));
  CHECK(paths.keep(std::vector<Paths::Lane>{{}, {}, {0, 5}}, 2, after(2)).empty());
  CHECK(Paths().keep(lanes, 2, after(0)).empty());
}

// ---- links

TEST(lanes_of_a_link_are_spread_over_the_addresses_of_the_peer) {
  Pair pair(8, {"127.0.0.2", "127.0.0.3"});
  CHECK(pair.up());
  CHECK(pair.spreads_to({{"127.0.0.2", 4}, {"127.0.0.3", 4}}));
  CHECK(pair.exchange(50, {&pair.a, &pair.b}));
  CHECK_EQ(pair.statistics().lost, 0u);
}

TEST(an_address_that_leads_nowhere_costs_no_lane) {
  Pair pair(6, {"127.0.0.2", "127.0.0.4", "127.0.0.5"}, "127.0.0.2");
  const Fd silent = deaf("127.0.0.4", pair.port);
  CHECK(pair.up());
  CHECK(pair.exchange(50, {&pair.a, &pair.b}));
  CHECK(pair.spreads_to({{"127.0.0.2", 6}}));
  CHECK_EQ(pair.statistics().lost, 0u);
}

TEST(a_silent_address_is_passed_over) {
  Pair pair(2, {"127.0.0.4", "127.0.0.2"}, "127.0.0.2");
  const Fd silent = deaf("127.0.0.4", pair.port);
  CHECK(run({&pair.a, &pair.b}, [&] { return !pair.a.ups.empty() && !pair.b.ups.empty(); }, 4));
  CHECK(pair.spreads_to({{"127.0.0.2", 2}}));
}

TEST(another_rank_at_an_address_is_not_mistaken_for_the_peer) {
  // Bridges of container hosts have the same address everywhere: behind it may be a rank of this host.
  Pair pair(4, {"127.0.0.4", "127.0.0.2"}, "127.0.0.2");
  const Fd other = listen_tcp("127.0.0.4", pair.port);
  struct Guest {
    Fd fd;
    Handshake handshake;
  };
  std::vector<Guest> guests;
  size_t refused = 0;
  const auto serve_rank_2 = [&] {
    for (Fd fd(::accept4(other.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)); fd;)
      guests.push_back({std::move(fd), Handshake::server(identity(2), {Purpose::link, Purpose::lane})});
    refused += std::erase_if(guests, [](Guest& guest) {
      const auto state = guest.handshake.advance(guest.fd.get());
      CHECK(state != Handshake::State::done);
      return state == Handshake::State::failed;
    });
  };
  CHECK(run({&pair.a, &pair.b}, [&] {
    serve_rank_2();
    return !pair.a.ups.empty() && pair.spread() == std::map<std::string, int>{{"127.0.0.2", 4}};
  }));
  CHECK(refused > 0);
  CHECK(pair.a.downs.empty());
}

TEST(lanes_that_are_cut_without_a_word_cost_no_message) {
  for (const bool both_send : {true, false}) {
    Pair pair(6, {"127.0.0.2", "127.0.0.3"});
    CHECK(pair.up());
    CHECK(pair.spreads_to({{"127.0.0.2", 3}, {"127.0.0.3", 3}}));
    // The one that dialled may be the one that has nothing to send, and hears of it from the other.
    const std::vector<Rank*> from = both_send ? std::vector<Rank*>{&pair.a, &pair.b} : std::vector<Rank*>{&pair.b};
    CHECK(pair.exchange(400, from, [&](uint32_t i) {
      if (i != 100) return;
      for (const auto& lane : pair.statistics().lanes)
        if (!lane.control && address_of(lane.remote) == "127.0.0.3") cut(lane);
    }));
    CHECK(run({&pair.a, &pair.b}, [&] {
      int up = 0;
      for (const auto& [address, lanes] : pair.spread()) up += lanes;
      return up == 6 && pair.statistics().lost >= 3;
    }));
    CHECK(pair.exchange(50, {&pair.a, &pair.b}));
  }
}

// A router that has lost its tables resets the connections of one side, and the other side does not hear of it.
TEST(lanes_that_end_without_the_knowledge_of_the_side_that_dialled_are_connected_again) {
  Pair pair(2, {"127.0.0.2"});
  CHECK(pair.up());
  CHECK(pair.spreads_to({{"127.0.0.2", 2}}));
  CHECK(pair.exchange(40, {&pair.b}, [&](uint32_t i) {
    if (i != 20) return;
    for (const auto& lane : pair.statistics().lanes) {
      if (lane.control) continue;
      cut(lane);
      CHECK(reset(lane.remote, lane.local));
    }
  }));
  CHECK(pair.spreads_to({{"127.0.0.2", 2}}));
  CHECK(pair.exchange(40, {&pair.a, &pair.b}));
}

TEST(all_lanes_but_one_may_be_cut) {
  Pair pair(4, {"127.0.0.2"});
  CHECK(pair.up());
  CHECK(pair.spreads_to({{"127.0.0.2", 4}}));
  CHECK(pair.exchange(300, {&pair.a, &pair.b}, [&](uint32_t i) {
    if (i != 100) return;
    const auto lanes = pair.statistics().lanes;
    for (size_t number = 1; number < 4; ++number) cut(lanes[number]);
  }));
  CHECK(pair.spreads_to({{"127.0.0.2", 4}}));
}

TEST(the_only_lane_is_replaced_when_it_is_cut) {
  Pair pair(1, {"127.0.0.2", "127.0.0.3"});
  CHECK(pair.up());
  CHECK(pair.spreads_to({{"127.0.0.2", 1}}));
  CHECK(pair.exchange(60, {&pair.a, &pair.b}, [&](uint32_t i) {
    if (i == 20) cut(pair.statistics().lanes[1]);
  }));
  CHECK_EQ(pair.spread().count("127.0.0.3"), 1u);
}

TEST(the_control_lane_is_replaced_when_it_is_cut) {
  for (const bool dialler_sends : {true, false}) {
    Pair pair(2, {"127.0.0.2", "127.0.0.3"});
    CHECK(pair.up());
    CHECK_EQ(address_of(pair.statistics().lanes[0].remote), std::string("127.0.0.2"));
    CHECK(pair.exchange(60, {dialler_sends ? &pair.a : &pair.b}, [&](uint32_t i) {
      if (i == 20) cut(pair.statistics().lanes[0]);
    }));
    CHECK_EQ(address_of(pair.statistics().lanes[0].remote), std::string("127.0.0.3"));
    CHECK(pair.exchange(20, {&pair.a, &pair.b}));
  }
}

TEST(a_whole_interface_may_be_cut_and_everything_goes_over_the_other) {
  Pair pair(4, {"127.0.0.2", "127.0.0.3"});
  CHECK(pair.up());
  CHECK(pair.spreads_to({{"127.0.0.2", 2}, {"127.0.0.3", 2}}));
  CHECK(pair.exchange(200, {&pair.a, &pair.b}, [&](uint32_t i) {
    if (i != 50) return;
    for (const auto& lane : pair.statistics().lanes)
      if (address_of(lane.remote) == "127.0.0.2") cut(lane);
  }));
}

TEST(when_all_is_cut_the_link_waits_and_goes_on) {
  Pair pair(3, {"127.0.0.2", "127.0.0.3"});
  CHECK(pair.up());
  const auto bytes = pattern(kLength, 3);
  CHECK(pair.exchange(20, {&pair.a, &pair.b}));
  cut_all(true);
  for (Rank* rank : {&pair.a, &pair.b}) rank->ups[0]->send(frame(FrameType::data, kLength), bytes.data(), 0);
  const size_t before = pair.a.cookies.size();
  CHECK(!run({&pair.a, &pair.b}, [&] { return pair.a.cookies.size() > before; }, 4));
  cut_all(false);
  CHECK(run({&pair.a, &pair.b}, [&] { return pair.a.cookies.size() > before && pair.b.cookies.size() > before; }));
  CHECK(pair.a.downs.empty());
  CHECK(pair.b.downs.empty());
}

TEST(lanes_to_a_peer_that_is_stopped_are_left_alone) {
  Pair pair(3, {"127.0.0.2", "127.0.0.3"});
  CHECK(pair.up());
  CHECK(pair.exchange(20, {&pair.a, &pair.b}));
  const auto bytes = pattern(4 << 20, 3);
  for (uint64_t i = 0; i < 16; ++i)  // more than all sockets hold
    pair.a.ups[0]->send(frame(FrameType::data, 4 << 20), bytes.data(), i);
  CHECK(!run({&pair.a}, [&] { return !pair.a.downs.empty() || pair.statistics().lost > 0; }, 4));
  CHECK(run({&pair.a, &pair.b}, [&] { return pair.a.cookies.size() == 36; }));
}
