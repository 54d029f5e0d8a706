// What bounds a reducer's memory and intake, whatever its workers send.
#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "reducers/offer.h"
#include "reducers/server.h"
#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"
#include "transport/sockets.h"

namespace {

using namespace slipstream;
using namespace slipstream::testing;

constexpr int kWorkers = 2;
constexpr uint32_t kChunk = 64 << 10;

std::shared_ptr<const Plan> reducer_plan() {
  PlanBuilder b(kWorkers, kWorkers + 1, 1);
  int last = b.add(StepKind::recv, 0, 0);
  for (int r = 1; r < kWorkers; ++r) last = b.add(StepKind::recv_reduce, r, 0, {last});
  last = b.add(StepKind::finish, -1, 0, {last});
  for (int r = 0; r < kWorkers; ++r) b.add(StepKind::send, r, 0, {last});
  return b.build();
}

std::shared_ptr<const Plan> worker_plan(int rank) {
  PlanBuilder b(rank, kWorkers + 1, 1);
  b.add(StepKind::send, kWorkers, 0, {}, Space::in);
  b.add(StepKind::recv, kWorkers, 0);
  return b.build();
}

// Takes all that is sent; bulk is under way until the engine is told.
class TestLink final : public Link {
 public:
  explicit TestLink(int peer) : Link(peer, Kind::tcp) { up_ = true; }
  bool send(const Frame& frame, const std::byte*, uint64_t cookie, int) override {
    if (frame.length <= kEagerBytes) return true;
    under_way.push_back(cookie);
    return false;
  }
  void release(const Payload&) override {}
  void close() override { up_ = false; }

  ~TestLink() override {
    if (destroyed != nullptr) *destroyed = true;
  }

  bool superseded() override {
    if (broken == nullptr) return false;
    broken->down(*this, {Code::peer_lost, peer_, {}, "the link broke"});
    return true;
  }

  std::vector<uint64_t> under_way;
  bool* destroyed = nullptr;
  Events* broken = nullptr;  // whom to tell, if it is
};

// A reducer's engine that two workers are linked with.
class Rig final : Dialer, Pump, OfferHandler {
 public:
  explicit Rig(EngineOptions options = {})
      : engine(kWorkers, kWorkers + 1, poller_, bell_, regions_, *this, with_offers(options)) {
    engine.set_pump(this);
    auto group = std::make_shared<Group>();
    group->id = 1;
    group->ranks = {0, 1, 2};
    group->rank = kWorkers;
    group_ = group;
    for (int r = 0; r < kWorkers; ++r) {
      auto link = std::make_unique<TestLink>(r);
      links.push_back(link.get());
      engine.fabric().adopt(std::move(link));
      engine.up(*links.back());
    }
  }
  ~Rig() { engine.leave(); }

  WorkPtr begin(uint64_t chunks, DType dtype = DType::f32) {
    Request request;
    request.plan = reducer_plan();
    request.group = group_;
    request.channel = group_->id;
    request.signature.operation = "all_reduce/reducers";
    request.signature.reduces = true;
    request.signature.dtype = dtype;
    request.chunk_bytes = request.signature.chunk_bytes = kChunk;
    request.signature_hash = request.signature.hash();
    for (Layout& space : request.spaces) space.count = chunks * kChunk / size_of(dtype);
    request.part.emplace();
    request.part->windowed = true;
    request.part->window_bytes = 8 << 20;
    request.timeout_seconds = 1000;
    auto work = std::make_shared<Work>(std::move(request));
    engine.ledger().enter(work);
    engine.submit(work);
    engine.turn();
    return work;
  }
  void frame(int from, MessageType type, uint32_t seq, uint32_t chunk, uint32_t bytes, uint8_t flags = 0,
             DType dtype = DType::f32) {
    WorkHeader frame;
    frame.type = type;
    frame.flags = flags;
    frame.channel = group_->id;
    frame.seq = seq;
    frame.chunk = chunk;
    frame.length = bytes;
    Signature signature;
    signature.operation = "all_reduce/reducers";
    signature.reduces = true;
    signature.dtype = dtype;
    signature.chunk_bytes = kChunk;
    frame.signature = signature.hash();
    engine.arrived(*links[static_cast<size_t>(from)], frame, {data_.data(), bytes, true, 0});
  }
  void data(int from, uint32_t seq, uint32_t chunk) { frame(from, MessageType::data, seq, chunk, kChunk); }
  void take_sends() {
    for (TestLink* link : links)
      for (const uint64_t cookie : std::exchange(link->under_way, {})) engine.sent(*link, cookie);
  }
  std::string failure() const { return engine.failure().text; }

