// A shared-memory link whose peer writes anything into the ring and the socket.
#pragma once

#include <sys/mman.h>

#include <vector>

#include "tests/fuzz_link.h"
#include "transport/shm/link.h"

namespace slipstream::fuzz {

class ShmUnderFuzz final : public Events, public Arrivals {
 public:
  ShmUnderFuzz() {
    home_ = std::make_shared<ShmTransport::Impl>(poller_, *this, *this, rig::identity(0), regions_, bell_, 10);
    home_->single_copy = SingleCopy::automatic;
  }

  void play(Input input) {
    auto [ours, theirs] = socket_pair();
    peer_ = std::move(theirs);
    link_ = std::make_unique<ShmLink>(home_, 1, std::move(ours), Handshake::server(home_->identity, {Purpose::shm}));
    memory_fd_ = make_memfd("fuzz-ring", kMapping);
    memory_ = Mapping(memory_fd_.get(), kMapping);
    ring_ = Ring(shared(), entries(), Ring::kLeast);
    if (!input.chance(8)) {
      Bell bell;
      message({1, 0, kMapping}, {memory_fd_.get(), bell.page_fd(), bell.event_fd()});
      turn();
    }
    while (!input.empty() && downs_ == 0) step(input);
    turn();
    peer_.reset();
    for (int i = 0; i < 4 && downs_ == 0; ++i) turn();
    require(downs_ == 1, "a link whose peer is gone goes down");
    link_.reset();
  }

 private:
  struct Message {  // as on the socket
    uint32_t kind;
    uint32_t id;
    uint64_t size;
  };

  static constexpr size_t kMapping = mapping_of(Ring::kLeast);

  std::byte* entries() { return memory_.data() + sizeof(LinkPair); }
  Ring::Shared* shared() { return reinterpret_cast<Ring::Shared*>(memory_.data()); }  // what the dialler writes

  void step(Input& input) {
    switch (input.below(8)) {
      case 0:
        return record(input);
      case 1:
        return damage(input);
      case 2:
        return announce(input);
      case 3: {
        const auto bytes = input.bytes(input.below(40));
        return put(peer_, bytes.data(), bytes.size());
      }
      case 4: {
        Frame frame;
        frame.length = static_cast<uint32_t>(input.value<uint16_t>() % (kEagerBytes + 32));
        const std::vector<std::byte> data(frame.length);
        if (frame.length <= kEagerBytes || link_->takes_at_once(frame.length)) link_->send(frame, data.data(), 0, 0);
        return;
      }
      case 5:
        return bulk_send();
      case 6:
        if (held_.empty()) return;
        link_->release(held_.back());
        return held_.pop_back();
      default:
        if (input.chance(4)) peer_.reset();
        turn();
    }
  }

  void turn() {
    if (failed_) return;
    try {
      poller_.wait(0);
      link_->poll();
      link_->tick(now());
    } catch (const Failure& failure) {  // the session fails with it, and turns no more
      failed_ = true;
      if (downs_ == 0) down(*link_, failure.error());
    }
  }

  void bulk_send() {
    if (!region_) region_ = regions_.create(64 << 10);
    Frame frame;
    frame.length = 32 << 10;
    link_->send(frame, region_->memory.data(), 1, 0);
  }

  void record(Input& input) {
    constexpr uint32_t kKinds[] = {1, 2, 3, 4, 5, 6, 7, 7};
    constexpr FrameType kTypes[] = {FrameType::data, rig::kUsersType, FrameType::goodbye, FrameType::abort};
    constexpr uint32_t kLengths[] = {0, 0, 24, 4096, kEagerBytes + 1, kMaxPayload, kMaxPayload + 1};
    const uint32_t kind = input.one_of(kKinds);
    const uint64_t value = input.chance(8) ? input.value<uint64_t>() : input.below(4) << 32 | input.below(4);
    Frame frame;
    frame.type = input.one_of(kTypes);
    frame.length = input.one_of(kLengths);
    size_t body = sizeof(frame);
    if (kind == 1) body += std::min<size_t>(frame.length, 32 << 10);
    if (kind == 2 || kind == 7) body += sizeof(uint64_t);
    if (kind == 5) body = sizeof(PrivateReads::Mark) + PrivateReads::kProbe;
    if (kind == 6) body = 0;
    if (input.chance(16)) body = input.value<uint16_t>();
    std::byte* place = ring_.reserve(kind, kind == 3 ? value >> 32 : value, body, 0);
    if (place == nullptr) return;
    std::memset(place, 0, body);
    std::memcpy(place, &frame, std::min(body, sizeof(frame)));
    if (kind == 5 && body > sizeof(PrivateReads::Mark) &&
        input.chance(2)) {  // a mark that is true: this process is both ends
      const PrivateReads::Mark mark{reinterpret_cast<uintptr_t>(&own_number_), own_number_,
                                    reinterpret_cast<uintptr_t>(bulk_.data()), input.below(2)};
      std::memcpy(place, &mark, sizeof(mark));
    } else if (kind == 7 && body == sizeof(frame) + sizeof(uint64_t) && input.chance(2)) {
      const auto address = reinterpret_cast<uintptr_t>(bulk_.data());
      std::memcpy(place + sizeof(frame), &address, sizeof(address));
    } else if (body > sizeof(frame)) {
      const auto bytes = input.bytes(std::min<size_t>(body - sizeof(frame), 32));
      std::copy(bytes.begin(), bytes.end(), place + sizeof(frame));
    }
    ring_.commit();
  }

