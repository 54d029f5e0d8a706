// A process that has no file descriptors left blames itself, not the rank that it cannot reach.
#include <sys/resource.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/tcp_rig.h"

using namespace slipstream;
using namespace slipstream::rig;

TEST(who_cannot_open_a_connection_blames_itself) {
  Rank poor(0), other(1);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  const int next = ::dup(0);
  ::close(next);
  none.rlim_cur = static_cast<rlim_t>(next);
  ::setrlimit(RLIMIT_NOFILE, &none);
  poor.dial(other, 1);
  CHECK(run({&poor}, [&] { return !poor.downs.empty(); }));
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(poor.downs.at(0).code == Code::internal);
  CHECK(poor.downs.at(0).text.find("this process has no more resources: Too many open files") != std::string::npos);
}

TEST(who_gets_a_descriptor_in_time_connects) {
  Rank poor(0), other(1);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  rlimit none = before;
  const int next = ::dup(0);
  ::close(next);
  none.rlim_cur = static_cast<rlim_t>(next);
  ::setrlimit(RLIMIT_NOFILE, &none);
  poor.dial(other, 1);
  poor.poller.wait(0);
  poor.poller.wait(0);
  ::setrlimit(RLIMIT_NOFILE, &before);
  CHECK(run({&poor, &other}, [&] { return !poor.ups.empty() && !other.ups.empty(); }));
}
