// Several segments in one system call: whatever part of it the kernel takes, what follows is right.
#include "transport/tcp/segment_writer.h"

#include <sys/socket.h>

#include "tests/check.h"
#include "tests/tcp_rig.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

using Bytes = std::vector<std::byte>;

Bytes asked(const IoCall& call) {
  if (call.first != nullptr) call.first(call.context);
  Bytes bytes;
  for (size_t i = 0; i < call.count; ++i) {
    const auto* part = static_cast<const std::byte*>(call.parts[i].iov_base);
    bytes.insert(bytes.end(), part, part + call.parts[i].iov_len);
  }
  CHECK_EQ(bytes.size(), call.bytes());
  return bytes;
}

Bytes next(SegmentWriter& writer, bool lend = false) {
  IoCall call;
  writer.prepare(call, lend);
  return asked(call);
}

// Messages of these sizes, and what they look like on the wire.
struct Messages {
  explicit Messages(std::vector<uint32_t> sizes) {
    for (const uint32_t size : sizes) {
      payloads.push_back(pattern(size, size));
      SegmentHeader header{frame(FrameType::data, size), payloads.size(), 0, size};
      header.check.payload = payload_check(payloads.back());
      seal(header, payloads.size() - 1);
      const auto* begin = reinterpret_cast<const std::byte*>(&header);
      begins.push_back(wire.size());
      wire.insert(wire.end(), begin, begin + sizeof(header));
      wire.insert(wire.end(), payloads.back().begin(), payloads.back().end());
    }
    for (size_t i = 0; i < sizes.size(); ++i)
      outs.push_back({{frame(FrameType::data, sizes[i]), i + 1, 0, sizes[i]}, payloads[i].data()});
  }
  SegmentWriter writer() const {
    SegmentWriter all;
    all.begin(true);
    for (const Outbox::Out& out : outs) all.push(out);
    next(all);  // makes their checks
    return all;
  }

  std::vector<Bytes> payloads;
  std::vector<size_t> begins;
  std::vector<Outbox::Out> outs;
  Bytes wire;
};

Bytes from(const Bytes& bytes, size_t at) { return {bytes.begin() + static_cast<ptrdiff_t>(at), bytes.end()}; }

}  // namespace

TEST(the_kernel_may_take_any_part) {
  const Messages messages({5, 100, 1});
  const Bytes& wire = messages.wire;
  for (size_t first = 0; first <= wire.size(); ++first) {
    SegmentWriter once = messages.writer();
    CHECK(next(once) == wire);
    once.went(first);
    CHECK(next(once) == from(wire, first));
    for (size_t second = 0; first + second <= wire.size(); ++second) {
      SegmentWriter writer = once;
      writer.went(second);
      CHECK(next(writer) == from(wire, first + second));
      CHECK_EQ(writer.empty(), first + second == wire.size());
    }
  }
}

TEST(a_call_that_is_full_and_one_after_it) {
  const Messages messages(std::vector<uint32_t>(SegmentWriter::kMost, 17));
  SegmentWriter writer;
  for (int round = 0; round < 2; ++round) {
    writer.begin(true);
    for (const Outbox::Out& out : messages.outs) writer.push(out);
    CHECK_EQ(writer.count(), SegmentWriter::kMost);
    CHECK(next(writer) == messages.wire);
    writer.went(messages.wire.size() - 1);
    CHECK_EQ(writer.count(), 1u);
    CHECK_EQ(writer.rest(), 1u);
    writer.went(1);
    CHECK(writer.empty());
  }
}

// Lengths and headers stay, for the peer is in the middle of them; no byte of the owner's memory goes out any more.
TEST(a_message_may_be_forgotten_at_any_byte) {
  const Messages messages({5, 100, 30});
  for (uint64_t gone = 1; gone <= 3; ++gone) {
    for (size_t at = 0; at < messages.wire.size(); ++at) {
      Bytes wire = messages.wire;
      const size_t payload = messages.begins[gone - 1] + sizeof(SegmentHeader);
      const size_t end = payload + messages.payloads[gone - 1].size();
      if (at < end) std::fill(wire.begin() + std::max(payload, at), wire.begin() + end, std::byte{0});
      SegmentWriter writer = messages.writer();
      writer.went(at);
      writer.forget(gone);
      CHECK(next(writer) == from(wire, at));
    }
  }
}

TEST(much_that_is_forgotten_takes_several_calls) {
  const Messages messages({20, 200 << 10, 20});
  Bytes wire = messages.wire;
  std::fill(wire.begin() + messages.begins[1] + sizeof(SegmentHeader), wire.begin() + messages.begins[2], std::byte{0});
  SegmentWriter writer = messages.writer();
  writer.forget(2);
  Bytes sent;
  for (int calls = 0; !writer.empty() && calls < 10; ++calls) {
    const Bytes part = next(writer);
    sent.insert(sent.end(), part.begin(), part.end());
    writer.went(part.size());
  }
  CHECK(sent == wire);
}

TEST(only_payload_is_lent) {
  const Messages messages({100});
  const Bytes& wire = messages.wire;
  for (size_t at = 0; at < wire.size(); ++at) {
    SegmentWriter writer = messages.writer();
    writer.went(at);
    CHECK_EQ(writer.begun(), at > sizeof(SegmentHeader));
    IoCall call;
    writer.prepare(call, true);
    const bool header = at < sizeof(SegmentHeader);
    CHECK_EQ(call.flags, header ? MSG_MORE : MSG_ZEROCOPY);
    CHECK_EQ(call.count, 1u);
    CHECK_EQ(call.bytes(), (header ? sizeof(SegmentHeader) : wire.size()) - at);
    CHECK(asked(call) == Bytes(wire.begin() + at, wire.begin() + at + call.bytes()));
    writer.forget(1);
    writer.prepare(call, true);  // nothing is left to lend
    CHECK_EQ(call.flags, 0);
    CHECK_EQ(call.bytes(), wire.size() - at);
  }
}

// Over a connection that takes little at a time, while each message is taken as early as it can be.
TEST(many_messages_arrive_as_they_are) {
  for (const int lanes : {1, 2}) {
    TcpOptions options;
    options.lanes = lanes;
    options.notsent_lowat = 16 << 10;
    Rank a(0, options);
    Rank b(1, options);
    CHECK(connect(a, b, 1));
    std::vector<Bytes> sent;
    for (uint32_t i = 0; i < 200; ++i) sent.push_back(pattern(kEagerBytes + 1 + i * 997 % 50'000, i));
    for (uint32_t i = 0; i < sent.size(); ++i)
      a.ups[0]->send(frame(FrameType::data, static_cast<uint32_t>(sent[i].size()), i), sent[i].data(), i);
    CHECK(run({&a, &b}, [&] { return a.cookies.size() == sent.size(); }));
    CHECK_EQ(b.received.size(), sent.size());
    for (const Received& received : b.received) CHECK(received.bytes == sent[seq_of(received.frame)]);
  }
}
