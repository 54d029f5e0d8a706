// The engine with works under way, and peers that send any frame a link lets through.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/abort_frame.h"
#include "engine/engine.h"
#include "tests/fuzz_input.h"
#include "tests/plans.h"
#include "transport/tcp/control_frames.h"

namespace slipstream::fuzz {

inline constexpr int kSize = 4;
inline constexpr int kSelf = 1;

// Takes everything; bulk sends stay under way until they are told to be done.
class FuzzLink final : public Link {
 public:
  explicit FuzzLink(int peer) : Link(peer, Kind::tcp) { up_ = true; }

  bool send(const Frame& frame, const std::byte* data, uint64_t cookie, int) override {
    if (!up_) return true;
    if (frame.length > 0) sum_ += std::to_integer<uint64_t>(data[0] | data[frame.length - 1]);
    require(frame.length <= kEagerBytes ? objection_to_control(frame) == nullptr : frame.length <= kMaxPayload,
            "the engine sends frames that a link lets through");
    if (frame.length <= kEagerBytes) return true;
    under_way_.push_back(cookie);
    return false;
  }
  void release(const Payload& payload) override {
    if (payload.hold != 0) require(held_.erase(payload.hold) == 1, "each payload is released once");
  }
  std::byte* remote(const Shared& shared, size_t bytes) override {
    if (shared.region != 7 || shared.offset != 0 || bytes > (64 << 10)) return nullptr;
    remote_.resize(std::max(remote_.size(), size_t{64} << 10));
    return remote_.data();
  }
  void close() override { up_ = false; }

  Payload hold(uint32_t size) {
    const uint64_t id = ++last_hold_;
    auto& memory = held_[id] = std::make_unique<std::byte[]>(size);
    return {memory.get(), size, false, id};
  }
  void break_down() { up_ = false; }
  std::vector<uint64_t>& under_way() { return under_way_; }

 private:
  std::vector<uint64_t> under_way_;
  std::map<uint64_t, std::unique_ptr<std::byte[]>> held_;
  std::vector<std::byte> remote_;
  uint64_t last_hold_ = 0;
  uint64_t sum_ = 0;
};

class EngineUnderFuzz final : Dialer, Pump {
 public:
  EngineUnderFuzz() : engine_(kSelf, kSize, poller_, bell_, regions_, *this, EngineOptions{}) {
    engine_.set_pump(this);
    auto group = std::make_shared<Group>();
    group->id = kGroup;
    for (int r = 0; r < kSize; ++r) group->ranks.push_back(r);
    group->rank = kSelf;
    group_ = group;
  }

  void play(Input input) {
    for (int peer = 0; peer < kSize; ++peer)
      if (peer != kSelf) adopt(peer);
    while (!input.empty()) step(input);
    engine_.turn();
    engine_.leave();
    for (const WorkPtr& work : works_) require(work->done(), "every work ends with its session");
  }

 private:
  static constexpr uint64_t kGroup = 7;
  static uint64_t message_channel(int from, int to) {
    return uint64_t{1} << 63 | static_cast<uint64_t>(from * 64 + to);
  }

  void step(Input& input) {
    switch (input.below(8)) {
      case 0:
      case 1:
        return submit(input);
      case 2:
        engine_.turn();
        return;
      case 3: {  // sends that have been taken
        FuzzLink* link = links_[other(input)];
        if (link == nullptr || link->under_way().empty() || !link->up()) return;
        const uint64_t cookie = link->under_way().back();
        link->under_way().pop_back();
        return engine_.sent(*link, cookie);
      }
      case 4:
        return input.chance(16) ? lose(other(input), input.chance(2)) : (void)engine_.tick(now());
      default:
        return frame(input);
    }
  }

  static size_t other(Input& input) {
    constexpr size_t kOthers[] = {0, 2, 3};
    return kOthers[input.below(3)];
  }

  void adopt(int peer) {
    auto link = std::make_unique<FuzzLink>(peer);
    FuzzLink* raw = links_[static_cast<size_t>(peer)] = link.get();
    engine_.fabric().adopt(std::move(link));
    engine_.up(*raw);
  }

  void lose(size_t peer, bool in_good_order) {
    FuzzLink* link = links_[peer];
    if (link == nullptr || !link->up()) return;
    link->break_down();
    links_[peer] = nullptr;
    engine_.down(*link, Error{in_good_order ? Code::aborted : Code::peer_lost, static_cast<int>(peer), {}, "gone"});
  }

