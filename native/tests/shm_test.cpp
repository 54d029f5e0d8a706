// Links between ranks of one host: knocks, greetings, and what happens where a resource runs out.
#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"
#include "tests/shm_rig.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

}  // namespace

TEST(a_rank_that_dies_while_it_is_knocked_at_is_named) {
  ShmRank knocker(1);
  auto stopped = std::make_unique<ShmRank>(0);  // it never takes a turn, as a stopped process does not
  knocker.transport.knock(0, stopped->name, knocker);
  for (int i = 0; i < 10; ++i) knocker.turn();
  CHECK(knocker.knock_results.empty());
  stopped.reset();
  CHECK(run({&knocker}, [&] { return !knocker.knock_results.empty(); }));
  CHECK(!knocker.knock_results[0]);
  CHECK_EQ(knocker.knock_why,
           std::string("rank 0 is gone: it finished, died or was killed: nothing listens there any more"));
}

TEST(the_reason_of_a_knock_in_vain_outlives_the_knock) {
  ShmRank knocker(1), other(0, "another secret of sixteen bytes or more");
  knocker.transport.knock(0, other.name, knocker);
  CHECK(run({&knocker, &other}, [&] { return !knocker.knock_results.empty(); }));
  CHECK_EQ(knocker.knock_why, std::string("rank 0 is gone: does not know our secret: SLIPSTREAM_SECRET must be the "
                                          "same on all ranks"));
}

TEST(a_stopped_process_is_waited_for_as_long_as_is_said) {
  const std::string secret(32, 's');
  ShmRank caller(1, secret, 40), stopped(0), waker(2, secret, 40), accepting(3, secret, 40);
  caller.dial(stopped, 0);
  caller.transport.knock(0, stopped.name, caller);
  waker.dial(accepting, 3);
  CHECK(run({&waker, &accepting}, [&] { return !accepting.links.empty(); }));  // not up: it waits for a set-up
  for (ShmRank* rank : {&caller, &accepting}) rank->transport.tick(now() + seconds(39));
  CHECK(caller.downs.empty());
  CHECK(caller.knock_results.empty());
  CHECK(accepting.downs.empty());
  caller.transport.tick(now() + seconds(41));
  CHECK_EQ(caller.downs.size(), 1u);
  CHECK(caller.downs[0].text.find("no handshake within 40 s") != std::string::npos);
  CHECK_EQ(caller.knock_why, std::string("rank 0 is gone: it does not answer"));
}

TEST(the_last_frame_arrives_though_the_ring_was_full) {
  for (const FrameType last : {FrameType::abort, FrameType::goodbye}) {
    ShmRank leaver(0), reader(1);
    CHECK(connect(leaver, reader, 1));
    Link& link = *leaver.ups[0];
    const std::vector<std::byte> bytes(4000);
    Frame frame;
    frame.length = 4000;
    constexpr size_t kMore = 2 * Ring::kMost / 4000;  // than a ring holds
    for (size_t i = 0; i < kMore; ++i) link.send(frame, bytes.data(), 0, 0);
    frame.type = last;
    link.send(frame, bytes.data(), 0, 0);
    link.close();
    CHECK(run({&reader}, [&] { return !reader.downs.empty(); }));
    CHECK(reader.frames.size() > kMore / 4);
    CHECK(reader.frames.size() < kMore);
    CHECK(reader.frames.back().type == last || reader.downs[0].code == Code::aborted);
    CHECK_EQ(reader.downs[0].code == Code::aborted, last == FrameType::goodbye);
  }
}

TEST(a_session_waits_for_its_heartbeat_and_two_seconds_for_a_link_over_shared_memory) {
  SessionOptions options;
  options.size = 2;
  options.job = "native-test";
  options.secret = std::string(32, 's');
  options.connect_seconds = 0.01;
  options.heartbeat_seconds = 0.3;
  Session caller(options);
  options.rank = 1;
  Session stopped(options);
  caller.start({{}, {"here", true, stopped.listen_shm(), {}, 0}});
  auto group = std::make_shared<Group>();
  group->id = 1;
  group->ranks = {0, 1};
  group->rank = 0;
  double value = 0;
  Request request;
  request.plan = testing::ring_all_reduce(0, 2);
  request.group = std::move(group);
  request.signature.operation = "all_reduce/test";
  request.signature.reduces = true;
  request.signature.count = 1;
  request.timeout_seconds = 60;
  for (const size_t space : {0, 1}) request.spaces[space] = {reinterpret_cast<std::byte*>(&value), 1, {}};
  const WorkPtr work = caller.prepare(std::move(request), 0);
  CHECK(caller.run(work, now() + seconds(60)));
  CHECK(work->error().text.find("no handshake within 2.3 s") != std::string::npos);
}

