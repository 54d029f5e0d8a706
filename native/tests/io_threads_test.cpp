// System calls performed by several threads: every call once, its result where it belongs, round after round.
#include "transport/tcp/io_threads.h"

#include <sched.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "tests/check.h"

namespace {

using namespace slipstream;

constexpr size_t kSize = 96 << 10;

struct Pair {
  Pair() {
    int fds[2] = {-1, -1};
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int i = 0; i < 2; ++i) {
      ends[i] = Fd(fds[i]);
      const int size = 4 * kSize;
      ::setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    }
  }
  Fd ends[2];
};

IoCall call(bool out, const Fd& fd, void* data, size_t size) {
  return {.fd = fd.get(), .out = out, .count = 1, .parts = {{data, size}}};
}

void all(IoThreads& threads, std::vector<IoCall>& calls) {
  std::vector<IoCall*> pointers;
  for (IoCall& one : calls) pointers.push_back(&one);
  threads.perform(pointers);
}

// `pairs` sockets at a time: what round r sends over pair p comes out there, and nowhere else.
void rounds(int count, size_t pairs, uint32_t number) {
  IoThreads threads(count);
  CHECK_EQ(threads.count(), count);
  const std::vector<Pair> sockets(pairs);
  std::vector<std::vector<uint32_t>> out(pairs, std::vector<uint32_t>(kSize / 4));
  std::vector<std::vector<uint32_t>> in(pairs, std::vector<uint32_t>(kSize / 4));
  for (uint32_t r = 0; r < number; ++r) {
    std::vector<IoCall> calls;
    for (size_t p = 0; p < pairs; ++p) {
      std::fill(out[p].begin(), out[p].end(), static_cast<uint32_t>(r * pairs + p));
      calls.push_back(call(true, sockets[p].ends[0], out[p].data(), kSize));
    }
    all(threads, calls);
    for (const IoCall& one : calls) CHECK_EQ(one.result, static_cast<ssize_t>(kSize));
    for (size_t p = 0; p < pairs; ++p) calls[p] = call(false, sockets[p].ends[1], in[p].data(), kSize);
    all(threads, calls);
    for (const IoCall& one : calls) CHECK_EQ(one.result, static_cast<ssize_t>(kSize));
    CHECK(in == out);
  }
}

std::string field(const std::string& task, const std::string& name) {
  std::ifstream status("/proc/self/task/" + task + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name + ":\t")) return line.substr(name.size() + 2);
  return {};
}

}  // namespace

TEST(nobody_shares) { rounds(0, 3, 20); }
TEST(one_thread) { rounds(1, 2, 500); }
TEST(more_calls_than_threads) { rounds(2, 9, 300); }
TEST(more_threads_than_calls) { rounds(5, 2, 500); }

TEST(each_call_has_its_own_outcome) {
  IoThreads threads(2);
  Pair good;
  Pair closed;
  Pair empty;
  closed.ends[1].reset();
  std::vector<char> bytes(kSize);
  std::vector<IoCall> calls{
      call(true, good.ends[0], bytes.data(), kSize), call(true, closed.ends[0], bytes.data(), kSize),
      call(false, empty.ends[0], bytes.data(), kSize), call(false, closed.ends[0], nullptr, IoCall::kMostDropped)};
  for (int i = 0; i < 200; ++i) {
    all(threads, calls);
    CHECK_EQ(calls[0].result, static_cast<ssize_t>(kSize));
    CHECK_EQ(calls[1].error, EPIPE);  // and no signal
    CHECK_EQ(calls[2].error, EAGAIN);
    CHECK_EQ(calls[3].result, 0);
    CHECK_EQ(calls[3].error, 0);
    IoCall drop = call(false, good.ends[1], nullptr, IoCall::kMostDropped);
    for (size_t got = 0; got < kSize; got += static_cast<size_t>(drop.result)) perform(drop);
  }
}

TEST(they_have_names_and_places_and_take_no_signals) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  CHECK_EQ(::sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &allowed)) --last;
  const IoThreads threads(2, {last});
  std::set<std::string> names;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string id = task.path().filename();
    const std::string name = field(id, "Name");
    if (!name.starts_with("slipstream-io")) continue;
    names.insert(name);
    CHECK_EQ(field(id, "Cpus_allowed_list"), std::to_string(last));
    const uint64_t blocked = std::stoull(field(id, "SigBlk"), nullptr, 16);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) CHECK((blocked >> (signal - 1) & 1) == 1);
  }
  CHECK(names == (std::set<std::string>{"slipstream-io0", "slipstream-io1"}));
  sigset_t blocked;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  CHECK_EQ(sigismember(&blocked, SIGTERM), 0);  // who made them takes signals still
}

TEST(after_the_end_the_caller_does_it) {
  IoThreads threads(3);
  threads.stop();
  threads.stop();
  CHECK_EQ(threads.count(), 0);
  Pair pair;
  std::vector<char> bytes(kSize);
  std::vector<IoCall> calls{call(true, pair.ends[0], bytes.data(), kSize),
                            call(true, pair.ends[1], bytes.data(), kSize)};
  all(threads, calls);
  for (const IoCall& one : calls) CHECK_EQ(one.result, static_cast<ssize_t>(kSize));
}

TEST(so_many_threads_there_are_not) {
  for (const int count : {-1, IoThreads::kMost + 1}) {
    bool thrown = false;
    try {
      const IoThreads threads(count);
    } catch (const Failure& failure) {
      thrown = failure.error().code == Code::invalid;
    }
    CHECK(thrown);
  }
}
