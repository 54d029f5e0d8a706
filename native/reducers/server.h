// The reducer's end of a job's session: its part in every work that the job's workers offer.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/offer_handler.h"
#include "engine/plan.h"
#include "reducers/offer.h"
#include "session/session.h"

namespace slipstream {

struct ReducerServerOptions {
  int workers = 1;                         // ranks 0 to workers - 1; the reducer is the rank after them
  std::vector<std::vector<int>> carriers;  // of each shard (shards.h): a worker of each host
  std::string job;                         // reducer_session()
  std::string secret;                      // the same
  std::shared_ptr<const Plan> plan;        // of the reducer, in a work of a shard's carriers
  std::shared_ptr<const Plan> small;       // the same, in a work of all workers
  double heartbeat_seconds = 10;
  LinkOptions link{};
  size_t window_bytes = 8 << 20;  // of one work of each shard, in the reducer's memory
  double intake = 0;              // bytes a second that it takes in, of all workers; 0: no bound
};

class ReducerServer final : private OfferHandler {
 public:
  explicit ReducerServer(ReducerServerOptions options);

  uint16_t listen_tcp(const std::vector<std::string>& addresses) { return session_.listen_tcp(addresses); }
  // Starts the engine thread. The workers dial.
  void start();

  // What the reducer has done.
  struct Served {
    uint64_t works = 0;     // that were offered
    uint64_t finished = 0;  // of these, before the session failed
    uint64_t bytes = 0;     // that came in, of all workers
    int links = 0;          // workers that are connected
    Error failure;
    bool own = false;  // it is this reducer's, not a worker's
  };
  Served served();
  Error failure() const { return session_.failure(); }
  // Works that are not done fail. Idempotent.
  void close() { session_.close(); }

 private:
  Error offered(int peer, const WorkHeader& frame, std::span<const std::byte> payload) override;
  std::shared_ptr<const Group> group_of_channel(uint64_t channel);  // null: there is none
  Request request_for(const Offer& offer, std::shared_ptr<const Group> group) const;

  struct ChannelOffers {
    std::shared_ptr<const Group> group;
    uint32_t next = 0;  // number of the work that has not been offered yet
  };

  const ReducerServerOptions options_;
  // The driver's.
  std::map<uint64_t, ChannelOffers> channels_;
  std::map<int, uint64_t> offers_;  // how many, by worker
  Served served_;
  Session session_;
};

}  // namespace slipstream
