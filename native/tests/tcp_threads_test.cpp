// All that is tested of tcp links, once more with I/O threads; and that these take part.
#define SLIPSTREAM_TEST_IO_THREADS 2

#include <filesystem>
#include <fstream>

#include "tests/tcp_lanes_test.cpp"
#include "tests/tcp_test.cpp"

namespace {

// How often the I/O threads of this process have gone to sleep.
long sleeps() {
  long sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    bool ours = false;
    for (std::string line; std::getline(status, line);) {
      ours |= line.starts_with("Name:\tslipstream-io");
      if (ours && line.starts_with("voluntary_ctxt_switches:\t")) sum += std::stol(line.substr(line.find('\t')));
    }
  }
  return sum;
}

}  // namespace

TEST(io_threads_take_part_where_there_is_much_to_move) {
  TcpOptions options;
  options.lanes = 4;
  Rank a(0, options);
  Rank b(1, options);
  CHECK(connect(a, b, 1));
  const auto payload = pattern(kMaxPayload, 5);
  const auto send = [&](uint32_t size, size_t count) {
    const size_t before = b.received.size();
    for (uint64_t i = 0; i < count; ++i) a.ups[0]->send(frame(FrameType::data, size), payload.data(), i);
    CHECK(run({&a, &b}, [&] { return b.received.size() == before + count; }));
  };
  send(kEagerBytes + 1, 1);  // all lanes have joined, or soon will have
  const long idle = sleeps();
  send(kEagerBytes + 1, 1);
  CHECK(sleeps() <= idle + 4);  // nobody was woken for so little, but they may have been on their way to bed
  send(kMaxPayload, 100);
  CHECK(sleeps() > idle + 8);
  for (const Received& r : b.received) CHECK(std::equal(r.bytes.begin(), r.bytes.end(), payload.begin()));
}

TEST(a_segment_that_comes_over_two_lanes_at_once_is_written_by_one_at_a_time) {
  Scene scene(2);
  constexpr uint32_t kSize = 400'000;
  for (int i = 0; i < 20; ++i) {
    const size_t before = scene.us.received.size();
    auto bytes = segment(frame(FrameType::data, kSize), ++scene.messages);
    const auto body = pattern(kSize, static_cast<uint32_t>(i));
    std::copy(body.begin(), body.end(), bytes.begin() + sizeof(SegmentHeader));
    seal_segment(bytes, scene.places[scene.bulk[0].get()]++, i % 2 == 0);
    ++scene.places[scene.bulk[1].get()];
    size_t sent[2] = {0, 0};
    const bool done = run({&scene.us}, [&] {
      for (size_t lane = 0; lane < 2; ++lane) {
        const size_t rest = bytes.size() - sent[lane];
        const ssize_t n = ::send(scene.bulk[lane].get(), bytes.data() + sent[lane], rest, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent[lane] += static_cast<size_t>(std::max<ssize_t>(n, 0));
      }
      return sent[0] == bytes.size() && sent[1] == bytes.size() && scene.us.received.size() == before + 1;
    });
    CHECK(done);
    CHECK(scene.us.received.back().bytes == body);
  }
  scene.settle();
  CHECK(scene.us.downs.empty());
}
