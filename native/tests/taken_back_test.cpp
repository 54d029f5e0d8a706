// A rank that fails takes its memory back at once; what another rank reads there afterwards never counts as received.
#include <algorithm>

#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

constexpr size_t kMessages = 100;  // more than a link handles before the engine looks at what is done
constexpr size_t kCount = 8192;    // floats of each: bulk, so that the receiver reads them where they are

uint64_t channel_of(size_t tag) { return uint64_t{1} << 63 | tag; }

Request message(int rank, StepKind kind, float* data, size_t count) {
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->rank = rank;
  group->ranks = {0, 1};
  PlanBuilder plan(rank, 2, 1);
  plan.add(kind, 1 - rank, 0, {}, Space::in);
  Request request;
  request.group = std::move(group);
  request.plan = plan.build();
  request.signature.operation = "send_recv";
  request.signature.dtype = DType::f32;
  request.signature.count = count;
  request.chunk_bytes = request.signature.chunk_bytes = 64 << 10;
  for (auto& space : request.spaces) space = {reinterpret_cast<std::byte*>(data), count, {}};
  return request;
}

WorkPtr submit(RankUnderTest& rank, Request request, size_t tag) {
  const auto work = rank.prepare(std::move(request), channel_of(tag));
  rank.submit(work);
  return work;
}

// Holds the thread that tells it, which is the one that drives the engine: as if the process were stopped.
class Stop final : public Listener {
 public:
  Stop(std::atomic<bool>& stopped, std::atomic<bool>& woken) : stopped_(stopped), woken_(woken) {}
  void work_done() override {
    stopped_.store(true);
    stopped_.notify_all();
    woken_.wait(false);
  }

 private:
  std::atomic<bool>& stopped_;
  std::atomic<bool>& woken_;
};

// Opens the link, and waits until each end knows that the other can read its memory.
void meet(Ranks& ranks) {
  float word = 0, other = 0;
  const auto knows = [&](int r) {
    return static_cast<SessionRank&>(ranks.at(r)).session.link_statistics().at(0).single_copy;
  };
  auto& first = static_cast<SessionRank&>(ranks.at(0));
  auto& second = static_cast<SessionRank&>(ranks.at(1));
  const auto received = submit(second, message(1, StepKind::recv, &word, 1), kMessages + 1);
  const auto sent = submit(first, message(0, StepKind::send, &other, 1), kMessages + 1);
  CHECK(second.wait(*received, now() + seconds(60)) && first.wait(*sent, now() + seconds(60)));
  while (!knows(0) || !knows(1)) std::this_thread::yield();
}

// `in_region`: where the sender's data lies; else in private memory, which the receiver reads.
void late_receiver(bool in_region) {
  Ranks ranks(Wire::shm, 2, 2, SingleCopy::always);
  auto& sender = static_cast<SessionRank&>(ranks.at(0));
  auto& receiver = static_cast<SessionRank&>(ranks.at(1));
  std::vector<float> own(in_region ? 0 : kMessages * kCount);
  auto* data = in_region ? reinterpret_cast<float*>(sender.allocate(kMessages * kCount * sizeof(float))) : own.data();
  if (!in_region) meet(ranks);
  std::fill_n(data, kMessages * kCount, 5.0f);
  std::vector<float> received(kMessages * kCount);
  std::atomic<bool> stopped{false}, woken{false};
  float sent = 0, word = 0;

  std::vector<WorkPtr> receives, sends;
  for (size_t i = 0; i < kMessages; ++i)
    receives.push_back(submit(receiver, message(1, StepKind::recv, received.data() + i * kCount, kCount), i));
  const auto last = receiver.prepare(message(1, StepKind::recv, &word, 1), channel_of(kMessages));
  last->listen(std::make_unique<Stop>(stopped, woken));
  receiver.submit(last);
  submit(sender, message(0, StepKind::send, &sent, 1), kMessages);
  stopped.wait(false);
  for (size_t i = 0; i < kMessages; ++i)
    sends.push_back(submit(sender, message(0, StepKind::send, data + i * kCount, kCount), i));
  while (!sends.back()->begun.load()) std::this_thread::yield();
  sender.session.abort("it gives up");
  std::fill_n(data, kMessages * kCount, 9.0f);
  woken.store(true);
  woken.notify_all();

  for (size_t i = 0; i < kMessages; ++i) {
    CHECK(receiver.wait(*receives[i], now() + seconds(60)));
    const float* part = received.data() + i * kCount;
    const bool right = std::all_of(part, part + kCount, [](float x) { return x == 5.0f; });
    CHECK(right || receives[i]->error());
  }
  CHECK(receives.back()->error().text.find("it gives up") != std::string::npos);
}

}  // namespace

TEST(what_a_late_receiver_reads_does_not_count) { late_receiver(true); }

TEST(what_a_late_receiver_reads_of_private_memory_does_not_count) { late_receiver(false); }

}  // namespace slipstream::testing
