// A process that has no file descriptors left blames itself, not the rank that it cannot reach; its listener waits.
#include <optional>

#include "tests/check.h"
#include "tests/open_files.h"
#include "tests/tcp_rig.h"

using namespace slipstream;
using namespace slipstream::rig;

TEST(who_cannot_open_a_connection_blames_itself) {
  Rank poor(0), other(1);
  std::optional<OpenFiles> none{std::in_place, next_descriptor()};
  poor.dial(other, 1);
  CHECK(run({&poor}, [&] { return !poor.downs.empty(); }));
  none.reset();
  CHECK(poor.downs.at(0).code == Code::internal);
  CHECK(poor.downs.at(0).text.find("this process has no more resources: Too many open files") != std::string::npos);
}

TEST(who_gets_a_descriptor_in_time_connects) {
  Rank poor(0), other(1);
  std::optional<OpenFiles> none{std::in_place, next_descriptor()};
  poor.dial(other, 1);
  poor.poller.wait(0);
  poor.poller.wait(0);
  none.reset();
  CHECK(run({&poor, &other}, [&] { return !poor.ups.empty() && !other.ups.empty(); }));
}

TEST(a_listener_without_descriptors_waits_too) {
  Rank server(1), friendly(0);
  const Fd visitor = raw_connect(server.port);
  {
    const OpenFiles none(next_descriptor());
    CHECK(run({&server}, [&] { return !server.strangers.empty(); }));
    const Time start = now();
    for (int i = 0; i < 1000; ++i) server.poller.wait(0);
    // Each look is 0.1 s after the last one, however slow the machine is.
    CHECK(now() - start >= seconds(0.1 * (static_cast<double>(server.strangers.size()) - 2)));
    CHECK(server.strangers[0].find("Too many open files") != std::string::npos);
  }
  CHECK(connect(friendly, server, 1));
}
