// Acknowledgements of data travel with data of the other direction, or by themselves if there is none. None is lost.
#include <sys/socket.h>

#include "tests/check.h"
#include "tests/tcp_scene.h"

using namespace slipstream;
using namespace slipstream::rig;

namespace {

constexpr double kNever = 1000;  // seconds, far longer than any test
constexpr double kSoon = 0.01;

TcpOptions patient(double seconds, int lanes = 2) {
  TcpOptions options;
  options.acknowledge_seconds = seconds;
  options.lanes = lanes;
  return options;
}

void send(Scene& scene, uint64_t cookie) {
  static const auto payload = pattern(kLength, 5);
  CHECK(!scene.us.ups[0]->send(frame(FrameType::data, kLength), payload.data(), cookie));
}

// The next segment on a lane, of a whole message.
SegmentHeader hear_segment(Scene& scene, const Fd& lane) {
  SegmentHeader header;
  CHECK(hear(scene.us, lane, header));
  std::array<std::byte, kLength> payload;
  CHECK_EQ(header.size, kLength);
  CHECK(hear(scene.us, lane, payload));
  return header;
}

LaneControl hear_acknowledgement(Scene& scene) {
  Frame frame;
  CHECK(hear(scene.us, scene.control, frame));
  return LaneControl::of(frame);
}

bool is_silent(const Fd& fd) {
  char byte = 0;
  return ::recv(fd.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0;
}

// Message `number` of the peer, and what it says of ours.
void say_with_acknowledgement(Scene& scene, uint64_t number, uint64_t taken) {
  auto bytes = segment(frame(FrameType::data, kLength), number);
  std::memcpy(bytes.data() + offsetof(SegmentHeader, taken), &taken, sizeof(taken));
  scene.say_segment(scene.bulk[0], std::move(bytes));
}

}  // namespace

TEST(acknowledgement_goes_with_data) {
  Scene scene(1, patient(kNever));
  send(scene, 1);
  CHECK_EQ(hear_segment(scene, scene.bulk[0]).taken, 2u);  // message 1
  for (int i = 0; i < 3; ++i) scene.say_message(scene.bulk[0]);
  CHECK(run({&scene.us}, [&] { return scene.us.received.size() == 4; }));
  send(scene, 2);
  CHECK_EQ(hear_segment(scene, scene.bulk[0]).taken, 5u);
  scene.settle();
  CHECK(is_silent(scene.control));
}

TEST(acknowledgement_goes_alone_when_there_is_no_data) {
  Scene scene(1, patient(kSoon));
  LaneControl acknowledgement{};
  while (acknowledgement.number < 1) acknowledgement = hear_acknowledgement(scene);
  for (int i = 0; i < 3; ++i) scene.say_message(scene.bulk[0]);
  while (acknowledgement.number < 4) {
    acknowledgement = hear_acknowledgement(scene);
    CHECK(acknowledgement.type == FrameType::taken);
    CHECK_EQ(acknowledgement.flags, kAllBefore);
  }
  CHECK_EQ(acknowledgement.number, 4u);
}

TEST(acknowledgement_of_what_came_before_its_turn_goes_at_once) {
  Scene scene(1, patient(kNever));
  ++scene.messages;  // the second one is late
  scene.say_message(scene.bulk[0]);
  const LaneControl acknowledgement = hear_acknowledgement(scene);
  CHECK(acknowledgement.type == FrameType::taken);
  CHECK_EQ(acknowledgement.flags, 0);
  CHECK_EQ(acknowledgement.number, 3u);
  send(scene, 1);
  CHECK_EQ(hear_segment(scene, scene.bulk[0]).taken, 2u);
  say_with_acknowledgement(scene, 2, 0);
  CHECK(run({&scene.us}, [&] { return scene.us.received.size() == 3; }));
  send(scene, 2);
  CHECK_EQ(hear_segment(scene, scene.bulk[0]).taken, 4u);
}

TEST(acknowledgement_of_what_is_kept_waits_until_it_is_given_back) {
  Scene scene(1, patient(kNever));
  scene.us.keep = true;
  scene.say_message(scene.bulk[0]);
  CHECK(run({&scene.us}, [&] { return scene.us.held.size() == 1; }));
  send(scene, 1);
  CHECK_EQ(hear_segment(scene, scene.bulk[0]).taken, 2u);
  scene.us.ups[0]->release(scene.us.held[0]);
  send(scene, 2);
  CHECK_EQ(hear_segment(scene, scene.bulk[0]).taken, 3u);
}

TEST(acknowledgement_that_may_be_lost_with_a_lane_is_said_again) {
  Scene scene(2, patient(kSoon));
  LaneControl acknowledgement{};
  while (acknowledgement.number < 2) acknowledgement = hear_acknowledgement(scene);
  // Told in the same turn, so it is not owed any more.
  scene.us.on_arrived = [&](Link&, const Frame& f) {
    if (f.type == FrameType::data) send(scene, 1);
  };
  scene.say_message(scene.bulk[0]);
  Fd* carrier = nullptr;
  CHECK(run({&scene.us}, [&] {
    for (Fd& fd : scene.bulk)
      if (!is_silent(fd)) carrier = &fd;
    return carrier != nullptr;
  }));
  CHECK_EQ(hear_segment(scene, *carrier).taken, 4u);
  // Taken, so that no other lane repeats it: perhaps another copy came, and this one did not.
  acknowledgement = LaneControl{};
  acknowledgement.number = 1;
  scene.say(scene.control, acknowledgement);
  CHECK(run({&scene.us}, [&] { return scene.us.cookies.size() == 1; }));
  carrier->reset();
  acknowledgement = hear_acknowledgement(scene);
  CHECK(acknowledgement.type == FrameType::taken);
  CHECK_EQ(acknowledgement.flags, kAllBefore);
  CHECK_EQ(acknowledgement.number, 3u);
}

TEST(acknowledgement_goes_before_a_goodbye) {
  Scene scene(2, patient(kNever));
  scene.us.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
  const LaneControl acknowledgement = hear_acknowledgement(scene);
  CHECK(acknowledgement.type == FrameType::taken);
  CHECK_EQ(acknowledgement.number, 2u);
  CHECK(hear_acknowledgement(scene).type == FrameType::goodbye);
}

TEST(acknowledgement_that_comes_with_data_ends_sends) {
  Scene scene(1);
  for (const uint64_t cookie : {7, 8, 9}) send(scene, cookie);
  for (int i = 0; i < 3; ++i) hear_segment(scene, scene.bulk[0]);
  say_with_acknowledgement(scene, 2, 3);
  CHECK(run({&scene.us}, [&] { return scene.us.received.size() == 2; }));
  CHECK(scene.us.cookies == (std::vector<uint64_t>{7, 8}));
  // Once more, and by itself too: no news.
  say_with_acknowledgement(scene, 3, 3);
  LaneControl acknowledgement;
  acknowledgement.number = 2;
  scene.say(scene.control, acknowledgement);
  scene.settle();
  CHECK_EQ(scene.us.cookies.size(), 2u);
  acknowledgement.number = 3;
  acknowledgement.flags = kAllBefore;
  scene.say(scene.control, acknowledgement);
  scene.settle();
  CHECK(scene.us.cookies == (std::vector<uint64_t>{7, 8, 9}));
  CHECK(scene.us.downs.empty());
}

TEST(acknowledgement_of_data_that_was_not_sent_ends_the_link) {
  for (const bool with_data : {true, false}) {
    Scene scene(1);
    send(scene, 7);
    hear_segment(scene, scene.bulk[0]);
    LaneControl acknowledgement;
    acknowledgement.flags = kAllBefore;
    acknowledgement.number = 2;
    if (with_data)
      say_with_acknowledgement(scene, 2, 3);
    else
      scene.say(scene.control, acknowledgement);
    CHECK(scene.ends());
    CHECK(scene.us.downs[0].code == Code::internal);
    CHECK(scene.us.downs[0].text.find("not sent") != std::string::npos);
  }
}

TEST(answers_end_what_they_answer) {
  for (const int lanes : {1, 3}) {
    Rank a(0, patient(kNever, lanes));
    Rank b(1, patient(kNever, lanes));
    CHECK(connect(a, b, 1));
    const auto payload = pattern(60'000, 3);
    b.on_arrived = [&](Link& link, const Frame&) { link.send(frame(FrameType::data, 60'000), payload.data(), 0); };
    constexpr size_t kRounds = 200;
    constexpr size_t kAhead = 8;
    uint64_t sent = 0;
    CHECK(run({&a, &b}, [&] {
      for (; sent < kRounds && sent < a.received.size() + kAhead; ++sent)
        a.ups[0]->send(frame(FrameType::data, 60'000), payload.data(), sent);
      return a.received.size() == kRounds && a.cookies.size() == kRounds;
    }));
    for (const Received& answer : a.received) CHECK(answer.bytes == payload);
    if (lanes == 1) CHECK(b.cookies.size() >= kRounds - kAhead);
    CHECK(a.downs.empty() && b.downs.empty());
  }
}
