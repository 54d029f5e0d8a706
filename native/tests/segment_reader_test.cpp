// What arrives in any portions becomes headers and payloads again, and what nobody wants goes nowhere.
#include "transport/tcp/segment_reader.h"

#include <vector>

#include "tests/check.h"
#include "tests/tcp_rig.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

using Bytes = std::vector<std::byte>;

struct Message {
  SegmentHeader header;
  Bytes payload;
};

Message message(uint64_t number, uint32_t size, uint32_t offset = 0) {
  Message made{{frame(FrameType::data, size), number, offset, size}, pattern(size, static_cast<uint32_t>(number))};
  made.header.check.payload = payload_check(made.payload);
  return made;
}

Bytes wire_of(const std::vector<Message>& messages) {
  Bytes wire;
  for (const Message& one : messages) {
    const auto header = std::as_bytes(std::span(&one.header, 1));
    wire.insert(wire.end(), header.begin(), header.end());
    wire.insert(wire.end(), one.payload.begin(), one.payload.end());
  }
  return wire;
}

// A lane: gives memory to each payload, and keeps what has come. At most `portion` bytes come in a call.
struct Lane {
  SegmentReader reader;
  std::vector<SegmentHeader> headers;
  std::vector<Bytes> payloads;
  std::vector<uint32_t> crcs;

  void read(const Bytes& wire, size_t portion) {
    for (size_t at = 0; at < wire.size();) at += read_once(wire, at, portion);
  }

  size_t read_once(const Bytes& wire, size_t at, size_t portion) {
    IoCall call;
    reader.prepare(call, true);
    const size_t n = std::min({portion, call.bytes(), wire.size() - at});
    CHECK(n > 0);
    size_t copied = 0;
    for (size_t i = 0; i < call.count && copied < n; ++i) {
      const size_t part = std::min(call.parts[i].iov_len, n - copied);
      if (call.parts[i].iov_base != nullptr) std::memcpy(call.parts[i].iov_base, wire.data() + at + copied, part);
      if (i == 0 && call.checks) call.crc = crc32c({wire.data() + at, part}, call.crc);
      copied += part;
    }
    reader.came(n, call.crc);
    if (reader.has_payload()) {
      reader.end_payload();
      crcs.push_back(reader.crc());
    }
    if (reader.has_header()) {
      CHECK_EQ(reader.take_header(), headers.size());
      headers.push_back(reader.segment());
      payloads.emplace_back(reader.segment().size);
      reader.begin_payload();
      reader.put(payloads.back().data());
    }
    return n;
  }
};

}  // namespace

TEST(any_portion_of_the_stream_may_come_at_once) {
  const std::vector<Message> messages{message(1, 5), message(2, 300), message(3, 1), message(4, 64)};
  const Bytes wire = wire_of(messages);
  for (size_t portion = 1; portion <= wire.size(); ++portion) {
    Lane lane;
    lane.read(wire, portion);
    CHECK_EQ(lane.headers.size(), messages.size());
    for (size_t i = 0; i < messages.size(); ++i) {
      CHECK_EQ(lane.headers[i].message, messages[i].header.message);
      CHECK(lane.payloads[i] == messages[i].payload);
      CHECK_EQ(as_payload_check(lane.crcs[i]), messages[i].header.check.payload);
    }
  }
}

TEST(a_payload_and_the_next_header_take_one_call) {
  Lane lane;
  const Bytes wire = wire_of({message(1, 1000), message(2, 8)});
  size_t at = lane.read_once(wire, 0, wire.size());
  CHECK_EQ(at, sizeof(SegmentHeader));
  at += lane.read_once(wire, at, wire.size());
  CHECK_EQ(lane.headers.size(), 2u);
}

// Whatever has come of it: no further byte is written to its memory, and the stream goes on.
TEST(a_message_may_be_forgotten_at_any_byte) {
  const std::vector<Message> messages{message(1, 100), message(2, 30)};
  const Bytes wire = wire_of(messages);
  for (size_t at = sizeof(SegmentHeader); at < sizeof(SegmentHeader) + 100; ++at) {
    Lane lane;
    for (size_t read = 0; read < at;) read += lane.read_once(wire, read, at - read);
    const bool all_here = !lane.reader.in_payload();
    CHECK(!all_here);
    lane.reader.forget(2);  // another message
    CHECK(!lane.reader.dropped());
    lane.reader.forget(1);
    CHECK(lane.reader.dropped());
    const size_t came = at - sizeof(SegmentHeader);
    for (size_t read = at; read < wire.size();) read += lane.read_once(wire, read, 7);
    for (size_t i = 0; i < 100; ++i) CHECK(lane.payloads[0][i] == (i < came ? messages[0].payload[i] : std::byte{0}));
    CHECK(lane.payloads[1] == messages[1].payload);
  }
}

TEST(a_part_of_a_message_may_be_forgotten) {
  const Bytes wire = wire_of({message(1, 100, 50)});
  for (const auto& [offset, size, meets] :
       {std::tuple{0u, 50u, false}, {0u, 51u, true}, {149u, 1u, true}, {150u, 10u, false}}) {
    Lane lane;
    lane.read_once(wire, 0, sizeof(SegmentHeader));
    SegmentHeader other{frame(FrameType::data, 200), 1, offset, size};
    lane.reader.forget(other);
    CHECK_EQ(lane.reader.dropped(), meets);
  }
}

TEST(two_that_write_the_same_bytes_overlap) {
  Lane one;
  Lane two;
  const Bytes wire = wire_of({message(1, 100)});
  one.read_once(wire, 0, sizeof(SegmentHeader));
  two.read_once(wire, 0, sizeof(SegmentHeader));
  CHECK(!one.reader.overlaps(two.reader));
  two.reader.put(one.reader.into() + 99);
  CHECK(one.reader.overlaps(two.reader));
  CHECK(two.reader.overlaps(one.reader));
  two.reader.put(one.reader.into() + 100);
  CHECK(!one.reader.overlaps(two.reader));
  two.reader.drop();
  CHECK(!one.reader.overlaps(two.reader));
}

TEST(a_new_connection_begins_anew) {
  Lane lane;
  const Bytes wire = wire_of({message(1, 100), message(2, 5)});
  lane.read_once(wire, 0, sizeof(SegmentHeader));
  lane.read_once(wire, sizeof(SegmentHeader), 40);
  lane.reader.begin();
  lane.headers.clear();
  lane.payloads.clear();
  lane.read(wire, 33);
  CHECK_EQ(lane.headers.size(), 2u);
}
