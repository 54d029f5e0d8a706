// What is sent from private memory is read there by the peer, once, or not at all; another process, and a peer that has
// died, failed or left, is never taken for it.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "tests/check.h"
#include "tests/shm_rig.h"
#include "transport/process_memory.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

// Pages of private memory, behind which nothing is mapped.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ::munmap(data_ + bytes, kPage);
    for (size_t i = 0; i < bytes; ++i) data_[i] = static_cast<std::byte>(i * 7 % 251);
  }
  ~Pages() { unmap(0, bytes_); }
  Pages(const Pages&) = delete;
  void unmap(size_t from, size_t bytes) { ::munmap(data_ + from, bytes); }
  std::byte* data() { return data_; }
  std::byte* end() { return data_ + bytes_; }

 private:
  std::byte* data_;
  size_t bytes_;
};

bool both_read(ShmRank& a, ShmRank& b) {
  const auto reads = [](ShmRank& rank) { return rank.ups.at(0)->single_copy() != SingleCopy::off; };
  for (ShmRank* rank : {&a, &b}) rank->transport.set_single_copy(SingleCopy::always);
  return connect(a, b, 1) && run({&a, &b}, [&] { return reads(a) && reads(b); });
}

Frame bulk(size_t bytes) {
  Frame frame;
  frame.length = static_cast<uint32_t>(bytes);
  return frame;
}

// The process calls the kernel for the memory of others in vain from now on, and gets this error.
void forbid_reads(int error) {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, filter};
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) ::_exit(100);
}

// Runs f in a child; its exit status.
template <class F>
int in_child(F f) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(f());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

struct Socket {
  Socket() {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) ::abort();
    ours = Fd(ends[0]);
    theirs = Fd(ends[1]);
  }
  Fd ours, theirs;
};

}  // namespace

TEST(memory_is_read_up_to_its_last_byte_and_no_further) {
  Pages pages(3 * kPage);
  for (const size_t bytes : {size_t{1}, kPage - 1, kPage, kPage + 1, 2 * kPage + 17}) {
    std::vector<std::byte> into(bytes + 1, std::byte{255});
    const auto address = reinterpret_cast<uintptr_t>(pages.end() - bytes);
    CHECK_EQ(read_process(::getpid(), address, into.data(), bytes), 0);
    CHECK(std::memcmp(into.data(), pages.end() - bytes, bytes) == 0);
    CHECK(into[bytes] == std::byte{255});
    CHECK_EQ(read_process(::getpid(), address, into.data(), bytes + 1), EFAULT);
  }
  pages.unmap(kPage, kPage);
  std::vector<std::byte> into(3 * kPage);
  CHECK_EQ(read_process(::getpid(), reinterpret_cast<uintptr_t>(pages.data()), into.data(), into.size()), EFAULT);
  CHECK(others_can_read(pages.data(), kPage));
  CHECK(others_can_read(pages.data(), 0));
  CHECK(!others_can_read(pages.data(), 2 * kPage));
  CHECK(!in_huge_pages(pages.data(), kPage));
}

TEST(a_send_from_private_memory_is_fetched_and_then_done) {
  ShmRank sender(0), receiver(1);
  CHECK(both_read(sender, receiver));
  Pages pages(64 * kPage);
  std::vector<std::vector<std::byte>> received;
  receiver.on_arrived = [&](Link& link, const Payload& payload) {
    CHECK(payload.data == nullptr);
    received.emplace_back(payload.size);
    CHECK(link.fetch(payload, received.back().data()));
    CHECK(link.intact(payload));
    CHECK(sender.cookies.size() < received.size());
    link.release(payload);
  };
  uint64_t cookie = 0, sent = 0;
  for (const size_t bytes : {size_t{16385}, 5 * kPage - 1, 64 * kPage}) {
    std::byte* from = pages.end() - bytes;
    CHECK(!sender.ups[0]->send(bulk(bytes), from, ++cookie));
    CHECK(run({&sender, &receiver}, [&] { return sender.cookies.size() == cookie; }));
    CHECK(received.back().size() == bytes && std::memcmp(received.back().data(), from, bytes) == 0);
    sent += bytes;
  }
  CHECK(sender.ups[0]->statistics().single_copy);
  CHECK_EQ(sender.ups[0]->statistics().single_copied, sent);
}