  void damage(Input& input) {
    switch (input.below(3)) {
      case 0:
        return shared()->tail.store(input.value<uint32_t>());
      case 1:
        return shared()->head.store(input.value<uint32_t>());
      default: {
        const size_t at = input.value<uint32_t>() % Ring::kLeast;
        const auto bytes = input.bytes(std::min<size_t>(32, Ring::kLeast - at));
        std::copy(bytes.begin(), bytes.end(), entries() + at);
      }
    }
  }

  // A message on the socket with descriptors, some of them of regions.
  void announce(Input& input) {
    constexpr uint32_t kKinds[] = {1, 2, 2, 2};
    constexpr uint64_t kSizes[] = {4096, 8192, 1 << 20, sizeof(LinkPair), kMapping, kMapping + 2, 1ull << 40};
    const Message m{input.one_of(kKinds), static_cast<uint32_t>(input.below(4)), input.one_of(kSizes)};
    const Fd region = make_memfd("fuzz-region", input.chance(4) ? 100 : std::min<uint64_t>(m.size, 1 << 20));
    const size_t count = input.chance(4) ? input.below(5) : 1;
    message(m, std::vector<int>(count, region.get()));
  }

  void message(Message m, const std::vector<int>& fds) {
    iovec iov{&m, sizeof(m)};
    alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
      std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
    }
    if (peer_) (void)!::sendmsg(peer_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  Landing land(Link&, const Frame&) override { return {}; }
  void arrived(Link& link, const Frame& f, const Payload& payload) override {
    require(downs_ == 0, "no upcall after Events::down");
    require(payload.size == f.length && f.length <= kMaxPayload, "a payload is as long as its frame says, and bounded");
    require(f.length <= kEagerBytes || f.type == FrameType::data, "only data is bulk");
    if (payload.remote != 0) return fetch(link, payload);
    if (f.length > 0) sum_ += std::to_integer<uint64_t>(payload.data[0] | payload.data[f.length - 1]);
    if (payload.hold != 0) held_.push_back(payload);
    if (f.type == rig::kUsersType && f.length >= 24) {  // as the engine does
      uint64_t place[3];
      std::memcpy(place, payload.data, sizeof(place));
      std::byte* data = link.remote({place[0], place[1]}, place[2]);
      if (data != nullptr && place[2] > 0) sum_ += std::to_integer<uint64_t>(data[0] | data[place[2] - 1]);
    }
  }
  void fetch(Link& link, const Payload& payload) {
    require(payload.data == nullptr && payload.size <= bulk_.size(), "what is fetched is bounded");
    std::vector<std::byte> into(payload.size);
    if (link.fetch(payload, into.data())) sum_ += std::to_integer<uint64_t>(into.front() | into.back());
    held_.push_back(payload);
  }
  void sent(Link&, uint64_t cookie) override { require(cookie == 1, "a send is told by its cookie"); }
  void up(Link&) override {}
  void down(Link&, const Error& error) override {
    require(static_cast<bool>(error) && downs_ == 0, "a link goes down once, and for a reason");
    ++downs_;
  }
  void accepted(std::unique_ptr<Link>) override {}
  void knocked(int) override {}
  void stranger(const std::string&, const std::string&) override {}

  bool failed_ = false;
  Poller poller_;
  Bell bell_;
  Regions regions_;
  std::shared_ptr<ShmTransport::Impl> home_;
  Fd peer_;
  Fd memory_fd_;
  Mapping memory_;
  Ring ring_;
  std::shared_ptr<Region> region_;
  std::unique_ptr<ShmLink> link_;
  std::vector<Payload> held_;
  std::vector<std::byte> bulk_ = std::vector<std::byte>(kMaxPayload);
  uint64_t own_number_ = 77;
  uint64_t sum_ = 0;
  int downs_ = 0;
};

inline void fuzz_shm(Input input) { ShmUnderFuzz().play(input); }

}  // namespace slipstream::fuzz
