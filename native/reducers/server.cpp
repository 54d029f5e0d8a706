#include "reducers/server.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "reducers/shards.h"

namespace slipstream {
namespace {

constexpr size_t kMostWorks = 128;        // that are not done; workers have no more than about 20 ...
constexpr size_t kMostWorksOfShard = 16;  // ... and 4 more for each shard

SessionOptions session_options(const ReducerServerOptions& options, OfferHandler& offers) {
  SessionOptions found;
  found.rank = options.workers;
  found.size = options.workers + 1;
  found.job = options.job;
  found.secret = options.secret;
  found.heartbeat_seconds = options.heartbeat_seconds;
  found.heartbeat_setting = "the reducer";
  found.link = options.link;
  found.star.emplace();
  found.star->offers = &offers;
  found.star->intake = options.intake;
  return found;
}

Error broken_rules(int peer, std::string text) { return Error{Code::internal, peer, {}, std::move(text)}; }

}  // namespace

ReducerServer::ReducerServer(ReducerServerOptions options)
    : options_(std::move(options)), session_(session_options(options_, *this)) {}

void ReducerServer::start() { session_.start(std::vector<PeerAddress>(static_cast<size_t>(options_.workers) + 1)); }

// A worker has begun a work: the first that says so begins it here too. What the others say is not looked at: their
// frames' signatures are compared.
Error ReducerServer::offered(int peer, const WorkHeader& frame, std::span<const std::byte> payload) {
  const auto found = channels_.find(frame.channel);
  const uint32_t next = found == channels_.end() ? 0 : found->second.next;
  const bool late = frame.seq < next;
  if (++offers_[peer] > served_.works + (late ? 0 : 1))  // or it could say the same for ever
    return broken_rules(peer, session_.engine().fabric().who(peer) + " offers a work twice");
  if (late) return {};
  const auto offer = decode_offer(payload);
  const auto group = found == channels_.end() ? group_of_channel(frame.channel) : found->second.group;
  const bool fits = offer && offer->signature.chunk_bytes <= options_.window_bytes / 8;
  if (!fits || frame.seq > next || group == nullptr || group->index_of(peer) < 0)
    return broken_rules(
        peer, "rank " + std::to_string(peer) + " sent an offer that cannot be: do all run the same slipstream?");
  const size_t most = kMostWorks + kMostWorksOfShard * (options_.carriers.size() - 1);
  if (session_.engine().works() >= most)
    return broken_rules(
        peer, session_.engine().fabric().who(peer) + " offers more than " + std::to_string(most) + " works at once");
  ChannelOffers& channel = channels_[frame.channel];
  channel.group = group;
  ++channel.next;
  ++served_.works;
  served_.bytes += bytes_between_hosts(offer->signature, offer->count) * (group->ranks.size() - 1);
  session_.submit(session_.prepare(request_for(*offer, channel.group), 0));
  return {};
}

std::shared_ptr<const Group> ReducerServer::group_of_channel(uint64_t channel) {
  std::vector<int> ranks(static_cast<size_t>(options_.workers));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (channel != kAllWorkers) {
    const uint64_t shard = channel - carriers_group(0);
    if (shard >= options_.carriers.size()) return nullptr;
    ranks = options_.carriers[shard];
  }
  ranks.push_back(options_.workers);
  return session_.make_group(channel, std::move(ranks));
}

Request ReducerServer::request_for(const Offer& offer, std::shared_ptr<const Group> group) const {
  Request request;
  request.plan = group->id == kAllWorkers ? options_.small : options_.plan;
  request.group = std::move(group);
  request.signature = offer.signature;
  request.chunk_bytes = offer.signature.chunk_bytes;
  for (Layout& space : request.spaces) space.count = offer.count;
  request.postscale = offer.postscale;
  request.divisor = offer.divisor;
  request.part.emplace();
  request.part->windowed = true;
  request.part->window_bytes = options_.window_bytes;
  return request;
}

ReducerServer::Served ReducerServer::served() {
  const auto [tcp, shm] = links_of(session_);
  Served found;
  session_.as_driver([&] {
    if (!failure()) served_.finished = served_.works - session_.engine().works();
    found = served_;
  });
  found.links = tcp + shm;
  found.failure = failure();
  const int rank = found.failure.rank;
  found.own = found.failure.code == Code::internal && (rank < 0 || rank == options_.workers);
  return found;
}

}  // namespace slipstream
