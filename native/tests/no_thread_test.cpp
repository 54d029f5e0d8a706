// A process that can start no more threads says so.
#include <pthread.h>

#include "base/thread.h"
#include "reducers/client.h"
#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

// While this lives no thread can be started: its stack would be larger than the address space.
class NoThreads {
 public:
  NoThreads() {
    pthread_attr_init(&usual_);
    pthread_getattr_default_np(&usual_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, size_t{1} << 60);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&usual_);
    pthread_attr_destroy(&usual_);
  }

 private:
  pthread_attr_t usual_{};
};

std::string told(const std::function<void()>& call) {
  try {
    call();
  } catch (const Failure& failure) {
    CHECK(failure.error().code == Code::internal);
    return failure.error().text;
  }
  return "nothing";
}

SessionOptions options() {
  SessionOptions options;
  options.size = 2;
  options.job = "native-test";
  options.secret = std::string(32, 's');
  return options;
}

ReducerClientOptions with_reducer(Session& session, uint64_t incarnation) {
  ReducerClientOptions reducers;
  reducers.reducers = {{"127.0.0.1:1", {"127.0.0.1"}, incarnation}};
  reducers.job = "native-test";
  reducers.secret = std::string(32, 's');
  reducers.group = session.make_group(1, {0, 1});
  return reducers;
}

}  // namespace

TEST(no_thread_for_the_engine) {
  Session session(options());
  const NoThreads none;
  const std::string text = told([&] { session.start(std::vector<PeerAddress>(2)); });
  CHECK(text.find("cannot start the engine's thread") != std::string::npos);
  CHECK(text.find("ulimit -u") != std::string::npos);
}

TEST(no_thread_for_the_sessions_with_reducers) {
  Session session(options());
  session.start(std::vector<PeerAddress>(2));
  const NoThreads none;
  const std::string text = told([&] { ReducerClient(session, with_reducer(session, 0)); });
  CHECK(text.find("cannot start the thread that opens sessions with reducers") != std::string::npos);
  CHECK(text.find("ulimit -u") != std::string::npos);
}

}  // namespace slipstream::testing
