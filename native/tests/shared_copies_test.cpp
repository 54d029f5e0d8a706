// The memory of a work: spaces, staged and scaled copies, sums, pieces that are held, and what a peer lets us send.
#include "engine/shared_copies.h"

#include <cstring>
#include <vector>

#include "engine/held_pieces.h"
#include "engine/scaled_input.h"
#include "engine/send_gate.h"
#include "engine/wide_sums.h"
#include "engine/work_memory.h"
#include "tests/check.h"
#include "tests/plans.h"

namespace {

using namespace slipstream;

Request request(std::vector<float>& data, uint32_t chunk_bytes) {
  Request r;
  r.plan = testing::direct_all_reduce(0, 3);
  r.signature.dtype = DType::f32;
  r.chunk_bytes = chunk_bytes;
  for (Layout& space : r.spaces) space = {reinterpret_cast<std::byte*>(data.data()), data.size(), {}};
  return r;
}

class SilentLink final : public Link {
 public:
  SilentLink() : Link(1, Kind::memory) {}
  bool send(const Frame&, const std::byte*, uint64_t, int) override { return true; }
  void release(const Payload&) override {}
  std::byte* remote(const Shared& shared, size_t bytes) override {
    return shared.region == 7 && shared.offset + bytes <= 4096 ? memory : nullptr;
  }
  void close() override {}

