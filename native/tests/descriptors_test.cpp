// A process that has no file descriptors left blames itself, not the rank that it cannot reach.
#include <sys/resource.h>
#include <unistd.h>

#include <optional>

#include "tests/check.h"
#include "tests/tcp_rig.h"

using namespace slipstream;
using namespace slipstream::rig;

// While it lives, the process can open no further file.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit none = before_;
    const int next = ::dup(0);
    ::close(next);
    none.rlim_cur = static_cast<rlim_t>(next);
    ::setrlimit(RLIMIT_NOFILE, &none);
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(who_cannot_open_a_connection_blames_itself) {
  Rank poor(0), other(1);
  std::optional<NoDescriptors> poverty{std::in_place};
  poor.dial(other, 1);
  CHECK(run({&poor}, [&] { return !poor.downs.empty(); }));
  poverty.reset();
  CHECK(poor.downs.at(0).code == Code::internal);
  CHECK(poor.downs.at(0).text.find("this process has no more resources: Too many open files") != std::string::npos);
}

TEST(who_gets_a_descriptor_in_time_connects) {
  Rank poor(0), other(1);
  std::optional<NoDescriptors> poverty{std::in_place};
  poor.dial(other, 1);
  poor.poller.wait(0);
  poor.poller.wait(0);
  poverty.reset();
  CHECK(run({&poor, &other}, [&] { return !poor.ups.empty() && !other.ups.empty(); }));
}
