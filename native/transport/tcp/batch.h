// The bulk lanes that are ready in one turn of the poller: where there are I/O threads, their system calls are
// performed together. What is sent and where bytes go is decided before, what follows from that after, both on the
// driver's thread. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "transport/poller.h"
#include "transport/tcp/io_threads.h"

namespace slipstream {

class BulkLane;
class Lane;

class Batch final : private Handler {
 public:
  Batch(Poller& poller, IoThreads& threads) : poller_(poller), threads_(threads) {}
  ~Batch() override { poller_.not_later(this); }

  // Whether there is anybody to share work with.
  bool shares() const { return threads_.count() > 0; }
  // From within ready(): the lane writes and reads at the end of the poller's turn.
  void add(BulkLane& lane, bool write, bool read);
  // The lane's connection goes; its share of a batch that is under way counts for nothing.
  void forget(const Lane& lane);

 private:
  struct Entry {
    BulkLane* lane;  // null: forgotten
    bool writes;     // in this turn
    bool write;      // in this round
    bool read;
    size_t wrote;
    size_t got;
    IoCall out;
    IoCall in;
  };

  void ready(uint32_t events) override;
  bool prepare(Time start);
  void finish();

  Poller& poller_;
  IoThreads& threads_;
  std::vector<Entry> entries_;
  std::vector<IoCall*> calls_;  // of this round
};

}  // namespace slipstream
