// libcrypto as we call it against published vectors, and the handshake over socket pairs.
#include "transport/handshake.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/fd.h"
#include "tests/check.h"

namespace {

using namespace slipstream;
using State = Handshake::State;

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte b : digest) {
    text += "0123456789abcdef"[std::to_integer<int>(b >> 4)];
    text += "0123456789abcdef"[std::to_integer<int>(b & std::byte{15})];
  }
  return text;
}

Digest hash(const std::string& text) { return sha256(bytes_of(text)); }

Digest hmac(const std::string& key, const std::string& text) {
  const size_t half = text.size() / 2;
  return hmac_sha256(bytes_of(key), {bytes_of(text).first(half), bytes_of(text).subspan(half)});
}

struct Pair {
  Fd a;
  Fd b;
};

Pair socket_pair() {
  int fds[2] = {-1, -1};
  CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

Identity rank_of_job(int rank, const std::string& secret = "0123456789abcdef", const char* job = "job") {
  Identity id;
  const Digest digest = hash(job);
  std::copy_n(digest.begin(), id.job.size(), id.job.begin());
  id.secret = secret;
  id.rank = rank;
  id.size = 4;
  return id;
}

std::vector<std::byte> drain(int fd) {
  std::vector<std::byte> bytes(4096);
  const ssize_t n = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return bytes;
}

void feed(int fd, std::span<const std::byte> bytes) {
  CHECK_EQ(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

struct Ends {
  State client;
  State server;
};

// Runs both sides, each dropping its socket when it fails, until neither moves.
Ends converse(Handshake& client, Handshake& server) {
  Pair pair = socket_pair();
  Ends ends{State::going, State::going};
  for (int i = 0; i < 20; ++i) {
    if (ends.client == State::going) ends.client = client.advance(pair.a.get());
    if (ends.client == State::failed) pair.a.reset();
    if (ends.server == State::going) ends.server = server.advance(pair.b.get());
    if (ends.server == State::failed) pair.b.reset();
  }
  return ends;
}

Identity encrypting(Identity id) {
  id.encrypt = true;
  return id;
}

bool says(const Handshake& handshake, const char* words) { return handshake.why().find(words) != std::string::npos; }

constexpr auto kAll = {Purpose::link, Purpose::lane, Purpose::knock};

}  // namespace

TEST(sha256_vectors) {
  CHECK_EQ(hex(hash("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK_EQ(hex(hash("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK_EQ(hex(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK_EQ(hex(hash(std::string(1'000'000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(hmac_vectors_of_rfc_4231) {
  CHECK_EQ(hex(hmac(std::string(20, '\x0b'), "Hi There")),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK_EQ(hex(hmac("Jefe", "what do ya want for nothing?")),
           "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_EQ(hex(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(constant_time_equality) {
  Digest a = hash("a");
  Digest b = a;
  CHECK(equal_constant_time(a, b));
  for (size_t i = 0; i < a.size(); ++i) {
    b = a;
    b[i] ^= std::byte{1};
    CHECK(!equal_constant_time(a, b));
  }
  CHECK(!equal_constant_time(a, std::span(a).first(31)));
}

TEST(random_bytes_differ) {
  Digest a{};
  Digest b{};
  random_bytes(a);
  random_bytes(b);
  CHECK(a != b);
}

TEST(both_sides_agree) {
  auto client = Handshake::client(rank_of_job(1), Purpose::lane, 2, 7, 0x1122334455667788);
  auto server = Handshake::server(rank_of_job(2), kAll);
  CHECK(client.wants_write());
  CHECK(!server.wants_write());
  const Ends ends = converse(client, server);
  CHECK(ends.client == State::done);
  CHECK(ends.server == State::done);
  CHECK(server.hello().purpose == Purpose::lane);
  CHECK_EQ(server.hello().rank, 1u);
  CHECK_EQ(server.hello().target, 2u);
  CHECK_EQ(server.hello().lane, 7u);
  CHECK_EQ(server.hello().token, 0x1122334455667788u);
}

TEST(nothing_beyond_the_handshake_is_read) {
  Pair pair = socket_pair();
  auto client = Handshake::client(rank_of_job(1), Purpose::link, 2, 0, 1);
  auto server = Handshake::server(rank_of_job(2), kAll);
  client.advance(pair.a.get());
  server.advance(pair.b.get());
  client.advance(pair.a.get());
  const std::string more = "frames";
  feed(pair.a.get(), std::as_bytes(std::span(more.data(), more.size())));
  CHECK(server.advance(pair.b.get()) == State::done);
  feed(pair.b.get(), std::as_bytes(std::span(more.data(), more.size())));
  CHECK(client.advance(pair.a.get()) == State::done);
  CHECK_EQ(drain(pair.b.get()).size(), more.size());
  CHECK_EQ(drain(pair.a.get()).size(), more.size());
}

TEST(byte_by_byte) {
  Pair outer = socket_pair();  // client <-> us
  Pair inner = socket_pair();  // us <-> server
  auto client = Handshake::client(rank_of_job(1), Purpose::link, 2, 0, 1);
  auto server = Handshake::server(rank_of_job(2), kAll);
  State c = State::going;
  State s = State::going;
  for (int i = 0; i < 400 && (c == State::going || s == State::going); ++i) {
    if (c == State::going) c = client.advance(outer.a.get());
    if (s == State::going) s = server.advance(inner.b.get());
    std::byte one{};
    if (::recv(outer.b.get(), &one, 1, 0) == 1) feed(inner.a.get(), std::span(&one, 1));
    if (::recv(inner.a.get(), &one, 1, 0) == 1) feed(outer.b.get(), std::span(&one, 1));
  }
  CHECK(c == State::done);
  CHECK(s == State::done);
}

TEST(wrong_secret_fails_on_both_sides) {
  auto client = Handshake::client(rank_of_job(1, "one secret"), Purpose::link, 2, 0, 1);
  auto server = Handshake::server(rank_of_job(2, "another secret"), kAll);
  const Ends ends = converse(client, server);
  CHECK(ends.client == State::failed);
  CHECK(ends.server == State::failed);
  CHECK(!client.closed());
  CHECK(client.why().find("SLIPSTREAM_SECRET") != std::string::npos);
  CHECK(server.closed());
  CHECK(server.why().find("SLIPSTREAM_SECRET") != std::string::npos);
}

TEST(a_client_that_ignores_the_servers_proof_is_refused) {
  Pair pair = socket_pair();
  auto server = Handshake::server(rank_of_job(2), kAll);
  auto honest = Handshake::client(rank_of_job(1), Purpose::link, 2, 0, 1);
  honest.advance(pair.a.get());
  server.advance(pair.b.get());
  drain(pair.a.get());
  feed(pair.a.get(), Digest{});
  CHECK(server.advance(pair.b.get()) == State::failed);
  CHECK(!server.closed());
  CHECK(drain(pair.a.get()).empty());
}

TEST(a_servers_proof_is_not_a_clients) {
  Pair pair = socket_pair();
  auto server = Handshake::server(rank_of_job(2), kAll);
  auto honest = Handshake::client(rank_of_job(1), Purpose::link, 2, 0, 1);
  honest.advance(pair.a.get());
  server.advance(pair.b.get());
  const auto challenge = drain(pair.a.get());
  CHECK_EQ(challenge.size(), 64u);
  feed(pair.a.get(), std::span(challenge).subspan(32));
  CHECK(server.advance(pair.b.get()) == State::failed);
}

TEST(each_field_of_the_hello_is_checked_in_silence) {
  struct Case {
    Identity client;
    Purpose purpose;
    int target;
    const char* word;
  };
  Identity big = rank_of_job(3);
  big.rank = 9;
  const std::vector<Case> cases{{rank_of_job(1, "0123456789abcdef", "other"), Purpose::link, 2, "another job"},
                                {rank_of_job(1), Purpose::shm, 2, "purpose"},
                                {rank_of_job(1), static_cast<Purpose>(77), 2, "purpose"},
                                {rank_of_job(1), Purpose::link, 3, "rank 3"},
                                {big, Purpose::link, 2, "rank 9"}};
  for (const Case& c : cases) {
    Pair pair = socket_pair();
    auto client = Handshake::client(c.client, c.purpose, c.target, 0, 1);
    auto server = Handshake::server(rank_of_job(2), kAll);
    client.advance(pair.a.get());
    CHECK(server.advance(pair.b.get()) == State::failed);
    CHECK(!server.closed());
    CHECK(server.why().find(c.word) != std::string::npos);
    CHECK(drain(pair.a.get()).empty());
    pair.b.reset();
    CHECK(client.advance(pair.a.get()) == State::failed);
    CHECK(client.closed());
  }
}

TEST(another_version_is_named_with_ours_and_the_cure) {
  Pair pair = socket_pair();
  auto server = Handshake::server(rank_of_job(2), kAll);
  Hello hello;
  hello.version = 77;
  feed(pair.a.get(), std::as_bytes(std::span(&hello, 1)));
  CHECK(server.advance(pair.b.get()) == State::failed);
  CHECK(server.why().starts_with("speaks protocol version 77, this is slipstream "));
  CHECK(server.why().ends_with(" with protocol version " + std::to_string(kProtocolVersion) +
                               ": install the same slipstream on all hosts"));
  CHECK(drain(pair.a.get()).empty());
}

void flip_each_bit_of_the_hello(const Identity& one, const Identity& other) {
  for (size_t bit = 0; bit < 640; ++bit) {
    Pair outer = socket_pair();
    Pair inner = socket_pair();
    auto client = Handshake::client(one, Purpose::link, 2, 0, 1);
    auto server = Handshake::server(other, kAll);
    client.advance(outer.a.get());
    auto hello = drain(outer.b.get());
    CHECK_EQ(hello.size(), sizeof(Hello));
    hello[bit / 8] ^= std::byte{1} << (bit % 8);
    feed(inner.a.get(), hello);
    if (server.advance(inner.b.get()) == State::failed) continue;
    feed(outer.b.get(), drain(inner.a.get()));
    CHECK(client.advance(outer.a.get()) == State::failed);
  }
}

TEST(every_flipped_bit_of_the_hello_is_refused_or_fails_the_proof) {
  flip_each_bit_of_the_hello(rank_of_job(1), rank_of_job(2));
}

// Nobody between the two can make them leave encryption away, or believe that they agree.
TEST(the_flag_of_encryption_cannot_be_changed_on_the_way) {
  flip_each_bit_of_the_hello(encrypting(rank_of_job(1)), encrypting(rank_of_job(2)));
  flip_each_bit_of_the_hello(encrypting(rank_of_job(1)), rank_of_job(2));
  flip_each_bit_of_the_hello(rank_of_job(1), encrypting(rank_of_job(2)));
}

TEST(both_sides_get_the_same_keys_and_only_if_they_encrypt) {
  auto client = Handshake::client(encrypting(rank_of_job(1)), Purpose::link, 2, 0, 1);
  auto server = Handshake::server(encrypting(rank_of_job(2)), kAll);
  CHECK(client.records() == nullptr);
  const Ends ends = converse(client, server);
  CHECK(ends.client == State::done);
  CHECK(ends.server == State::done);
  const auto ours = client.records();
  const auto theirs = server.records();
  const std::string text = "a text";
  const iovec part{const_cast<char*>(text.data()), text.size()};
  CHECK_EQ(ours->out.seal({&part, 1}), text.size());
  const auto sealed = ours->out.waiting();
  const auto space = theirs->in.space();
  std::copy(sealed.begin(), sealed.end(), space.begin());
  theirs->in.filled(sealed.size());
  std::string heard(text.size(), ' ');
  const iovec into{heard.data(), heard.size()};
  CHECK_EQ(theirs->in.take({&into, 1}, 0, true), text.size());
  CHECK_EQ(heard, text);

  auto plain_client = Handshake::client(rank_of_job(1), Purpose::link, 2, 0, 1);
  auto plain_server = Handshake::server(rank_of_job(2), kAll);
  converse(plain_client, plain_server);
  CHECK(plain_client.records() == nullptr);
  CHECK(plain_server.records() == nullptr);
}

TEST(sides_that_differ_about_encryption_both_say_so) {
  for (const bool client_encrypts : {true, false}) {
    const Identity one = rank_of_job(1), other = rank_of_job(2);
    auto client = Handshake::client(client_encrypts ? encrypting(one) : one, Purpose::link, 2, 0, 1);
    auto server = Handshake::server(client_encrypts ? other : encrypting(other), kAll);
    const Ends ends = converse(client, server);
    CHECK(ends.client == State::failed);
    CHECK(ends.server == State::failed);
    for (const auto* handshake : {&client, &server}) {
      CHECK(!handshake->closed());
      CHECK(says(*handshake, "SLIPSTREAM_ENCRYPT must be the same on all ranks"));
      const bool encrypts = client_encrypts == (handshake == &client);
      CHECK(says(*handshake, encrypts ? "does not encrypt its connections, and this rank does"
                                      : "encrypts its connections (SLIPSTREAM_ENCRYPT=1), and this rank does not"));
      CHECK(handshake->records() == nullptr);
    }
  }
}

// Who does not know the secret cannot have it said.
TEST(sides_that_differ_about_the_secret_too_say_that) {
  auto client = Handshake::client(encrypting(rank_of_job(1, "one secret")), Purpose::link, 2, 0, 1);
  auto server = Handshake::server(rank_of_job(2, "another secret"), kAll);
  converse(client, server);
  CHECK(says(client, "SLIPSTREAM_SECRET"));
  CHECK(says(server, "SLIPSTREAM_SECRET"));
}

TEST(a_replayed_transcript_is_refused) {
  std::vector<std::byte> transcript;
  {
    Pair outer = socket_pair();
    Pair inner = socket_pair();
    auto client = Handshake::client(rank_of_job(1), Purpose::link, 2, 0, 1);
    auto server = Handshake::server(rank_of_job(2), kAll);
    State s = State::going;
    for (int i = 0; i < 3; ++i) {
      client.advance(outer.a.get());
      const auto said = drain(outer.b.get());
      transcript.insert(transcript.end(), said.begin(), said.end());
      feed(inner.a.get(), said);
      s = server.advance(inner.b.get());
      feed(outer.b.get(), drain(inner.a.get()));
    }
    CHECK(s == State::done);
  }
  CHECK_EQ(transcript.size(), 112u);
  Pair pair = socket_pair();
  auto server = Handshake::server(rank_of_job(2), kAll);
  feed(pair.a.get(), transcript);
  CHECK(server.advance(pair.b.get()) == State::failed);
  CHECK(!server.closed());
}

TEST(ten_thousand_random_strangers_are_refused) {
  std::mt19937 random(1);
  for (int i = 0; i < 10'000; ++i) {
    Pair pair = socket_pair();
    auto server = Handshake::server(rank_of_job(2), kAll);
    Hello hello;
    hello.job = rank_of_job(2).job;
    hello.target = 2;
    std::vector<std::byte> bytes(sizeof(hello) + 64);
    std::memcpy(bytes.data(), &hello, sizeof(hello));
    // From pure noise to a good hello followed by noise.
    const size_t good = random() % (sizeof(hello) + 1);
    for (size_t k = good; k < bytes.size(); ++k) bytes[k] = static_cast<std::byte>(random());
    bytes.resize(random() % (bytes.size() + 1));
    feed(pair.a.get(), bytes);
    pair.a.reset();
    CHECK(server.advance(pair.b.get()) == State::failed);
    CHECK(!server.why().empty());
  }
}
