// Who may be there without having authenticated, by a clock of the test's own.
#include "base/admission.h"

#include "tests/check.h"

namespace {

using namespace slipstream;

struct Caller {
  int number;
};

const Time kStart = Time(seconds(1000));
constexpr AdmissionLimits kFew{3, 5, 0.25};

Caller* come(Admission<Caller>& admission, int number, Time now) {
  auto caller = std::make_unique<Caller>(number);
  Caller* raw = caller.get();
  CHECK(admission.add(std::move(caller), now) == nullptr);
  return raw;
}

}  // namespace

TEST(there_is_room_until_it_is_full) {
  Admission<Caller> admission(kFew);
  for (int i = 0; i < 3; ++i) {
    CHECK(admission.room_at() == Time::min());
    come(admission, i, kStart + seconds(i));
  }
  CHECK_EQ(admission.size(), 3u);
  CHECK(admission.room_at() == kStart + seconds(0.25));
}

TEST(the_oldest_gives_way) {
  Admission<Caller> admission(kFew);
  for (int i = 0; i < 3; ++i) come(admission, i, kStart + seconds(0.1 * i));
  const auto displaced = admission.add(std::make_unique<Caller>(3), kStart + seconds(0.3));
  CHECK(displaced && displaced->number == 0);
  CHECK_EQ(admission.size(), 3u);
  CHECK(admission.room_at() == kStart + seconds(0.1) + seconds(0.25));
}

TEST(who_has_authenticated_makes_room) {
  Admission<Caller> admission(kFew);
  Caller* const first = come(admission, 0, kStart);
  Caller* const second = come(admission, 1, kStart + seconds(1));
  come(admission, 2, kStart + seconds(2));
  CHECK_EQ(admission.take(*second)->number, 1);
  CHECK(admission.room_at() == Time::min());
  CHECK_EQ(admission.take(*first)->number, 0);
  const Caller stranger{7};
  CHECK(admission.take(stranger) == nullptr);
  CHECK(admission.deadline() == kStart + seconds(2) + seconds(5));
}

TEST(who_had_its_time_goes_and_no_other) {
  Admission<Caller> admission(kFew);
  CHECK(admission.deadline() == Time::max());
  CHECK(admission.take_late(kStart) == nullptr);
  for (int i = 0; i < 3; ++i) come(admission, i, kStart + seconds(i));
  CHECK(admission.take_late(kStart + seconds(4.9)) == nullptr);
  CHECK_EQ(admission.take_late(kStart + seconds(6))->number, 0);
  CHECK_EQ(admission.take_late(kStart + seconds(6))->number, 1);
  CHECK(admission.take_late(kStart + seconds(6)) == nullptr);
  CHECK(admission.deadline() == kStart + seconds(7));
}
