// What links base and transport alone can exchange messages with headers of its own. This program links nothing else.
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/check.h"
#include "transport/shm/transport.h"
#include "transport/tcp/transport.h"

using namespace slipstream;

namespace {

// Any 32 bytes that have the type and the length where a frame has them, and end with zeros.
struct Header {
  FrameType type = FrameType::data;
  uint8_t colour = 0;
  uint16_t tag = 0;
  uint32_t length = 0;
  uint64_t address = 0;
  uint32_t request = 0;
  uint32_t unused[2] = {};
  uint16_t stripe = 0;
  uint16_t reserved = 0;
};

constexpr Header kSmall{FrameType::data, 3, 700, 100, 0x0123456789abcdef, 42, {5, 6}, 7, 0};
constexpr Header kBulk{FrameType::data, 255, 65535, 300'000, ~uint64_t{0}, ~uint32_t{0}, {~0u, ~0u}, 65535, 0};
constexpr Header kControl{static_cast<FrameType>(2), 1, 2, 10, 3, 4, {5, 6}, 7, 0};
constexpr Header kHeaders[] = {kSmall, kBulk, kControl};

Identity identity(int rank) {
  Identity id;
  id.secret = "a secret of sixteen bytes or more";
  id.rank = rank;
  id.size = 2;
  return id;
}

// A rank with both transports.
class Rank : public Events, public Arrivals {
 public:
  explicit Rank(int rank)
      : tcp(poller, *this, *this, identity(rank), {}),
        shm(poller, *this, *this, identity(rank), regions, bell, 10),
        port(tcp.listen("127.0.0.1")),
        name(shm.listen()) {}

  void turn() {
    poller.wait(0);
    shm.poll();
    shm.tick(now());
    tcp.tick(now());
  }

  Landing land(Link&, const Frame&) override { return {}; }
  void arrived(Link& link, const Frame& frame, const Payload& payload) override {
    headers.push_back(std::bit_cast<Header>(frame));
    payloads.emplace_back(reinterpret_cast<const char*>(payload.data), payload.size);
    link.release(payload);
  }
  void sent(Link&, uint64_t) override { ++sends; }
  void up(Link& link) override { ups.push_back(&link); }
  void down(Link&, const Error& error) override { downs.push_back(error.text); }
  void accepted(std::unique_ptr<Link> link) override { links.push_back(std::move(link)); }
  void knocked(int) override {}
  void stranger(const std::string&, const std::string&) override {}

  Poller poller;
  Regions regions;
  Bell bell;
  std::vector<std::unique_ptr<Link>> links;
  std::vector<Link*> ups;
  std::vector<Header> headers;
  std::vector<std::string> payloads;
  std::vector<std::string> downs;
  int sends = 0;
  TcpTransport tcp;
  ShmTransport shm;
  uint16_t port;
  std::string name;
};

bool run(Rank& a, Rank& b, const std::function<bool()>& until) {
  const Time end = now() + seconds(20);
  while (!until()) {
    if (now() > end) return false;
    a.turn();
    b.turn();
  }
  return true;
}

void exchange(Link::Kind kind) {
  Rank a(0), b(1);
  a.links.push_back(kind == Link::Kind::tcp ? a.tcp.dial(1, {"127.0.0.1"}, b.port) : a.shm.dial(1, b.name));
  CHECK(run(a, b, [&] { return a.ups.size() == 1 && b.ups.size() == 1; }));
  const auto memory = a.regions.create(kBulk.length);
  std::memset(memory->memory.data(), 'x', kBulk.length);
  const std::byte* data = memory->memory.data();
  int pending = 0;
  for (const Header& header : kHeaders)
    if (!a.ups[0]->send(std::bit_cast<Frame>(header), data, 1)) ++pending;
  CHECK(run(a, b, [&] { return b.headers.size() == std::size(kHeaders) && a.sends == pending; }));
  CHECK_EQ(pending, 1);
  for (const Header& header : kHeaders) {  // the bulk one may come last
    const auto same = [&](const Header& other) { return std::memcmp(&header, &other, sizeof(header)) == 0; };
    const auto at = std::find_if(b.headers.begin(), b.headers.end(), same);
    CHECK(at != b.headers.end());
    if (at == b.headers.end()) continue;
    CHECK(b.payloads[static_cast<size_t>(at - b.headers.begin())] == std::string(header.length, 'x'));
  }
  CHECK(a.downs.empty() && b.downs.empty());
  const Header bye{.type = FrameType::goodbye};
  a.ups[0]->send(std::bit_cast<Frame>(bye), nullptr, 0);
  a.ups[0]->close();
  CHECK(run(a, b, [&] { return b.downs.size() == 1; }));
  CHECK_EQ(b.downs[0], "rank 0 finished and left the job");
}

}  // namespace

TEST(messages_over_tcp) { exchange(Link::Kind::tcp); }
TEST(messages_over_shared_memory) { exchange(Link::Kind::shm); }
