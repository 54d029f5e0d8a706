// A tcp link whose peer does anything at all, while its owner goes on using it.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/fuzz_inbox.h"
#include "tests/tcp_rig.h"
#include "transport/tcp/link.h"

namespace slipstream::fuzz {

inline std::pair<Fd, Fd> socket_pair() {
  int fds[2] = {-1, -1};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0, "a socket pair can be had");
  return {Fd(fds[0]), Fd(fds[1])};
}

inline void put(const Fd& fd, const void* data, size_t size) {
  if (fd) (void)!::send(fd.get(), data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

// The owner frees memory as soon as the link has promised not to use it any more: ASan sees what breaks the promise.
class ScriptedLink : public Events {
 public:
  void play(Input input) {
    TcpOptions options;
    if (input.chance(2)) options.acknowledge_seconds = 1e-6;
    auto core = std::make_shared<TcpCore>(poller_, *this, rig::identity(0), options);
    if (input.chance(4)) core->directory = [](int rank) { return TcpTarget{rank, {}, 0}; };
    auto [ours, theirs] = socket_pair();
    control_ = std::move(theirs);
    link_ = std::make_unique<TcpLink>(core, 1, 1, Connection(std::move(ours), nullptr));
    const size_t lanes = 1 + input.below(kLanes);
    for (uint32_t i = 0; i < lanes; ++i) open_lane(i);
    link_->come_up();
    while (!input.empty()) step(input);
    for (int i = 0; i < 4; ++i) turn();
    // The end: the peer is gone.
    control_.reset();
    for (Fd& lane : lanes_) lane.reset();
    const bool closed = closed_;
    const Time end = now() + seconds(5);  // a knock after several breaks waits half a second
    while (downs_ == 0 && !closed && now() < end) poller_.wait(10);
    require(closed || downs_ == 1, "a link whose peer is gone goes down");
    link_.reset();
  }

 private:
  static constexpr size_t kLanes = 3;
  static constexpr std::byte kZeros[64 << 10] = {};

  void step(Input& input) {
    switch (input.below(12)) {
      case 0:
        return send_control(input);
      case 1:
      case 2:
        return send_segment(input);
      case 3: {  // raw bytes, on any connection
        const size_t lane = input.below(kLanes + 1);
        const auto bytes = input.bytes(input.byte());
        return put(lane < kLanes ? lanes_[lane] : control_, bytes.data(), bytes.size());
      }
      case 4:  // padding, for payloads that are under way
        return put(lanes_[input.below(kLanes)], kZeros, std::min<size_t>(sizeof(kZeros), input.value<uint16_t>()));
      case 5:
        return own_send(input);
      case 6:
        return give_back(input.byte());
      case 7: {
        Fd& lane = lanes_[input.below(kLanes)];
        return input.chance(2) ? lane.reset() : drain(lane);
      }
      case 8:
        return open_lane(static_cast<uint32_t>(input.below(kLanes + 1)));
      case 9: {
        auto [ours, theirs] = socket_pair();
        control_ = std::move(theirs);
        return link_->control_connection().replace({std::move(ours), nullptr}, ++generation_);
      }
      case 10:
        drain(control_);
        return turn();
      default:
        if (input.chance(32)) {
          link_->close();
          closed_ = true;
          forget();
        }
        turn();
    }
  }

  void turn() { poller_.wait(0); }

  void forget() {
    landed_.clear();
    sends_.clear();
  }

  void open_lane(uint32_t number) {
    auto [ours, theirs] = socket_pair();
    link_->bulk().add({std::move(ours), nullptr}, number);
    if (number >= kLanes) return;
    lanes_[number] = std::move(theirs);
    places_[number] = 0;
  }

  void send_control(Input& input) {
    constexpr FrameType kTypes[] = {FrameType::data,  rig::kUsersType, rig::kUsersType,   FrameType::abort,
                                    FrameType::taken, FrameType::seen, FrameType::resume, FrameType::goodbye,
                                    FrameType::cut,   FrameType::lanes};
    constexpr uint32_t kLengths[] = {0, 0, 0, 1, 100, kMaxText, kMaxText + 1, kEagerBytes};
    constexpr uint64_t kNumbers[] = {0, 1, 2, 3, 32, 64, 96};
    LaneControl frame;
    frame.type = input.one_of(kTypes);
    frame.length = input.one_of(kLengths);
    frame.number = input.one_of(kNumbers);
    if (input.chance(4)) frame.flags = kAllBefore;
    ControlHeader header{frame, {}};
    if (input.chance(4)) header.check.payload = payload_check({kZeros, std::min<size_t>(frame.length, sizeof(kZeros))});
    seal(header, frame.type == FrameType::resume ? kResumePlace : control_place_);
    if (input.chance(16)) ++header.check.header;
    if (frame.type != FrameType::resume) control_place_ += sizeof(header) + frame.length;
    put(control_, &header, sizeof(header));
    if (!input.chance(8)) put(control_, kZeros, std::min<size_t>(frame.length, sizeof(kZeros)));
  }

  void send_segment(Input& input) {
    const bool last = input.chance(8);
    SegmentHeader header =
        last ? promotion(static_cast<uint32_t>(1 + input.below(2 * generation_ + 4))) : segment_header(input);
    const size_t number = input.below(kLanes);
    const Fd& lane = lanes_[number];
    if (!last && input.chance(4))
      header.check.payload = payload_check({kZeros, std::min<size_t>(header.size, sizeof(kZeros))});
    seal(header, places_[number]++);
    if (input.chance(16)) ++header.check.header;
    put(lane, &header, input.chance(16) ? input.below(sizeof(header)) : sizeof(header));
    if (!input.chance(4)) put(lane, kZeros, std::min<size_t>(header.size, sizeof(kZeros)));
  }

  void own_send(Input& input) {
    constexpr uint32_t kLengths[] = {0, 100, kEagerBytes, kEagerBytes + 1, 64 << 10, 256 << 10};
    const uint32_t length = kLengths[input.below(std::size(kLengths))];
    auto memory = std::make_unique<std::byte[]>(length);
    Frame frame;
    frame.length = length;
    const uint64_t cookie = ++last_cookie_;
    const std::byte* data = memory.get();
    if (length > kEagerBytes) sends_[cookie] = std::move(memory);
    if (link_->send(frame, data, cookie, static_cast<int>(cookie % 3))) sends_.erase(cookie);
  }

  void give_back(size_t index) {
    if (held_.empty()) return;
    const auto at = held_.begin() + static_cast<ptrdiff_t>(index % held_.size());
    const Payload payload = *at;
    held_.erase(at);
    link_->release(payload);
  }

  static void drain(const Fd& fd) {
    std::byte sink[4096];
    for (int i = 0; fd && i < 64 && ::recv(fd.get(), sink, sizeof(sink), MSG_DONTWAIT) > 0; ++i) {
    }
  }

  void alive() const { require(!closed_ && downs_ == 0, "no upcall after close() or Events::down"); }

  Landing land(Link&, const Frame& f) override {
    alive();
    require(f.type == FrameType::data && f.length > kEagerBytes && f.length <= kMaxPayload, "only bulk data lands");
    if (WorkHeader::of(f).seq % 2 == 0) return {true, nullptr};
    auto memory = std::make_unique<std::byte[]>(f.length);
    std::byte* into = memory.get();
    landed_[into] = std::move(memory);
    return {true, into};
  }
  void arrived(Link&, const Frame& f, const Payload& payload) override {
    alive();
    require(payload.size == f.length, "a payload is as long as its frame says");
    require(f.length <= kEagerBytes || f.type == FrameType::data, "only data is bulk");
    if (f.length > 0) sum_ += std::to_integer<uint64_t>(payload.data[0] | payload.data[f.length - 1]);
    landed_.erase(const_cast<std::byte*>(payload.data));
    if (payload.hold != 0) held_.push_back(payload);
  }
  void sent(Link&, uint64_t cookie) override {
    alive();
    require(sends_.erase(cookie) == 1, "each send is told once");
  }
  void up(Link&) override {}
  void down(Link&, const Error& error) override {
    alive();
    require(static_cast<bool>(error), "a link goes down for a reason");
    ++downs_;
    forget();
  }

  Poller poller_;
  std::map<std::byte*, std::unique_ptr<std::byte[]>> landed_;
  std::map<uint64_t, std::unique_ptr<std::byte[]>> sends_;
  std::vector<Payload> held_;
  Fd control_;
  uint32_t generation_ = 0;
  Fd lanes_[kLanes];
  uint64_t places_[kLanes] = {};  // segments said on each
  uint64_t control_place_ = 0;    // bytes of the control stream said
  std::unique_ptr<TcpLink> link_;
  uint64_t last_cookie_ = 0;
  uint64_t sum_ = 0;
  int downs_ = 0;
  bool closed_ = false;
};

inline void fuzz_link(Input input) { ScriptedLink().play(input); }

}  // namespace slipstream::fuzz
