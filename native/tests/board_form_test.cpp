// What a board's call makes of blocks whose lengths only their rank knows, and of tables that cannot be right.
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "boards/form.h"
#include "boards/rows.h"
#include "tests/check.h"

namespace slipstream::testing {

namespace {

constexpr uint64_t kRoom = 100;  // bytes of a block at most
constexpr auto kUntouched = std::byte{0xee};

// Rank 1 of three.
struct Scene {
  explicit Scene(BoardForm::Kind kind) {
    group->ranks = {0, 1, 2};
    group->rank = 1;
    request.group = group;
    request.signature.dtype = DType::u8;
    request.spaces[1].offsets = {0, kRoom, 2 * kRoom, 3 * kRoom};
    form.kind = kind;
    posts.assign(3, std::vector<std::byte>(BoardRows::room(3)));
  }
  // What rank `r` contributes: blocks of these lengths, all bytes of block b being 10 r + b.
  void post(int r, const std::array<uint64_t, 4>& offsets) {
    std::vector<std::byte> blocks;
    for (int b = 0; b < 3; ++b) blocks.resize(offsets[static_cast<size_t>(b) + 1], static_cast<std::byte>(10 * r + b));
    Request theirs = request;
    auto other = std::make_shared<Group>(*group);
    other->rank = r;
    theirs.group = other;
    theirs.spaces[0].offsets.assign(offsets.begin(), offsets.end());
    const BoardCall call{theirs, form, blocks.data(), nullptr, 0, name, 0};
    CHECK(call.most_bytes() > BoardRows::kSmallBytes);
    CHECK_EQ(call.most_bytes(), call.bytes_of(r));
    call.contribute(posts[static_cast<size_t>(r)].data());
  }
  // What the ranks' blocks for this one are, up to the first byte that nobody wrote.
  std::vector<std::string> taken() {
    std::vector<std::byte> out(3 * kRoom, kUntouched);
    const BoardCall call{request, form, nullptr, out.data(), 0, name, 0};
    call.conclude([this](int r) { return posts[static_cast<size_t>(r)].data(); });
    std::vector<std::string> found;
    for (size_t r = 0; r < 3; ++r) {
      std::string text;
      for (size_t i = r * kRoom; i < (r + 1) * kRoom && out[i] != kUntouched; ++i)
        text += std::to_string(static_cast<int>(out[i])) + " ";
      found.push_back(text);
    }
    return found;
  }

  const std::shared_ptr<Group> group = std::make_shared<Group>();
  const std::string name;
  Request request;
  BoardForm form;
  std::vector<std::vector<std::byte>> posts;
};

}  // namespace

TEST(a_rank_takes_the_block_that_each_rank_tells_all) {
  Scene scene(BoardForm::Kind::told);
  scene.post(0, {0, 2, 2, 2});
  scene.post(1, {0, 0, 3, 3});
  scene.post(2, {0, 0, 0, 0});
  CHECK(scene.taken() == (std::vector<std::string>{"0 0 ", "11 11 11 ", ""}));
}

TEST(a_rank_takes_the_blocks_that_are_for_it) {
  Scene scene(BoardForm::Kind::told_each);
  scene.post(0, {0, 2, 3, 7});
  scene.post(1, {0, 4, 6, 6});
  scene.post(2, {0, 4, 4, 9});
  CHECK(scene.taken() == (std::vector<std::string>{"1 ", "11 11 ", ""}));
}

TEST(a_table_that_cannot_be_right_brings_nothing) {
  const uint64_t beyond = BoardRows::room(3);
  const std::array<std::array<uint64_t, 2>, 5> tables{{{5, 2},
                                                       {0, kRoom + 1},
                                                       {beyond, beyond + 1},
                                                       {~uint64_t{0}, 3},
                                                       {beyond - 4 * sizeof(uint64_t) - 3, ~uint64_t{0}}}};
  for (const auto& table : tables) {
    Scene scene(BoardForm::Kind::told);
    for (int r = 0; r < 3; ++r) scene.post(r, {0, 0, 0, 0});
    std::memcpy(scene.posts[2].data() + 2 * sizeof(uint64_t), table.data(), sizeof(table));
    CHECK(scene.taken() == (std::vector<std::string>{"", "", ""}));
  }
}

}  // namespace slipstream::testing
