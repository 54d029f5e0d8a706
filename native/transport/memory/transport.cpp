#include "transport/memory/transport.h"

#include <utility>

namespace slipstream {

void MemoryHub::open(int rank, Bell* bell) {
  std::lock_guard lock(mutex_);
  boxes_[static_cast<size_t>(rank)].bell = bell;
}

void MemoryHub::put(int rank, Parcel parcel) {
  std::lock_guard lock(mutex_);
  Box& box = boxes_[static_cast<size_t>(rank)];
  box.parcels.push_back(std::move(parcel));
  if (box.bell != nullptr) box.bell->ring();
}

bool MemoryHub::empty(int rank) {
  std::lock_guard lock(mutex_);
  return boxes_[static_cast<size_t>(rank)].parcels.empty();
}

std::deque<MemoryHub::Parcel> MemoryHub::take(int rank) {
  std::lock_guard lock(mutex_);
  return std::exchange(boxes_[static_cast<size_t>(rank)].parcels, {});
}

class MemoryTransport::MemoryLink final : public Link {
 public:
  MemoryLink(MemoryTransport& home, int peer) : Link(peer, Kind::memory), home_(home) { home_.links_[peer] = this; }
  ~MemoryLink() override {
    close();
    home_.links_.erase(peer_);
  }

  bool send(const Frame& frame, const std::byte* data, uint64_t, int) override {
    if (!open_) return true;
    std::vector<std::byte> payload(data, data + frame.length);
    home_.hub_.put(peer_, {MemoryHub::Parcel::Kind::frame, home_.rank_, frame, std::move(payload)});
    return true;
  }
  void release(const Payload&) override {}
  void close() override {
    if (!std::exchange(open_, false)) return;
    up_ = false;
    home_.hub_.put(peer_, {MemoryHub::Parcel::Kind::end, home_.rank_, {}, {}});
  }

  void come_up() {
    up_ = open_;
    if (up_) home_.events_.up(*this);
  }
  void frame(const MemoryHub::Parcel& parcel) {
    last_heard_ = now();
    if (parcel.frame.type == FrameType::goodbye) goodbye_ = true;
    if (open_ && !goodbye_)
      home_.events_.arrived(*this, parcel.frame, Payload{parcel.payload.data(), parcel.frame.length, true, 0});
  }
  void end() {
    if (!std::exchange(open_, false)) return;
    up_ = false;
    const std::string who = "rank " + std::to_string(peer_);
    home_.events_.down(*this, goodbye_ ? Error{Code::aborted, peer_, {}, farewell(peer_, {})}
                                       : Error{Code::peer_lost, peer_, {}, who + " closed its connection"});
  }

 private:
  MemoryTransport& home_;
  bool open_ = true;
  bool goodbye_ = false;
};

MemoryTransport::MemoryTransport(MemoryHub& hub, Events& events, int rank, Bell& bell,
                                 std::function<void(std::unique_ptr<Link>)> accept)
    : hub_(hub), events_(events), rank_(rank), accept_(std::move(accept)) {
  hub_.open(rank, &bell);
}

MemoryTransport::~MemoryTransport() { hub_.open(rank_, nullptr); }

std::unique_ptr<Link> MemoryTransport::dial(int peer) {
  auto link = std::make_unique<MemoryLink>(*this, peer);
  hub_.put(peer, {MemoryHub::Parcel::Kind::hello, rank_, {}, {}});
  return link;
}

bool MemoryTransport::poll() {
  auto parcels = hub_.take(rank_);
  for (auto& parcel : parcels) deliver(parcel);
  return !parcels.empty();
}

void MemoryTransport::deliver(MemoryHub::Parcel& parcel) {
  const auto it = links_.find(parcel.from);
  switch (parcel.kind) {
    case MemoryHub::Parcel::Kind::hello: {
      if (it != links_.end()) return it->second->come_up();  // the answer to our own
      auto link = std::make_unique<MemoryLink>(*this, parcel.from);
      MemoryLink& made = *link;
      hub_.put(parcel.from, {MemoryHub::Parcel::Kind::hello, rank_, {}, {}});
      accept_(std::move(link));
      return made.come_up();
    }
    case MemoryHub::Parcel::Kind::frame:
      if (it != links_.end()) it->second->frame(parcel);
      return;
    case MemoryHub::Parcel::Kind::end:
      if (it != links_.end()) it->second->end();
  }
}

void MemoryTransport::die() {
  for (const auto& [peer, link] : std::unordered_map<int, MemoryLink*>(links_)) link->close();
}

}  // namespace slipstream