// ---- memory that its owner has taken back

TEST(a_peer_that_wakes_up_in_the_middle_of_a_copy_does_not_reach_its_owner) {
  ShmRank writer(0), owner(1);
  CHECK(connect(writer, owner, 1));
  constexpr size_t kBytes = 64 << 10, kAt = 5000, kCopied = 20000;
  const auto region = owner.regions.create(kBytes);
  std::byte* memory = region->memory.data();
  for (size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<std::byte>(i % 251);
  const auto shared = owner.ups[0]->share(memory + kAt, kCopied);
  CHECK(shared.has_value());

  std::byte* to = writer.ups[0]->begin_write(*shared, kCopied);
  CHECK(to != nullptr);
  to[0] = std::byte{255};
  CHECK(memory[kAt] == std::byte{255});
  owner.ups[0]->close();  // the writer is stopped: it neither goes on nor says that it is done
  std::fill_n(memory + kAt, kCopied, std::byte{1});
  std::fill_n(to, kCopied, std::byte{255});  // it wakes up
  bool unchanged = true;
  for (size_t i = 0; i < kBytes; ++i) {
    const bool copied = i >= kAt && i < kAt + kCopied;
    unchanged &= memory[i] == (copied ? std::byte{1} : static_cast<std::byte>(i % 251));
  }
  CHECK(unchanged);
  writer.ups[0]->end_write();
  CHECK(writer.ups[0]->begin_write(*shared, kCopied) == nullptr);
}

TEST(a_peer_begins_no_copy_once_the_owner_has_closed) {
  ShmRank writer(0), owner(1);
  CHECK(connect(writer, owner, 1));
  const auto region = owner.regions.create(8192);
  const auto shared = owner.ups[0]->share(region->memory.data(), 8192);
  CHECK(writer.ups[0]->begin_write(*shared, 8192) != nullptr);
  writer.ups[0]->end_write();
  owner.ups[0]->close();
  CHECK(writer.ups[0]->begin_write(*shared, 8192) == nullptr);
  region->memory.data()[0] = std::byte{9};  // still one with the file: nobody writes, so nothing had to be copied
  std::byte first{};
  CHECK_EQ(::pread(region->fd.get(), &first, 1, 0), 1);
  CHECK(first == std::byte{9});
}

TEST(a_reader_that_comes_too_late_is_told) {
  ShmRank reader(0), owner(1);
  CHECK(connect(reader, owner, 1));
  const auto region = owner.regions.create(64 << 10);
  Frame frame;
  frame.length = 32 << 10;
  int arrived = 0;
  reader.on_arrived = [&](Link& link, const Payload& payload) {
    CHECK(link.intact(payload));
    if (++arrived == 1) return link.release(payload);
    owner.ups[0]->close();
    region->memory.data()[frame.length] = std::byte{9};
    CHECK(payload.data[0] == std::byte{9});
    CHECK(!link.intact(payload));
  };
  CHECK(!owner.ups[0]->send(frame, region->memory.data(), 1));
  CHECK(!owner.ups[0]->send(frame, region->memory.data() + frame.length, 2));
  CHECK(run({&reader, &owner}, [&] { return arrived == 2; }));
}

TEST(what_a_peer_says_of_where_it_writes_is_not_trusted) {
  ShmRank owner(1);
  const auto region = owner.regions.create(8192);
  std::fill_n(region->memory.data(), 8192, std::byte{3});
  owner.regions.part(region->id, 4096, SIZE_MAX);
  owner.regions.part(region->id, SIZE_MAX, 1);
  owner.regions.part(region->id, 8192, 1);
  owner.regions.part(region->id + 77, 0, 4096);
  const std::vector<std::byte> other(8192, std::byte{4});
  CHECK_EQ(::pwrite(region->fd.get(), other.data(), other.size(), 0), 8192);
  CHECK(region->memory.data()[0] == std::byte{4});
  CHECK(region->memory.data()[4096] == std::byte{3});
  CHECK(region->memory.data()[8191] == std::byte{3});
}
