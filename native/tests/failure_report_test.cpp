// What the launcher is told of a session that fails, and that this never waits, nor writes to another file.
#include "session/failure_report.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "tests/check.h"
#include "tests/ranks.h"

namespace {

using namespace slipstream;

// Both ends; the writing one does not block.
struct Pipe {
  Pipe() {
    CHECK_EQ(pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC), 0);
    struct stat found{};
    CHECK_EQ(fstat(ends[1], &found), 0);
    inode = found.st_ino;
  }
  ~Pipe() {
    for (const int fd : ends) close(fd);
  }
  ReportPipe report() const { return {ends[1], inode}; }
  std::string read_all() const {
    std::string text(1 << 20, '\0');
    const ssize_t n = read(ends[0], text.data(), text.size());
    return n < 0 ? std::string() : text.substr(0, static_cast<size_t>(n));
  }

  std::array<int, 2> ends{};
  uint64_t inode = 0;
};

Error lost(std::string text) { return Error{Code::peer_lost, 3, "b", std::move(text), 2}; }

TEST(a_record_is_one_line_of_json) {
  CHECK_EQ(failure_record(lost("rank 3 said \"no\\\n\x01\xc3\xa9")),
           R"({"session": {"code": 1, "rank": 3, "told_by": 2, "text": "rank 3 said \"no\\\u000a\u0001)"
           "\xc3\xa9\"}}\n");
}

TEST(a_record_of_any_text_is_written_as_a_whole) {
  for (const char c : {'x', '"', '\x01'}) {
    const std::string record = failure_record(lost(std::string(100'000, c)));
    CHECK(record.size() <= PIPE_BUF);
    CHECK(record.ends_with("\"}}\n"));
  }
}

TEST(a_start_is_told_only_after_a_failure) {
  const Pipe pipe;
  report_start(pipe.report());
  CHECK_EQ(pipe.read_all(), "");
  report_failure(pipe.report(), lost("gone"));
  CHECK_EQ(pipe.read_all(), failure_record(lost("gone")));
  report_start(pipe.report());
  report_start(pipe.report());
  CHECK_EQ(pipe.read_all(), "{\"session\": null}\n");
}

TEST(a_full_pipe_stops_nobody) {
  const Pipe pipe;
  const std::string block(PIPE_BUF, 'x');
  while (write(pipe.ends[1], block.data(), block.size()) > 0) {
  }
  report_failure(pipe.report(), lost("gone"));
  CHECK(pipe.read_all().find("gone") == std::string::npos);
}

TEST(a_pipe_that_nobody_reads_does_not_end_the_process) {
  Pipe pipe;
  close(pipe.ends[0]);
  pipe.ends[0] = -1;
  const auto before = std::signal(SIGPIPE, SIG_DFL);
  report_failure(pipe.report(), lost("gone"));
  sigset_t pending;
  sigpending(&pending);
  CHECK_EQ(sigismember(&pending, SIGPIPE), 0);
  std::signal(SIGPIPE, before);
}

TEST(another_file_in_place_of_the_pipe_is_left_alone) {
  const Pipe pipe, other;
  report_failure({other.ends[1], pipe.inode}, lost("gone"));
  CHECK_EQ(other.read_all(), "");
  report_failure({}, lost("gone"));  // nobody waits for word
}

// The program may end as soon as its works fail: the launcher is to know by then.
TEST(a_session_tells_before_its_works_fail) {
  const Pipe pipe;
  SessionOptions options;
  options.job = "test";
  options.report = pipe.report();
  Session session(options);
  session.start({PeerAddress{"a", true, {}, {}, 0}});
  session.abort("enough");
  CHECK_EQ(pipe.read_all(), failure_record(Error{Code::aborted, 0, {}, "enough"}));
  session.abort("more");
  session.close();
  CHECK_EQ(pipe.read_all(), "");
}

TEST(a_session_that_ends_in_good_order_says_nothing) {
  const Pipe pipe;
  SessionOptions options;
  options.job = "test";
  options.report = pipe.report();
  Session session(options);
  session.start({PeerAddress{"a", true, {}, {}, 0}});
  session.close();
  CHECK(pipe.read_all().find("code") == std::string::npos);
}

}  // namespace