  std::byte memory[4096];
};

TEST(a_batch_is_copied_once_and_again_for_the_next_chunk_in_its_slot) {
  std::vector<float> data(3000, 1.0f);
  const Request r = request(data, 1000);
  const Geometry geometry(r);
  Regions regions;
  Arena arena(regions);
  SharedCopies copies(arena, regions, *r.plan, geometry, 2);
  const Step& step = r.plan->steps()[0];
  const auto* from = reinterpret_cast<const std::byte*>(data.data());
  copies.begin(0);
  const std::byte* first = copies.stage(step, 0, 0, from, 1000);
  CHECK(first != from);
  CHECK(regions.find(first, 1000) != nullptr);
  data[0] = 2.0f;
  CHECK(copies.stage(step, 0, 0, from, 1000) == first);
  CHECK_EQ(*reinterpret_cast<const float*>(first), 1.0f);
  copies.begin(1);
  CHECK(copies.stage(step, 1, 0, from, 1000) != first);
  copies.begin(2);  // in the slot of chunk 0
  CHECK(copies.stage(step, 2, 0, from, 1000) == first);
  CHECK_EQ(*reinterpret_cast<const float*>(first), 2.0f);
  CHECK(copies.stage(step, 2, 0, first, 1000) == first);  // shared memory is sent from where it is
}

TEST(input_is_scaled_where_it_is_read) {
  std::vector<float> data(300, 3.0f);
  const Request r = request(data, 1000);
  const Geometry geometry(r);
  Regions regions;
  Arena arena(regions);
  ScaledInput scaled(arena, geometry, 0.5);
  const auto* from = reinterpret_cast<const std::byte*>(data.data());
  const Step& send = r.plan->steps()[0];
  CHECK(scaled.applies(send));
  const std::byte* sent = scaled.for_send(send, 1, 0, from, 10);
  CHECK_EQ(reinterpret_cast<const float*>(sent)[9], 1.5f);
  CHECK_EQ(reinterpret_cast<const float*>(scaled.read(send, from, 4))[3], 1.5f);
  CHECK_EQ(data[0], 3.0f);
  scaled.drop(1);
  CHECK(!ScaledInput(arena, geometry, 1.0).applies(send));
}

TEST(a_windowed_work_has_one_ring_for_all_spaces) {
  std::vector<float> data(300);
  Request r = request(data, 100);
  const Geometry geometry(r);
  Regions regions;
  Arena arena(regions);
  const WorkMemory plain(arena, r, geometry, 2, true);
  CHECK(plain.at(Space::in, 1) == reinterpret_cast<std::byte*>(data.data() + 1));
  r.part.emplace().windowed = true;
  const WorkMemory ring(arena, r, geometry, 2, true);
  CHECK_EQ(ring.ring_elements(), uint64_t{50});
  CHECK(ring.at(Space::in, 3) == ring.at(Space::out, 53));
}

TEST(temporary_space_is_shared_and_kept_for_the_next_work) {
  std::vector<float> data(10'000);
  testing::PlanBuilder plan(0, 2, 1);
  plan.add(StepKind::recv, 1, 0, {}, Space::in, Space::tmp);
  Request r = request(data, 4000);
  r.plan = plan.build();
  Regions regions;
  Arena arena(regions);
  const std::byte* first = nullptr;
  for (int work = 0; work < 2; ++work) {
    const WorkMemory memory(arena, r, Geometry(r), 2, true);
    if (first == nullptr) first = memory.at(Space::tmp, 0);
    CHECK(memory.at(Space::tmp, 0) == first);
    CHECK(regions.find(first, data.size() * sizeof(float)) != nullptr);
  }
  const auto is_shared = [&](bool peers_here) {
    const WorkMemory memory(arena, r, Geometry(r), 2, peers_here);
    return regions.find(memory.at(Space::tmp, 0), 4) != nullptr;
  };
  CHECK(!is_shared(false));
  for (Layout& space : r.spaces) space.count = 1000;  // it travels in frames: it takes no descriptor
  CHECK(!is_shared(true));
}

TEST(sums_of_short_floats_are_rounded_once) {
  std::vector<float> data(1);
  Request r = request(data, 100);
  r.signature.dtype = DType::bf16;
  r.divisor = 2;
  WideSums sums(r, 4);
  CHECK(static_cast<bool>(sums));
  const uint16_t one = 0x3f80, tiny = 0x3b00;  // 1 and 2^-9, which bf16 loses beside 1
  uint16_t result = 0;
  sums.set(5, reinterpret_cast<const std::byte*>(&one), 1);
  for (int i = 0; i < 512; ++i) sums.add(5, reinterpret_cast<const std::byte*>(&tiny), 1);
  sums.finish(5, reinterpret_cast<std::byte*>(&result), 1);
  CHECK_EQ(result, one);  // (1 + 512 * 2^-9) / 2
  r.signature.dtype = DType::f32;
  CHECK(!WideSums(r, 4));
}

TEST(held_pieces_outlive_their_link) {
  SilentLink link;
  std::vector<std::byte> bytes(8, std::byte{5});
  WorkHeader frame;
  frame.chunk = 3;
  HeldPieces held;
  held.keep(2, link, frame, Payload{bytes.data(), 8, false, 1});
  CHECK(held.has(2, frame));
  frame.piece = 1;
  CHECK(!held.has(2, frame));
  held.outlive(link);
  std::memset(bytes.data(), 0, bytes.size());
  CHECK(held.take(1, 3).empty());
  const auto taken = held.take(2, 3);
  CHECK_EQ(taken.size(), size_t{1});
  CHECK(taken[0].link() == nullptr);
  CHECK(taken[0].payload().data[7] == std::byte{5});
  CHECK(held.take(2, 3).empty());
}

TEST(a_gate_opens_once_and_gives_back_what_waited) {
  SendGate gate;
  CHECK(!gate.may_open());
  gate.block({4, 2});
  CHECK(gate.blocks());
  gate.set_eager();
  CHECK(gate.may_open());
  const auto sends = gate.open();
  CHECK_EQ(sends.size(), size_t{1});
  CHECK_EQ(sends[0].step, 4u);
  CHECK(gate.is_open());
  CHECK(!gate.may_open());
  CHECK(!gate.blocks());
}

TEST(a_gate_takes_only_a_placement_that_its_memory_has_room_for) {
  std::vector<float> data(300);
  const Request r = request(data, 4096);  // blocks of 400 bytes
  const Geometry geometry(r);
  const Plan& plan = *r.plan;
  const Plan::Peer& peer = plan.peers()[static_cast<size_t>(plan.peer_index(1))];
  SilentLink link;
  const auto ready = [&](std::vector<uint64_t> table) {
    SendGate gate;
    gate.set_ready(std::as_bytes(std::span(table)), link, plan, peer, geometry);
    CHECK(gate.may_open());
    return gate;
  };
  std::vector<uint64_t> table = {7, 64, 1200};
  for (size_t i = 0; i < peer.sends.size(); ++i) table.push_back(800);
  const auto placed = ready(table).place(0, 16);
  CHECK(placed.has_value());
  CHECK_EQ(placed->offset, uint64_t{64 + 800 + 16});
  table[3] = 801;  // one byte too far
  CHECK(!ready(table).place(0, 0));
  table[3] = SendGate::kNowhere;
  CHECK(!ready(table).place(0, 0));
  table[0] = 8;  // no such region
  CHECK(!ready(table).place(0, 0));
  CHECK(!ready({}).place(0, 0));
  CHECK(!ready({7, 64}).place(0, 0));
}

TEST(only_receives_that_wait_for_nothing_are_placed) {
  std::vector<float> data(300);
  const Request r = request(data, 4096);
  const Geometry geometry(r);
  const Plan& plan = *r.plan;
  const Plan::Peer& peer = plan.peers()[static_cast<size_t>(plan.peer_index(1))];
  const auto table = encode_placement({7, 64}, 1200, plan, peer, geometry);
  CHECK_EQ(table.size(), 3 + peer.recvs.size());
  for (size_t i = 0; i < peer.recvs.size(); ++i) {
    const Step& step = plan.steps()[peer.recvs[i]];
    CHECK_EQ(table[3 + i], step.kind == StepKind::recv ? geometry.block(step.dst, step.block) * 4 : SendGate::kNowhere);
  }
}

}  // namespace
