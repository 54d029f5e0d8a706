#include "engine/failure_state.h"

#include <span>

#include "base/cut.h"
#include "base/log.h"
#include "engine/abort_frame.h"

namespace slipstream {

namespace {

constexpr size_t kMostGoodbye = 1000;  // bytes
static_assert(kMostGoodbye <= kMostReasonBytes);

}  // namespace

void FailureState::suspect(const Error& error, Time due) {
  if (suspicion_) return;
  suspicion_ = error;
  suspicion_due_ = due;
}

void FailureState::fail(const Error& error, const std::set<int>& concerned) {
  ended_ = true;
  suspicion_ = {};
  reason_ = encode_error(as_told(error));
  for (const int rank : concerned) {
    const bool lost = fabric_.gone(rank) || (error.code == Code::peer_lost && error.rank == rank);
    if (rank != rank_ && !lost && fabric_.up(rank) == nullptr) untold_.insert(rank);
  }
  fabric_.broadcast(last_frame(), reason_);
  if (spreads_) spread(error);
}

// An error of this rank's own, such as a lack of memory, says "this process" where others read it.
Error FailureState::as_told(Error error) const {
  if (error.code != Code::internal || (error.rank != rank_ && error.rank != -1)) return error;
  error.rank = rank_;
  error.text = fabric_.who(rank_) + " failed: " + error.text;
  return error;
}

void FailureState::leave(const std::string& reason) {
  suspicion_ = {};
  if (ended_) return;
  ended_ = true;
  goodbye_ = cut(reason, kMostGoodbye);
  fabric_.broadcast(last_frame(), std::as_bytes(std::span(goodbye_)));
}

WorkHeader FailureState::last_frame() const {
  WorkHeader frame;
  frame.type = reason_.empty() ? MessageType::goodbye : MessageType::abort;
  frame.length = static_cast<uint32_t>(reason_.empty() ? goodbye_.size() : reason_.size());
  return frame;
}

// Ranks without a link to us learn of the failure too: they may wait for a rank that is busy and knows nothing. Each
// rank tells those at distances 1, 2, 4, ... from its own, and these do the same: all know after log(size) hops.
void FailureState::spread(const Error& error) {
  const int size = fabric_.size();
  for (int distance = 1; distance < size; distance *= 2) {
    const int rank = (rank_ + distance) % size;
    const bool lost = error.code == Code::peer_lost && error.rank == rank;
    if (lost || fabric_.up(rank) != nullptr) continue;
    try {
      if (fabric_.reach_out(rank)) untold_.insert(rank);
    } catch (const std::exception& e) {  // no file descriptor is left, say; the others spread it, too
      log_warning(rank_, fabric_.who(rank) + " is not told why the session failed: " + e.what());
    }
  }
}

void FailureState::tell(Link& link) {
  untold_.erase(link.peer());
  link.send(last_frame(), reason_.empty() ? std::as_bytes(std::span(goodbye_)).data() : reason_.data(), 0);
  link.close();
}

void FailureState::dial_back(int rank) {
  if (rank < rank_) return;  // it only asks whether we live
  fabric_.forget(rank);      // whatever we thought of it: it lives, and waits to be told
  if (fabric_.reach_out(rank)) untold_.insert(rank);
}

}  // namespace slipstream