TEST(where_one_end_may_not_read_neither_is_read) {
  for (const int off : {0, 1}) {
    ShmRank a(0), b(1);
    (off == 0 ? b : a).transport.set_single_copy(SingleCopy::automatic);
    CHECK(connect(a, b, 1));
    for (int i = 0; i < 100; ++i) CHECK(!run({&a, &b}, [] { return false; }, 0.001));
    CHECK(a.ups[0]->single_copy() == SingleCopy::off);
    CHECK(b.ups[0]->single_copy() == SingleCopy::off);
    Pages pages(8 * kPage);
    bool refused = false;
    try {
      a.ups[0]->send(bulk(8 * kPage), pages.data(), 1);
    } catch (const Failure&) {
      refused = true;
    }
    CHECK(refused);
  }
}

TEST(a_mark_that_is_not_there_is_not_believed) {
  Socket socket;
  const auto ours = [] { return PrivateReads(SingleCopy::always); };
  PrivateReads theirs(SingleCopy::always), off(SingleCopy::off);
  PrivateReads::Mark mark = *theirs.mark();
  CHECK_EQ(ours().meet(socket.ours, mark, theirs.probe()), uint64_t{0});
  CHECK_EQ(ours().meet(socket.ours, {mark.address, mark.number + 1, mark.probe, 0}, theirs.probe()), uint64_t{ESRCH});
  CHECK_EQ(ours().meet(socket.ours, {8, mark.number, mark.probe, 0}, theirs.probe()), uint64_t{EFAULT});
  CHECK_EQ(off.meet(socket.ours, mark, theirs.probe()), PrivateReads::kOff);
  CHECK(!off.mark());
  CHECK(theirs.answered(EPERM).find("Operation not permitted") != std::string::npos);
  CHECK(theirs.allowed() == SingleCopy::off);
  CHECK_EQ(theirs.answered(PrivateReads::kOff), std::string("its SLIPSTREAM_SINGLE_COPY is off"));
  CHECK_EQ(theirs.answered(0), std::string());
  CHECK(theirs.allowed() == SingleCopy::always);
}

TEST(marks_of_other_cores_decide_whether_reads_pay) {
  Socket socket;
  constexpr uint64_t kElsewhere = ~uint64_t{0};
  PrivateReads ours(SingleCopy::automatic), theirs(SingleCopy::automatic);
  const auto meet = [&](uint64_t probe, uint64_t core) {
    PrivateReads::Mark mark = *theirs.mark();
    if (probe != 0) mark.probe = probe;
    mark.core = core;
    return ours.meet(socket.ours, mark, theirs.probe());
  };
  CHECK_EQ(meet(8, kElsewhere), uint64_t{EFAULT});
  for (size_t i = 1; i < PrivateReads::kCounting; ++i) CHECK_EQ(meet(0, kElsewhere), PrivateReads::kAgain);
  CHECK_EQ(theirs.answered(PrivateReads::kAgain), std::string());
  CHECK(theirs.allowed() == SingleCopy::off);
  const uint64_t answer = meet(0, kElsewhere);
  CHECK(answer == 0 || (answer & 0xffff) == PrivateReads::kDear);
  CHECK_EQ(theirs.answered(PrivateReads::judge(std::chrono::nanoseconds(3501), std::chrono::nanoseconds(2000))),
           std::string("that takes longer here for what caches hold: the kernel needs 3501 ns for 24 KiB, of shared "
                       "memory they take 2000 ns"));
  CHECK(theirs.allowed() == SingleCopy::uncached);
  CHECK(PrivateReads::by_time(PrivateReads::judge(std::chrono::nanoseconds(3501), std::chrono::nanoseconds(2000))));
  CHECK(PrivateReads::by_time(PrivateReads::kAlone));
  CHECK(!PrivateReads::by_time(PrivateReads::kOff));
  CHECK(!PrivateReads::by_time(EPERM));
  theirs.answered(0);
  CHECK(theirs.allowed() == SingleCopy::automatic);
  using std::chrono::nanoseconds;
  CHECK_EQ(PrivateReads::judge(nanoseconds(1750), nanoseconds(1000)), uint64_t{0});
  CHECK_EQ(PrivateReads::judge(nanoseconds(1751), nanoseconds(1000)) & 0xffff, PrivateReads::kDear);
}

