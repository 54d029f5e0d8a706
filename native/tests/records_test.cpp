// The records of encrypted connections: round trips at all sizes and cuts, and whatever can be done to them on the way.
#include "transport/records.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "tests/check.h"
#include "transport/tcp/io_threads.h"

namespace {

using namespace slipstream;
using Text = std::vector<std::byte>;

struct Pair {
  std::unique_ptr<Records> client;
  std::unique_ptr<Records> server;
};

std::unique_ptr<Records> side(bool client, uint64_t records_of_key, std::byte nonce = std::byte{2}) {
  const std::string secret = "0123456789abcdef";
  const std::array<std::byte, 80> hello{};
  const std::array<std::byte, 32> ours{std::byte{1}};
  const std::array<std::byte, 32> theirs{nonce};
  return std::make_unique<Records>(bytes_of(secret), hello, ours, theirs, client, records_of_key);
}

Pair both(uint64_t records_of_key = kRecordsOfKey) { return {side(true, records_of_key), side(false, records_of_key)}; }

Text pattern(size_t size, uint32_t seed = 1) {
  Text text(size);
  uint32_t x = seed * 2654435761u + 1;
  for (std::byte& b : text) b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
  return text;
}

// In as many records as it takes.
Text sealed(Sealer& sealer, const Text& text) {
  Text out;
  for (size_t at = 0; at < text.size();) {
    const iovec part{const_cast<std::byte*>(text.data()) + at, text.size() - at};
    at += sealer.seal({&part, 1});
    const auto bytes = sealer.waiting();
    out.insert(out.end(), bytes.begin(), bytes.end());
    sealer.went(bytes.size());
  }
  return out;
}

// The opener gets what it has space for, but no more than `step`; the rest stays.
void feed(Opener& opener, std::span<const std::byte>& bytes, size_t step = SIZE_MAX) {
  const auto space = opener.space();
  CHECK(!space.empty());
  const size_t n = std::min({space.size(), bytes.size(), step});
  std::copy_n(bytes.begin(), n, space.begin());
  opener.filled(n);
  bytes = bytes.subspan(n);
}

// All that can be had of these bytes, fed in steps of `step`.
Text opened(Opener& opener, std::span<const std::byte> bytes, size_t step = SIZE_MAX) {
  Text text;
  Text part(10'000);
  bool alone = false;
  while (!bytes.empty() && !opener.damaged()) {
    feed(opener, bytes, step);
    const iovec into{part.data(), part.size()};
    while (const size_t got = opener.take({&into, 1}, 0, alone = !alone))
      text.insert(text.end(), part.begin(), part.begin() + static_cast<ptrdiff_t>(got));
  }
  return text;
}

Text joined(std::initializer_list<Text> parts) {
  Text all;
  for (const Text& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace

TEST(aes_128_gcm_vector) {  // test case 2 of the specification
  Gcm gcm(true);
  const std::array<std::byte, Gcm::kKey> key{};
  const std::array<std::byte, Gcm::kNonce> nonce{};
  std::array<std::byte, 16> text{};
  std::array<std::byte, Gcm::kTag> tag{};
  gcm.set_key(key);
  gcm.begin(nonce, {});
  gcm.add(text, text.data());
  gcm.seal(tag.data());
  const unsigned char expected[] = {0x03, 0x88, 0xda, 0xce, 0x60, 0xb6, 0xa3, 0x92, 0xf3, 0x28, 0xc2,
                                    0xb9, 0x71, 0xb2, 0xfe, 0x78, 0xab, 0x6e, 0x47, 0xd4, 0x2c, 0xec,
                                    0x13, 0xbd, 0xf5, 0x3a, 0x67, 0xb2, 0x12, 0x57, 0xbd, 0xdf};
  CHECK(std::memcmp(text.data(), expected, 16) == 0);
  CHECK(std::memcmp(tag.data(), expected + 16, 16) == 0);
}

TEST(what_is_sealed_opens) {
  for (const size_t size : {size_t{1}, size_t{15}, size_t{16}, size_t{17}, size_t{1000}, kRecordMost - 1, kRecordMost,
                            kRecordMost + 1, 2 * kRecordMost + 3, size_t{1'000'001}}) {
    Pair pair = both();
    const Text text = pattern(size);
    const Text bytes = sealed(pair.client->out, text);
    CHECK_EQ(bytes.size(), size + (size + kRecordMost - 1) / kRecordMost * kRecordExtra);
    CHECK(opened(pair.server->in, bytes) == text);
    CHECK(!pair.server->in.ready());
  }
}

TEST(a_stream_may_be_cut_anywhere) {
  const Text first = pattern(33);
  const Text second = pattern(1);
  const Text third = pattern(50);
  for (size_t cut = 0; cut <= 33 + 1 + 50 + 3 * kRecordExtra; ++cut) {
    Pair pair = both();
    const Text bytes =
        joined({sealed(pair.client->out, first), sealed(pair.client->out, second), sealed(pair.client->out, third)});
    const auto all = std::span<const std::byte>(bytes);
    const Text one = opened(pair.server->in, all.first(cut));
    const Text two = opened(pair.server->in, all.subspan(cut));
    CHECK(joined({one, two}) == joined({first, second, third}));
  }
  for (size_t step = 1; step < 70; ++step) {
    Pair pair = both();
    CHECK(opened(pair.server->in, sealed(pair.client->out, first), step) == first);
  }
}

TEST(text_is_scattered_and_gathered) {
  for (const bool alone : {false, true}) {
    Pair pair = both();
    Text one = pattern(100, 1);
    Text two = pattern(kRecordMost, 2);
    Text three = pattern(7, 3);
    const iovec out[] = {
        {one.data(), one.size()}, {two.data(), two.size()}, {nullptr, 0}, {three.data(), three.size()}};
    CHECK_EQ(pair.client->out.seal(out), 100 + kRecordMost + 7);
    auto bytes = pair.client->out.waiting();
    CHECK_EQ(bytes.size(), 107 + kRecordMost + 2 * kRecordExtra);
    // Part by part, with some that is dropped, and record by record.
    Text got(60 + kRecordMost);
    const iovec in[] = {{got.data(), 60}, {nullptr, 40}, {got.data() + 60, kRecordMost}};
    feed(pair.server->in, bytes, kRecordMost + kRecordExtra);
    CHECK_EQ(pair.server->in.take(in, 0, alone), kRecordMost);
    feed(pair.server->in, bytes);
    CHECK(bytes.empty());
    CHECK_EQ(pair.server->in.take(in, kRecordMost, alone), 100u);
    CHECK(pair.server->in.ready());
    CHECK(std::equal(got.begin(), got.begin() + 60, one.begin()));
    CHECK(std::equal(got.begin() + 60, got.end(), two.begin()));
    const iovec rest[] = {{got.data(), 3}, {got.data() + 3, 100}};
    CHECK_EQ(pair.server->in.take({rest, 1}, 0, alone), 3u);
    CHECK_EQ(pair.server->in.take(rest, 3, alone), 4u);  // after what was taken before
    CHECK(std::equal(three.begin(), three.end(), got.begin()));
    CHECK(!pair.server->in.ready());
  }
}

TEST(records_open_into_several_parts) {
  for (const size_t first : {size_t{1}, size_t{64}, size_t{99}}) {
    Pair pair = both();
    const Text text = joined({pattern(first, 1), pattern(100 - first, 2)});
    const Text sent = joined({sealed(pair.client->out, text), sealed(pair.client->out, text)});
    auto bytes = std::span<const std::byte>(sent);
    feed(pair.server->in, bytes);
    Text got(200);
    const iovec in[] = {{got.data(), first}, {got.data() + first, 0}, {got.data() + first, 200 - first}};
    CHECK_EQ(pair.server->in.take(in, 0, true), 200u);
    CHECK(got == joined({text, text}));
  }
}

TEST(what_is_not_intact_goes_nowhere_but_where_nobody_else_writes) {
  for (const bool alone : {false, true}) {
    Pair pair = both();
    const Text text = pattern(100);
    Text sent = joined({sealed(pair.client->out, text), sealed(pair.client->out, text)});
    sent.back() ^= std::byte{1};
    auto bytes = std::span<const std::byte>(sent);
    feed(pair.server->in, bytes);
    Text got(200);
    const iovec in{got.data(), got.size()};
    CHECK_EQ(pair.server->in.take({&in, 1}, 0, alone), 100u);
    CHECK(std::equal(text.begin(), text.end(), got.begin()));
    CHECK(pair.server->in.damaged());
    CHECK_EQ(pair.server->in.take({&in, 1}, 100, alone), 0u);
    CHECK(alone || std::all_of(got.begin() + 100, got.end(), [](std::byte b) { return b == std::byte{}; }));
  }
}

TEST(equal_texts_look_different_and_each_direction_has_its_own_keys) {
  Pair pair = both();
  const Text text = pattern(64);
  const Text once = sealed(pair.client->out, text);
  const Text twice = sealed(pair.client->out, text);
  const Text back = sealed(pair.server->out, text);
  CHECK(once != twice);
  CHECK(once != back);
  CHECK(std::search(once.begin(), once.end(), text.begin(), text.begin() + 8) == once.end());
  // What a side has said itself is nothing to it.
  CHECK(opened(pair.client->in, once).empty());
  CHECK(pair.client->in.damaged());
  // Another connection has other keys.
  const auto other = side(false, kRecordsOfKey, std::byte{3});
  CHECK(opened(other->in, once).empty());
  CHECK(other->in.damaged());
}

TEST(any_byte_that_changes_is_found) {
  const Text text = pattern(100);
  const size_t size = 3 * (100 + kRecordExtra);
  for (size_t at = 0; at < size; ++at)
    for (const int bit : {0, 3, 7}) {
      Pair pair = both();
      Text bytes;
      for (int i = 0; i < 3; ++i) bytes = joined({bytes, sealed(pair.client->out, text)});
      bytes[at] ^= static_cast<std::byte>(1 << bit);
      const size_t good = at / (100 + kRecordExtra);
      const Text got = opened(pair.server->in, bytes);
      CHECK_EQ(got.size(), good * 100);
      // A length that has grown waits for more; whatever comes then is damage.
      if (!pair.server->in.damaged()) opened(pair.server->in, pattern(3 * kRecordMost));
      CHECK(pair.server->in.damaged());
      CHECK(pair.server->in.ready());
      CHECK(opened(pair.server->in, sealed(pair.client->out, text)).empty());
    }
}

TEST(records_that_are_moved_repeated_or_left_out_do_not_open) {
  const auto records = [](Sealer& sealer) {
    return std::vector<Text>{sealed(sealer, pattern(10, 1)), sealed(sealer, pattern(10, 2)),
                             sealed(sealer, pattern(10, 3))};
  };
  const std::vector<std::vector<size_t>> orders{{1, 0, 2}, {0, 2}, {1}, {0, 0, 1}, {0, 1, 0}, {0, 1, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    Pair pair = both();
    const auto all = records(pair.client->out);
    Text bytes;
    for (const size_t i : order) bytes = joined({bytes, all[i]});
    size_t good = 0;
    while (good < order.size() && order[good] == good) ++good;
    CHECK_EQ(opened(pair.server->in, bytes).size(), 10 * good);
    CHECK(pair.server->in.damaged());
  }
}

TEST(half_a_record_is_nothing) {
  Pair pair = both();
  const Text bytes = sealed(pair.client->out, pattern(100));
  CHECK(opened(pair.server->in, std::span(bytes).first(bytes.size() - 1)).empty());
  CHECK(!pair.server->in.ready());
  CHECK(!pair.server->in.damaged());
}

TEST(lengths_that_cannot_be_are_refused_at_once) {
  for (const uint32_t length : {0u, static_cast<uint32_t>(kRecordMost) + 1, 0x7fffffffu, 0xffffffffu}) {
    Pair pair = both();
    Text bytes(kRecordHeader);
    std::memcpy(bytes.data(), &length, sizeof(length));
    CHECK(opened(pair.server->in, bytes).empty());
    CHECK(pair.server->in.damaged());
  }
}

TEST(keys_change_and_both_sides_know_when) {
  constexpr uint64_t kOften = 3;
  Pair pair = both(kOften);
  const auto other = both();
  for (uint32_t i = 0; i < 20; ++i) {
    const Text text = pattern(50 + i, i);
    const Text bytes = sealed(pair.client->out, text);
    CHECK(opened(pair.server->in, bytes) == text);
    const Text same = sealed(other.client->out, text);
    CHECK((same == bytes) == (i < kOften));  // the first key is the same
  }
  // Who does not change keys does not understand what comes then.
  const auto forgetful = side(false, 1000);
  const auto client = side(true, kOften);
  for (uint32_t i = 0; i < kOften; ++i) CHECK(opened(forgetful->in, sealed(client->out, pattern(9))) == pattern(9));
  CHECK(opened(forgetful->in, sealed(client->out, pattern(9))).empty());
  CHECK(forgetful->in.damaged());
}

TEST(over_sockets_that_take_little_at_a_time) {
  int fds[2] = {-1, -1};
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  const Fd ours(fds[0]);
  Fd theirs(fds[1]);
  const int small = 4096;
  CHECK_EQ(::setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
  Pair pair = both(2);
  const Text text = pattern(700'001);
  Text got(text.size());
  size_t out = 0;
  size_t in = 0;
  bool blocked = false;
  while (in < got.size()) {
    IoCall write{.fd = ours.get(),
                 .records = pair.client.get(),
                 .out = true,
                 .count = 1,
                 .parts = {{const_cast<std::byte*>(text.data()) + out, text.size() - out}}};
    perform(write);
    if (write.result > 0) out += static_cast<size_t>(write.result);
    blocked |= write.result < 0 && write.error == EAGAIN;
    IoCall read{.fd = theirs.get(),
                .records = pair.server.get(),
                .count = 2,
                .parts = {{got.data() + in, std::min<size_t>(got.size() - in, 1000)}, {got.data(), 0}}};
    perform(read);
    if (read.result > 0) in += static_cast<size_t>(read.result);
    CHECK(read.result > 0 || read.error == EAGAIN);
  }
  CHECK(blocked);
  CHECK(got == text);
  // What came before damage is given first, then the damage, as often as one asks.
  Text last = sealed(pair.client->out, pattern(20));
  Text bad = sealed(pair.client->out, pattern(20));
  bad[10] ^= std::byte{1};
  const Text bytes = joined({last, bad});
  CHECK_EQ(::send(ours.get(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  for (int i = 0; i < 3; ++i) {
    IoCall read{.fd = theirs.get(), .records = pair.server.get(), .count = 1, .parts = {{got.data(), 100}}};
    perform(read);
    if (i == 0) CHECK_EQ(read.result, 20);
    if (i > 0) CHECK(read.result < 0 && read.error == EBADMSG);
    CHECK(pair.server->in.ready());
  }
  // The end, and a write to nobody.
  const auto fresh = both();
  theirs.reset();
  IoCall read{.fd = ours.get(), .records = fresh.client.get(), .count = 1, .parts = {{got.data(), 100}}};
  perform(read);
  CHECK_EQ(read.result, 0);
  IoCall write{.fd = ours.get(), .records = fresh.client.get(), .out = true, .count = 1, .parts = {{got.data(), 100}}};
  perform(write);
  CHECK(write.result < 0 && write.error == EPIPE);
}
