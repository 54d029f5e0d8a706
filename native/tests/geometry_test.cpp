// How a plan's data is cut: blocks, chunks and pieces.
#include "engine/geometry.h"

#include <memory>

#include "tests/check.h"
#include "tests/plans.h"
#include "transport/frame.h"

namespace {

using namespace slipstream;

Request request(std::shared_ptr<const Plan> plan, uint64_t count, uint32_t chunk_bytes) {
  Request r;
  r.plan = std::move(plan);
  r.signature.dtype = DType::f32;
  r.chunk_bytes = chunk_bytes;
  for (Layout& space : r.spaces) space.count = count;
  return r;
}

// A send of all `blocks` blocks.
std::shared_ptr<const Plan> wide_send(int blocks) {
  const int32_t rows[] = {static_cast<int>(StepKind::send), 1, 0, blocks, 0, 0, 0};
  return Plan::compile(0, 2, blocks, rows, {});
}

TEST(blocks_cover_a_space_and_differ_by_one_at_most) {
  const Request r = request(testing::ring_all_reduce(1, 4), 10, 4096);
  const Geometry geometry(r);
  CHECK_EQ(geometry.block(Space::in, 0), uint64_t{0});
  CHECK_EQ(geometry.block(Space::in, 4), uint64_t{10});
  for (int b = 0; b < 4; ++b) {
    const uint64_t size = geometry.block(Space::in, b + 1) - geometry.block(Space::in, b);
    CHECK(size == 2 || size == 3);
  }
  CHECK_EQ(geometry.largest_block(), uint64_t{3});
  CHECK_EQ(geometry.chunks(), uint64_t{1});
}

TEST(offsets_of_the_caller_stand_for_equal_blocks) {
  Request r = request(testing::ring_all_reduce(0, 2), 0, 4096);
  for (Layout& space : r.spaces) space.offsets = {0, 7, 100};
  const Geometry geometry(r);
  CHECK_EQ(geometry.block(Space::out, 1), uint64_t{7});
  CHECK_EQ(geometry.elements(Space::out), uint64_t{100});
  CHECK_EQ(geometry.largest_block(), uint64_t{93});
}

TEST(the_chunks_of_a_step_are_its_block) {
  const Request r = request(testing::ring_all_reduce(0, 3), 1000, 256);  // 64 elements a chunk
  const Geometry geometry(r);
  CHECK_EQ(geometry.chunks(), uint64_t{6});  // of 334 elements
  for (const Step& step : r.plan->steps()) {
    uint64_t next = geometry.block(step.dst, step.block);
    for (uint64_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      const Geometry::Extent piece = geometry.piece(step.dst, step, chunk, 0);
      CHECK(piece.count <= 64);
      if (piece.count > 0) CHECK_EQ(piece.offset, next);
      next += piece.count;
    }
    CHECK_EQ(next, geometry.block(step.dst, step.block + 1));
  }
}

TEST(small_blocks_of_one_step_are_one_piece) {
  const Request small = request(wide_send(4), 100, 4096);
  const Geometry one(small);
  const Step& step = small.plan->steps()[0];
  CHECK_EQ(one.pieces(step), 1u);
  CHECK_EQ(one.piece(Space::in, step, 0, 0).count, uint64_t{100});
  CHECK_EQ(one.piece(Space::in, step, 1, 0).count, uint64_t{0});
}

TEST(blocks_of_more_than_a_chunk_are_pieces_of_their_own) {
  const Request large = request(wide_send(4), 4096, 64);
  const Geometry each(large);
  const Step& step = large.plan->steps()[0];
  CHECK_EQ(each.pieces(step), 4u);
  CHECK_EQ(each.piece(Space::in, step, 2, 3).offset, uint64_t{3 * 1024 + 2 * 16});
  CHECK_EQ(each.piece(Space::in, step, 2, 3).count, uint64_t{16});
}

// recv 0 and 1 into TMP, each passed on to OUT.
std::shared_ptr<const Plan> through_tmp() {
  testing::PlanBuilder b(0, 2, 2);
  for (int block = 0; block < 2; ++block)
    b.add(StepKind::copy, -1, block, {b.add(StepKind::recv, 1, block, {}, Space::in, Space::tmp)}, Space::tmp);
  return b.build();
}

TEST(temporary_space_keeps_a_window_of_chunks) {
  const Request r = request(through_tmp(), 1000, 64);  // 2 blocks of 500 elements: 32 chunks of 16
  Geometry geometry(r);
  CHECK_EQ(geometry.tmp_elements(), uint64_t{1000});
  geometry.fold_tmp(4);
  CHECK_EQ(geometry.tmp_elements(), uint64_t{2 * 4 * 16});
  for (const Step& step : r.plan->steps())
    for (uint64_t chunk = 0; chunk < geometry.chunks(); ++chunk) {
      const Geometry::Extent in_tmp = geometry.piece(Space::tmp, step, chunk, 0);
      const Geometry::Extent in_out = geometry.piece(Space::out, step, chunk, 0);
      CHECK_EQ(in_tmp.count, in_out.count);
      CHECK_EQ(in_tmp.offset, (static_cast<uint64_t>(step.block) * 4 + chunk % 4) * 16);
      CHECK_EQ(in_out.offset, static_cast<uint64_t>(step.block) * 500 + chunk * 16);
    }
}

TEST(a_window_of_temporary_space_is_never_larger_than_all_of_it) {
  Request r = request(through_tmp(), 0, 64);
  const auto blocks = static_cast<size_t>(r.plan->blocks());
  for (Layout& space : r.spaces) {
    space.offsets.assign(blocks + 1, 0);
    space.offsets.back() = space.count = 1000;
  }
  Geometry geometry(r);
  geometry.fold_tmp(geometry.chunks() - 1);
  CHECK_EQ(geometry.tmp_elements(), uint64_t{1000});
}

TEST(temporary_space_is_whole_where_all_chunks_are_under_way) {
  const Request r = request(through_tmp(), 1000, 64);
  Geometry geometry(r);
  geometry.fold_tmp(geometry.chunks());
  CHECK_EQ(geometry.tmp_elements(), uint64_t{1000});
}

TEST(a_plan_knows_what_it_reads_again) {
  const auto plan = through_tmp();
  for (const Step& step : plan->steps()) CHECK_EQ(step.last, step.kind == StepKind::copy);
  testing::PlanBuilder chain(1, 3, 2);
  chain.add(StepKind::send, 2, 0, {chain.add(StepKind::recv, 0, 0)});
  chain.add(StepKind::recv, 0, 1);
  const auto passed_on = chain.build();
  CHECK(!passed_on->steps()[0].last);
  CHECK(passed_on->steps()[2].last);
}

TEST(a_plan_knows_which_sends_carry_the_same) {
  const auto plan = testing::direct_all_reduce(0, 3);
  for (const Step& step : plan->steps())
    if (step.kind == StepKind::send) CHECK_EQ(step.multicast, step.src == Space::out);
}

TEST(no_piece_is_larger_than_a_frame_may_be) {
  const Request r = request(wide_send(4), kMaxPayload, kMaxPayload);  // four frames' worth of bytes
  CHECK_EQ(Geometry(r).pieces(r.plan->steps()[0]), 4u);
}

TEST(traffic_and_intake_are_bytes) {
  const Request r = request(testing::ring_all_reduce(0, 2), 1000, 400);
  const Geometry geometry(r);
  const auto [out, in] = geometry.traffic(r.plan->peers()[0]);
  CHECK_EQ(out, uint64_t{4000});
  CHECK_EQ(in, uint64_t{4000});
  uint64_t received = 0;
  for (uint64_t chunk = 0; chunk < geometry.chunks(); ++chunk) received += geometry.received(chunk);
  CHECK_EQ(received, in);
}

}  // namespace