TEST(marks_of_one_core_end) {
  Socket socket;
  cpu_set_t before, one;
  CHECK_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(::sched_getcpu()), &one);
  CHECK_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  PrivateReads ours(SingleCopy::automatic), theirs(SingleCopy::automatic);
  for (int i = 1; i <= PrivateReads::kMost; ++i)
    CHECK_EQ(ours.meet(socket.ours, *theirs.mark(), theirs.probe()),
             i < PrivateReads::kMost ? PrivateReads::kLater : PrivateReads::kAlone);
  CHECK_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST(who_measures_comes_to_an_answer) {
  ShmRank a(0), b(1);
  for (ShmRank* rank : {&a, &b}) rank->transport.set_single_copy(SingleCopy::automatic);
  CHECK(connect(a, b, 1));
  for (int i = 0; i < 3 * PrivateReads::kMost; ++i) run({&a, &b}, [] { return false; }, 0.0001);
  CHECK(a.downs.empty() && b.downs.empty());
}

TEST(a_kernel_that_forbids_it_leaves_copies_in_shared_memory) {
  const int result = in_child([] {
    forbid_reads(EPERM);
    ShmRank a(0), b(1);
    for (ShmRank* rank : {&a, &b}) rank->transport.set_single_copy(SingleCopy::automatic);
    if (!connect(a, b, 1)) return 1;
    run({&a, &b}, [] { return false; }, 0.1);
    return a.ups[0]->single_copy() == SingleCopy::off && a.downs.empty() &&
                   !others_can_read(reinterpret_cast<const std::byte*>(""), 1)
               ? 0
               : 2;
  });
  CHECK_EQ(result, 0);
}

TEST(a_kernel_that_forbids_it_later_ends_the_link_and_says_so) {
  const int result = in_child([] {
    ShmRank sender(0), receiver(1);
    if (!both_read(sender, receiver)) return 1;
    forbid_reads(EPERM);
    Pages pages(8 * kPage);
    bool fetched = false;
    receiver.on_arrived = [&](Link& link, const Payload& payload) {
      std::vector<std::byte> into(payload.size);
      fetched |= link.fetch(payload, into.data());
    };
    sender.ups[0]->send(bulk(8 * kPage), pages.data(), 1);
    if (!run({&sender, &receiver}, [&] { return !receiver.downs.empty(); }, 5)) return 2;
    const std::string& text = receiver.downs[0].text;
    if (fetched || receiver.downs[0].code != Code::internal) return 3;
    return text.find("Operation not permitted; SLIPSTREAM_SINGLE_COPY=off") != std::string::npos ? 0 : 4;
  });
  CHECK_EQ(result, 0);
}

TEST(memory_that_is_not_there_is_no_message) {
  ShmRank sender(0), receiver(1);
  CHECK(both_read(sender, receiver));
  Pages pages(8 * kPage);
  bool fetched = false;
  receiver.on_arrived = [&](Link& link, const Payload& payload) {
    std::vector<std::byte> into(payload.size);
    fetched |= link.fetch(payload, into.data());
  };
  sender.ups[0]->send(bulk(8 * kPage), pages.data(), 1);
  pages.unmap(3 * kPage, kPage);
  CHECK(run({&sender, &receiver}, [&] { return !receiver.downs.empty(); }, 5));
  CHECK(!fetched);
  CHECK(sender.cookies.empty());
  CHECK(receiver.downs[0].text.find("Bad address") != std::string::npos);
}

