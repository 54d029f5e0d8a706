// The buffer of the timeline.
#include "base/trace.h"

#include <thread>

#include "tests/check.h"

namespace {

using namespace slipstream;

TraceEvent event(uint64_t number) {
  TraceEvent e;
  e.bytes = number;
  return e;
}

}  // namespace

TEST(it_is_off_until_it_is_started) {
  Trace trace;
  CHECK(!trace.on());
  trace.put(event(1));
  CHECK(trace.take().events.empty());
}

TEST(what_does_not_fit_is_counted) {
  Trace trace;
  trace.start(2);
  CHECK(trace.on());
  for (uint64_t i = 0; i < 5; ++i) trace.put(event(i));
  const auto first = trace.take();
  CHECK_EQ(first.events.size(), 2u);
  CHECK_EQ(first.events[1].bytes, 1u);
  CHECK_EQ(first.dropped, 3u);
  trace.put(event(9));  // there is room again
  const auto second = trace.take();
  CHECK_EQ(second.events.size(), 1u);
  CHECK_EQ(second.dropped, 0u);
  trace.put(event(10));
  trace.start(2);  // forgets
  CHECK(trace.take().events.empty());
}

TEST(texts_are_cut) {
  TraceEvent e;
  e.operation.set(std::string(100, 'a'));
  CHECK_EQ(std::string(e.operation.chars.data()), std::string(39, 'a'));
  e.operation.set("b");
  CHECK_EQ(std::string(e.operation.chars.data()), std::string("b"));
}

TEST(spans_and_marks_have_a_track_and_a_name) {
  Trace trace;
  trace.start(2);
  const Time begin = now();
  trace.span("wire", "to bf16", begin, begin + std::chrono::microseconds(5), 4096, 3);
  trace.mark("reducer h5:29700", "lost", begin);
  const auto events = trace.take().events;
  CHECK(events[0].kind == TraceEvent::Kind::span);
  CHECK_EQ(std::string(events[0].operation.chars.data()), std::string("wire"));
  CHECK_EQ(std::string(events[0].name.chars.data()), std::string("to bf16"));
  CHECK(events[0].end - events[0].begin == std::chrono::microseconds(5));
  CHECK_EQ(events[0].bytes, 4096u);
  CHECK_EQ(events[0].peer, 3);
  CHECK(events[1].kind == TraceEvent::Kind::mark);
  CHECK(events[1].begin == begin);
  CHECK_EQ(events[1].peer, -1);
}

TEST(nothing_is_lost_between_threads) {
  Trace trace;
  trace.start(64);
  constexpr uint64_t kEvents = 20'000;
  std::thread driver([&] {
    for (uint64_t i = 1; i <= kEvents; ++i) trace.put(event(i));
    trace.stop();
  });
  uint64_t taken = 0, dropped = 0, last = 0;
  for (bool more = true; more;) {
    more = trace.on();
    const auto some = trace.take();
    for (const TraceEvent& e : some.events) {
      CHECK(e.bytes > last);
      last = e.bytes;
    }
    taken += some.events.size();
    dropped += some.dropped;
  }
  driver.join();
  CHECK_EQ(taken + dropped, kEvents);
}