  std::vector<TestLink*> links;

 private:
  EngineOptions with_offers(EngineOptions options) {
    options.offers = this;
    return options;
  }
  std::unique_ptr<Link> dial(int) override { return nullptr; }
  void knock(int) override {}
  std::string host_of(int) const override { return ""; }
  bool shares_memory(int) const override { return false; }
  bool poll() override { return false; }
  bool pending() const override { return false; }
  bool congested() const override { return false; }
  Time tick(Time) override { return Time::max(); }
  Error offered(int, const WorkHeader&, std::span<const std::byte>) override { return {}; }

  Regions regions_;
  Bell bell_;
  Poller poller_;
  std::shared_ptr<const Group> group_;
  std::vector<std::byte> data_ = std::vector<std::byte>(kChunk);

 public:
  Engine engine;
};

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(a_frame_of_no_work_is_an_error) {
  Rig rig;
  rig.begin(1);
  rig.frame(1, MessageType::request, 1, 0, 0);
  CHECK(says(rig.failure(), "rank 1 sent a frame of a work that it has not offered"));
}

TEST(words_that_no_work_needs_are_bounded) {
  for (const MessageType type : {MessageType::ping, MessageType::pong, MessageType::status}) {
    Rig rig;
    for (int i = 0; i < 900; ++i) rig.frame(1, type, 0, 0, 0);
    CHECK_EQ(rig.failure(), std::string{});
    for (int i = 0; i < 10'000 && rig.failure().empty(); ++i) rig.frame(1, type, 0, 0, 0);
    CHECK(says(rig.failure(), "rank 1 sends more than 1000 control frames a second that no work needs"));
  }
}

TEST(what_comes_for_works_that_wait_is_bounded) {
  EngineOptions options;
  options.early_bytes = 1 << 20;
  for (const uint32_t bytes : {0u, 1024u, kChunk}) {
    Rig rig(options);
    for (int i = 0; i < 3; ++i) rig.begin(100);  // the third waits
    CHECK_EQ(rig.engine.works(), size_t{3});
    size_t sent = 0;
    while (rig.failure().empty() && sent < 1 << 20) {
      rig.frame(0, bytes == 0 ? MessageType::request : MessageType::data, 2, 0, bytes);
      sent += bytes + 1;
    }
    CHECK(says(rig.failure(), "rank 0 sent more than 1024 KiB for works that have not begun"));
  }
}

TEST(a_chunk_comes_once) {
  for (const int from : {0, 1}) {  // taken at once; kept until rank 0's is here
    Rig rig;
    rig.begin(100);
    rig.data(from, 0, 0);
    rig.data(from, 0, 1);
    CHECK_EQ(rig.failure(), std::string());
    rig.data(from, 0, 1);
    CHECK(says(rig.failure(), "rank " + std::to_string(from) + " sent a chunk of"));
    CHECK(says(rig.failure(), "twice"));
  }
}

TEST(no_chunk_is_in_memory_already) {
  constexpr uint8_t kPlaced = 2;
  for (const DType dtype : {DType::f32, DType::f16}) {  // sums of the second are kept as f32
    Rig rig;
    rig.begin(100, dtype);
    rig.frame(0, MessageType::data, 0, 0, 0, kPlaced, dtype);
    CHECK(says(rig.failure(), "rank 0 sent 0 bytes where rank 2 expects 65536"));
  }
}

TEST(nothing_comes_for_a_work_that_is_done) {
  Rig rig;
  const WorkPtr work = rig.begin(1);
  for (const int r : {0, 1}) {
    rig.frame(r, MessageType::ready, 0, 0, 0);
    rig.data(r, 0, 0);
  }
  rig.take_sends();
  rig.engine.turn();
  CHECK(work->done());
  rig.frame(0, MessageType::request, 0, 0, 0);
  CHECK_EQ(rig.failure(), std::string());
  rig.data(0, 0, 0);
  CHECK(says(rig.failure(), "rank 0 sent a chunk of"));
}

TEST(a_worker_is_not_far_ahead) {
  Rig rig;
  rig.begin(1000);
  for (uint32_t chunk = 0; chunk < 256; ++chunk) rig.data(1, 0, chunk);  // one window is begun, the next may be sent
  CHECK_EQ(rig.failure(), std::string());
  rig.data(1, 0, 256);
  CHECK(says(rig.failure(), "rank 1 sent a chunk of"));
}

TEST(the_intake_is_bounded_and_the_engine_sleeps_meanwhile) {
  constexpr uint32_t kChunks = 6;
  EngineOptions options;
  options.intake = 1e6;
  Rig rig(options);
  const Time begun = now();
  const WorkPtr work = rig.begin(kChunks);
  for (int r = 0; r < kWorkers; ++r) {
    rig.frame(r, MessageType::ready, 0, 0, 0);
    for (uint32_t chunk = 0; chunk < kChunks; ++chunk) rig.data(r, 0, chunk);
  }
  int turns = 0;
  for (; !work->done() && turns < 1000; ++turns) {
    if (!rig.engine.turn() && !work->done()) rig.engine.sleep(now() + seconds(60));
    rig.take_sends();
  }
  CHECK(work->done());
  CHECK(!work->error());
  CHECK(now() - begun >= seconds((kChunks - 1) * kWorkers * kChunk / options.intake - RateLimit::kSavedSeconds));
  CHECK(turns < 100);
}

TEST(a_second_link_is_refused_and_the_first_one_stays) {
  bool first_destroyed = false, second_destroyed = false;
  {
    Rig rig;
    const WorkPtr work = rig.begin(1);
    rig.links[1]->destroyed = &first_destroyed;
    rig.data(1, 0, 0);  // kept, with its link, until rank 0's is here
    auto second = std::make_unique<TestLink>(1);
    second->destroyed = &second_destroyed;
    CHECK(!rig.engine.fabric().adopt(std::move(second)));
    CHECK(second_destroyed);
    rig.engine.turn();
    CHECK(!first_destroyed);
    rig.data(0, 0, 0);
    for (const int r : {0, 1}) rig.frame(r, MessageType::ready, 0, 0, 0);
    rig.take_sends();
    rig.engine.turn();
    CHECK(work->done());
    CHECK(!work->error());
  }
  CHECK(first_destroyed);
}

TEST(a_link_takes_the_place_of_one_that_has_broken) {
  bool first_destroyed = false, second_destroyed = false;
  Rig rig;
  rig.links[1]->destroyed = &first_destroyed;
  rig.links[1]->broken = &rig.engine;
  auto second = std::make_unique<TestLink>(1);
  TestLink* raw = second.get();
  second->destroyed = &second_destroyed;
  CHECK(rig.engine.fabric().adopt(std::move(second)));
  CHECK(!second_destroyed);
  CHECK(!first_destroyed);  // not before it is off the stack
  rig.links[1] = raw;
  rig.engine.up(*raw);
  rig.engine.turn();
  CHECK(first_destroyed);
  CHECK(rig.engine.fabric().up(1) == raw);
  rig.engine.leave();
  raw->destroyed = nullptr;
}

SessionOptions options(int rank) {
  SessionOptions found;
  found.rank = rank;
  found.size = kWorkers + 1;
  found.job = "native-test";
  found.secret = std::string(32, 's');
  return found;
}

ReducerServerOptions server_options() {
  ReducerServerOptions found;
  found.workers = kWorkers;
  found.job = "native-test";
  found.secret = std::string(32, 's');
  found.carriers = {{0, 1}};
  found.plan = found.small = reducer_plan();
  return found;
}

// One worker has a link to the reducer; the other never comes.
std::shared_ptr<const Group> join(ReducerServer& reducer, Session& worker) {
  std::vector<PeerAddress> peers(kWorkers + 1);
  peers.back().addresses = {"127.0.0.1"};
  peers.back().port = reducer.listen_tcp({"127.0.0.1"});
  reducer.start();
  worker.start(peers);
  worker.reach(kWorkers, now() + seconds(60));
  return worker.make_group(1, {0, 1, 2});
}

WorkPtr submit(Session& worker, std::shared_ptr<const Group> group, std::vector<float>& memory, size_t count) {
  Request request;
  request.plan = worker_plan(0);
  request.group = std::move(group);
  request.signature.operation = "all_reduce/reducers";
  request.signature.reduces = true;
  request.signature.chunk_bytes = request.chunk_bytes = 16 << 10;
  for (Layout& space : request.spaces) space = {reinterpret_cast<std::byte*>(memory.data()), count, {}};
  request.part.emplace().offer = encode_offer({request.signature, count, 1.0, 1});
  const WorkPtr work = worker.prepare(std::move(request), 0);
  worker.submit(work);
  return work;
}

TEST(a_worker_that_opens_its_link_twice_breaks_the_rules) {
  ReducerServer reducer(server_options());
  Session worker(options(0)), again(options(0));
  std::vector<PeerAddress> peers(kWorkers + 1);
  peers.back().addresses = {"127.0.0.1"};
  peers.back().port = reducer.listen_tcp({"127.0.0.1"});
  reducer.start();
  worker.start(peers);
  again.start(peers);
  worker.reach(kWorkers, now() + seconds(60));
  try {
    again.reach(kWorkers, now() + seconds(60));
  } catch (const Failure&) {  // it may hear of it at once
  }
  while (!reducer.failure()) reducer.served();
  CHECK(says(reducer.failure().text, "rank 0 opened a second link"));
}

// Somebody without the secret answers first; then nobody listens there.
TEST(a_refusal_is_told_though_later_attempts_find_nobody) {
  Session worker(options(0));
  std::optional<Fd> listener(listen_tcp("127.0.0.1", 0));
  std::vector<PeerAddress> peers(kWorkers + 1);
  peers.back().addresses = {"127.0.0.1"};
  peers.back().port = local_port(listener->get());
  worker.start(peers);
  auto reached = std::async(std::launch::async, [&] { worker.reach(kWorkers, now() + seconds(2)); });
  pollfd waiting{listener->get(), POLLIN, 0};
  CHECK_EQ(::poll(&waiting, 1, 20'000), 1);
  const Fd caller(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  listener.reset();
  std::byte hello[80];
  CHECK_EQ(::recv(caller.get(), hello, sizeof(hello), MSG_WAITALL), ssize_t{sizeof(hello)});
  const std::byte wrong[64] = {};
  CHECK_EQ(::send(caller.get(), wrong, sizeof(wrong), MSG_NOSIGNAL), ssize_t{sizeof(wrong)});
  try {
    reached.get();
    CHECK(false);
  } catch (const Failure& failure) {
    CHECK(failure.error().code == Code::refused);
    CHECK(says(failure.what(), "does not know our secret"));
  }
}

TEST(a_worker_offers_no_more_than_it_can_have_under_way) {
  ReducerServer reducer(server_options());
  Session worker(options(0));
  const auto group = join(reducer, worker);
  std::vector<std::vector<float>> memory(200, std::vector<float>(1));  // works on the same would go one by one
  std::vector<WorkPtr> works;
  for (std::vector<float>& own : memory) works.push_back(submit(worker, group, own, 1));
  CHECK(worker.wait(*works.back(), now() + seconds(60)));
  CHECK(says(works.back()->error().text, "rank 0 offers more than 128 works at once"));
}

}  // namespace
