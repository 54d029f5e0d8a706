// Links between ranks that are threads of one process: for tests of what stands above. A frame is copied once into
// the receiver's inbox. Rank i of a hub talks to rank j as soon as both have looked at each other's inbox.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/bell.h"
#include "transport/link.h"

namespace slipstream {

// Where all ranks meet. Thread-safe.
class MemoryHub {
 public:
  explicit MemoryHub(int size) : boxes_(static_cast<size_t>(size)) {}

  struct Parcel {
    enum class Kind : uint8_t { hello, frame, end } kind;
    int from;
    Frame frame;
    std::vector<std::byte> payload;
  };

  void open(int rank, Bell* bell);
  void put(int rank, Parcel parcel);
  bool empty(int rank);
  std::deque<Parcel> take(int rank);

 private:
  struct Box {
    std::deque<Parcel> parcels;
    Bell* bell = nullptr;
  };
  std::mutex mutex_;
  std::vector<Box> boxes_;
};

class MemoryTransport {
 public:
  // `accept` takes the links that others dial.
  MemoryTransport(MemoryHub& hub, Events& events, int rank, Bell& bell,
                  std::function<void(std::unique_ptr<Link>)> accept);
  ~MemoryTransport();

  std::unique_ptr<Link> dial(int peer);
  bool poll();
  bool pending() { return !hub_.empty(rank_); }
  // Closes without goodbye, as a death would.
  void die();

 private:
  class MemoryLink;
  void deliver(MemoryHub::Parcel& parcel);

  MemoryHub& hub_;
  Events& events_;
  int rank_;
  std::unordered_map<int, MemoryLink*> links_;
  std::function<void(std::unique_ptr<Link>)> accept_;
};

}  // namespace slipstream
