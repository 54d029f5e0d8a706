// The fuzzers' harnesses over their seeds and over changes of them: without a fuzzer, in every build.
#include "tests/fuzz_seeds.h"

#include <random>

#include "tests/check.h"

namespace {

using namespace slipstream::fuzz;

// Bytes changed, dropped, doubled.
Bytes changed(Bytes bytes, std::mt19937& random) {
  for (unsigned i = random() % 8; i > 0; --i) {
    const auto at = bytes.begin() + 1 + static_cast<ptrdiff_t>(random() % (bytes.size() - 1));
    switch (random() % 3) {
      case 0:
        *at = static_cast<std::byte>(random());
        break;
      case 1:
        if (bytes.size() > 2) bytes.erase(at);
        break;
      default:
        bytes.insert(at, static_cast<std::byte>(random()));
    }
  }
  return bytes;
}

template <class F>
void run(const std::vector<Seed>& seeds, F target) {
  std::mt19937 random(17);
  size_t ran = 0;
  for (const auto& [name, bytes] : seeds) {
    CHECK(bytes.size() >= 2);
    target(bytes);
    for (int i = 0; i < 5; ++i, ++ran) target(changed(bytes, random));
  }
  CHECK(ran > 100);
}

}  // namespace

TEST(frames) { run(seeds_for_frames(), fuzz_frames); }

TEST(handshakes) { run(seeds_for_handshake(), fuzz_handshake); }

// Two honest ends with somebody between them who only passes on: the promises above are not kept by letting nobody in.
TEST(honest_ends_come_through) {
  End client(slipstream::Handshake::client(slipstream::rig::identity(0), slipstream::Purpose::link, 1, 0, 11));
  End server(slipstream::Handshake::server(slipstream::rig::identity(1), {slipstream::Purpose::link}));
  for (int i = 0; i < 4; ++i)
    for (auto [from, to] : {std::pair{&client, &server}, {&server, &client}}) {
      from->advance();
      to->hear(std::span(from->said).subspan(from->passed_on));
      from->passed_on = from->said.size();
      to->advance();
    }
  CHECK(client.done());
  CHECK(server.done());
}