  Request request(const std::string& operation, std::shared_ptr<const Plan> plan, uint64_t count, uint32_t chunk) {
    Request r;
    r.plan = std::move(plan);
    r.group = group_;
    r.signature.operation = operation;
    r.signature.reduces = operation[0] == 'r';
    r.signature.count = count;
    r.signature.chunk_bytes = r.chunk_bytes = chunk;
    r.signature_hash = r.signature.hash();
    r.timeout_seconds = 1000;
    for (size_t i = 0; i < 2; ++i) {  // of exactly that size, so that ASan sees the byte behind it
      memory_.push_back(std::make_unique<float[]>(count));
      r.spaces[i] = {reinterpret_cast<std::byte*>(memory_.back().get()), count, {}};
    }
    r.spaces[2] = {nullptr, count, {}};
    return r;
  }

  static std::shared_ptr<const Plan> one_step(StepKind kind, int peer) {
    testing::PlanBuilder b(kSelf, kSize, 1);
    b.add(kind, peer, 0, {}, Space::in);
    return b.build();
  }

  void submit(Input& input) {
    if (works_.size() >= 16) return;
    constexpr uint64_t kCounts[] = {0, 1, 4, 1000, 16'400};
    constexpr uint32_t kChunks[] = {64, 20'000, 64 << 10};
    const uint64_t count = kCounts[input.below(std::size(kCounts))];
    const uint32_t chunk = count > 1000 ? kChunks[1 + input.below(2)] : kChunks[input.below(3)];
    const int peer = static_cast<int>(other(input));
    switch (input.below(6)) {
      case 5: {  // encoded on its way from and to all ranks but one
        Request r = request("ring", testing::ring_all_reduce(kSelf, kSize), count, chunk);
        r.signature.wire = static_cast<WireType>(1 + input.below(kWireTypes - 1));
        r.signature_hash = r.signature.hash();
        return start(std::move(r), kGroup);
      }
      case 0:
        return start(request("ring", testing::ring_all_reduce(kSelf, kSize), count, chunk), kGroup);
      case 1:
        return start(request("reduce", testing::direct_all_reduce(kSelf, kSize), count, chunk), kGroup);
      case 2:
        return start(request("send", one_step(StepKind::send, peer), count, chunk), message_channel(kSelf, peer));
      case 3:
        return start(request("recv", one_step(StepKind::recv, peer), count, chunk), message_channel(peer, kSelf));
      default: {
        Request r = request("recv", nullptr, count, chunk);
        for (const int source : {0, 2, 3})
          r.candidates.push_back({message_channel(source, kSelf), one_step(StepKind::recv, source)});
        start(std::move(r), 0);
      }
    }
  }

  void start(Request r, uint64_t channel) {
    r.channel = channel;
    auto work = std::make_shared<Work>(std::move(r));
    hashes_.push_back(work->request.signature_hash);
    engine_.ledger().enter(work);
    works_.push_back(work);
    engine_.submit(work);
    engine_.turn();
  }

  // What the peer would send for a work of ours, but for what the fuzzer changes.
  WorkHeader right_frame(const Work& work, size_t peer, Input& input) {
    const Request& r = work.request;
    WorkHeader f;
    f.channel = r.channel;
    f.seq = r.seq;
    f.signature = r.signature_hash;
    f.flags = static_cast<uint8_t>(input.below(4));
    f.type = input.chance(4) ? MessageType::ready : MessageType::data;
    const int index = r.plan == nullptr ? -1 : r.plan->peer_index(static_cast<int>(peer));
    const auto* recvs = index < 0 ? nullptr : &r.plan->peers()[static_cast<size_t>(index)].recvs;
    if (recvs == nullptr || recvs->empty() || f.type == MessageType::ready) return f;
    f.stream = static_cast<uint16_t>(input.below(recvs->size()));
    const Step& step = r.plan->steps()[(*recvs)[f.stream]];
    const auto offset = [&](int block) {
      return r.spaces[1].count * static_cast<uint64_t>(block) / static_cast<uint64_t>(r.plan->blocks());
    };
    const uint64_t block = offset(step.block + 1) - offset(step.block), chunk = r.chunk_bytes / sizeof(float);
    f.chunk = static_cast<uint32_t>(input.below(block / chunk + 1));
    f.length = static_cast<uint32_t>(std::min(block - f.chunk * chunk, chunk) * sizeof(float));
    switch (input.below(16)) {
      case 0:
        f.length = 0;
        break;
      case 1:
        f.chunk = static_cast<uint32_t>(input.below(8));
        break;
      case 2:
        f.piece = 1;
        break;
      default:
        break;
    }
    return f;
  }

  void frame(Input& input) {
    const size_t peer = other(input);
    FuzzLink* link = links_[peer];
    if (link == nullptr || !link->up()) return;
    if (works_.empty() || input.chance(4)) return deliver(*link, any_frame(peer, input), input);
    deliver(*link, right_frame(*works_[input.below(works_.size())], peer, input), input);
  }

  WorkHeader any_frame(size_t peer, Input& input) {
    constexpr MessageType kTypes[] = {
        MessageType::data,   MessageType::data, MessageType::ready,    MessageType::request, MessageType::announce,
        MessageType::credit, MessageType::ping, MessageType::describe, MessageType::status,  MessageType::abort};
    constexpr uint32_t kLengths[] = {0, 4, 16, 64, 1000, 4000, 16'400, 20'000};
    const uint64_t channels[] = {kGroup, message_channel(static_cast<int>(peer), kSelf),
                                 message_channel(kSelf, static_cast<int>(peer))};
    WorkHeader f;
    f.type = input.one_of(kTypes);
    f.flags = static_cast<uint8_t>(input.below(4));
    f.channel = input.one_of(channels);
    f.seq = static_cast<uint32_t>(input.chance(16) ? input.value<uint32_t>() : input.below(4));
    f.signature = hashes_.empty() || input.chance(16) ? input.value<uint32_t>() : hashes_[input.below(hashes_.size())];
    f.stream = static_cast<uint16_t>(input.chance(16) ? input.value<uint16_t>() : input.below(8));
    f.chunk = static_cast<uint32_t>(input.chance(16) ? input.value<uint32_t>() : input.below(4));
    f.piece = static_cast<uint16_t>(input.chance(16) ? input.value<uint16_t>() : 0);
    f.length = input.one_of(kLengths);
    return f;
  }

  void deliver(FuzzLink& link, const WorkHeader& f, Input& input) {
    if (f.length > kEagerBytes && f.type == MessageType::data && f.length <= kMaxPayload) return bulk(link, f);
    if (objection_to_control(f) != nullptr) return;
    // Exactly as long as it is, and from the fuzzer as far as that goes.
    auto payload = std::make_unique<std::byte[]>(f.length);
    const auto bytes = input.bytes(std::min<size_t>(f.length, 128));
    std::copy(bytes.begin(), bytes.end(), payload.get());
    engine_.arrived(link, f, Payload{payload.get(), f.length, true, 0});
  }

  void bulk(FuzzLink& link, const WorkHeader& f) {
    const auto landing = engine_.land(link, f);
    if (!landing.ok || !link.up()) return;
    if (landing.into == nullptr) return engine_.arrived(link, f, link.hold(f.length));
    std::memset(landing.into, 1, f.length);
    engine_.arrived(link, f, Payload{landing.into, f.length, false, 0});
  }

  // Dialer and Pump: all links are there from the start, and nothing has to be pumped.
  std::unique_ptr<Link> dial(int rank) override {
    auto link = std::make_unique<FuzzLink>(rank);
    link->break_down();
    return link;
  }
  void knock(int) override {}
  std::string host_of(int) const override { return "h"; }
  bool shares_memory(int rank) const override { return rank == 2; }
  bool poll() override { return false; }
  bool pending() const override { return false; }
  bool congested() const override { return false; }
  Time tick(Time) override { return Time::max(); }

  std::vector<std::unique_ptr<float[]>> memory_;  // of all works; outlives the engine
  Regions regions_;
  Bell bell_;
  Poller poller_;
  Engine engine_;
  std::shared_ptr<const Group> group_;
  FuzzLink* links_[kSize] = {};  // the engine's, while they are up
  std::vector<WorkPtr> works_;
  std::vector<uint32_t> hashes_;
};

inline void fuzz_engine(Input input) { EngineUnderFuzz().play(input); }

// What is decoded can be said again, and means the same.
inline void fuzz_error(Input input) {
  const auto bytes = input.rest();
  const auto error = decode_error(bytes);
  if (!error) return;
  require(static_cast<bool>(*error), "an error that was decoded is one");
  const auto again = decode_error(encode_error(*error));
  require(again && again->code == error->code && again->rank == error->rank, "an error survives its encoding");
  require(again->text == cut(error->text, kMostErrorText), "its text does, as far as it may");
}

}  // namespace slipstream::fuzz