TEST(what_its_owner_has_taken_back_does_not_count) {
  ShmRank sender(0), receiver(1);
  CHECK(both_read(sender, receiver));
  Pages pages(8 * kPage);
  int arrived = 0;
  receiver.on_arrived = [&](Link& link, const Payload& payload) {
    ++arrived;
    sender.ups[0]->close();
    pages.data()[0] = std::byte{99};
    std::vector<std::byte> into(payload.size);
    CHECK(!link.fetch(payload, into.data()) || !link.intact(payload));
  };
  sender.ups[0]->send(bulk(8 * kPage), pages.data(), 1);
  CHECK(run({&receiver}, [&] { return arrived == 1 && !receiver.downs.empty(); }, 5));
}

// A process that has private memory, and gives both ends of a socket away that the kernel says is its own.
class Other {
 public:
  explicit Other(Pages& pages) {
    int carrier[2];  // no Fd: the child needs one of them
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, carrier) == 0);
    child_ = ::fork();
    if (child_ == 0) {
      pages.data()[0] = std::byte{42};  // in its own copy
      live(carrier[1]);
    }
    DescriptorChannel::Message message{};
    std::vector<Fd> fds;
    const Fd from(carrier[0]), unused(carrier[1]);
    while (DescriptorChannel::read(from, message, fds) == DescriptorChannel::Read::nothing) ::usleep(1000);
    mark = {message.size, message.id, 0, 0};
    ours = std::move(fds.at(0));
    theirs = std::move(fds.at(1));
  }
  ~Other() { end(); }
  void end() {
    if (child_ == 0) return;
    ::kill(child_, SIGKILL);
    ::waitpid(std::exchange(child_, 0), nullptr, 0);
  }

  PrivateReads::Mark mark{};
  Fd ours, theirs;

 private:
  [[noreturn]] static void live(int carrier) {
    static uint64_t number = 4711;
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) ::_exit(1);
    const Fd to(carrier);
    DescriptorChannel channel;
    channel.send(to, {0, 4711, reinterpret_cast<uintptr_t>(&number)}, {ends[0], ends[1]});
    ::close(ends[0]);
    ::close(ends[1]);
    for (;;) ::pause();
  }

  pid_t child_;
};

TEST(what_is_read_of_a_process_that_has_ended_does_not_count) {
  Pages pages(8 * kPage);
  std::vector<std::byte> into(8 * kPage);
  const auto address = reinterpret_cast<uintptr_t>(pages.data());
  {
    Other other(pages);
    PrivateReads reads(SingleCopy::always);
    CHECK_EQ(reads.meet(other.ours, other.mark, {}), uint64_t{0});
    CHECK_EQ(reads.read(other.ours, address, into.data(), into.size()), 0);
    CHECK(into[0] == std::byte{42} && into[1] == pages.data()[1]);
    CHECK_EQ(reads.bytes(), into.size());
    other.theirs.reset();  // as exec closes it: it lives, but may be another program
    CHECK_EQ(reads.read(other.ours, address, into.data(), into.size()), ESRCH);
    CHECK_EQ(reads.bytes(), into.size());
  }
  {
    Other other(pages);
    PrivateReads reads(SingleCopy::always);
    CHECK_EQ(reads.meet(other.ours, other.mark, {}), uint64_t{0});
    other.end();
    CHECK_EQ(reads.read(other.ours, address, into.data(), into.size()), ESRCH);
    CHECK_EQ(PrivateReads(SingleCopy::always).meet(other.ours, other.mark, {}), uint64_t{ESRCH});
  }
}
