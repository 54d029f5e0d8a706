#include "mpi_trampoline/local_messages.h"

#include <algorithm>
#include <cstring>

#include "mpi_trampoline/engine.h"
#include "mpi_trampoline/local_waits.h"

namespace slipstream::mpi {

std::string LocalMessages::named(const Key& key) const {
  return "a message between devices of rank " + std::to_string(rank_) + ", from place " + std::to_string(key.from) +
         " to place " + std::to_string(key.to) + " of their group with tag " + std::to_string(key.tag) + ",";
}

std::string LocalMessages::post(const Key& key, const std::shared_ptr<LocalMessage>& message) {
  std::shared_ptr<LocalMessage> other;
  {
    const std::lock_guard lock(local_mutex());
    if (!local_failure().empty()) return local_failure();
    auto& waiting = posted_[key];
    if (waiting.empty() || waiting.front()->is_sent == message->is_sent) {
      waiting.push_back(message);
      return {};
    }
    other = waiting.front();
    waiting.pop_front();
    if (waiting.empty()) posted_.erase(key);
    if (other->bytes != message->bytes) {
      const LocalMessage& sent = message->is_sent ? *message : *other;
      const LocalMessage& taken = message->is_sent ? *other : *message;
      return "Mismatch: " + named(key) + " has " + std::to_string(sent.bytes) + " bytes, and is received with " +
             std::to_string(taken.bytes) + ": both must have the same length";
    }
    other->matched = message->matched = true;
  }
  const LocalMessage& sent = message->is_sent ? *message : *other;
  const LocalMessage& taken = message->is_sent ? *other : *message;
  if (sent.bytes) std::memcpy(taken.data, sent.data, sent.bytes);
  {
    const std::lock_guard lock(local_mutex());
    other->done = message->done = true;
  }
  wake_local_waits();
  return {};
}

std::string LocalMessages::wait(const Key& key, const std::shared_ptr<LocalMessage>& message, double seconds,
                                bool* done) {
  const double limit = seconds < 0 ? operation_seconds() : seconds;
  const auto has_ended = [&] { return message->done; };
  std::unique_lock lock(local_mutex());
  Ended ended = wait_locally(lock, limit, has_ended);
  if (ended != Ended::done && message->matched && seconds < 0) {
    wait_for_end(lock, has_ended);
    ended = Ended::done;
  }
  *done = ended == Ended::done || (!message->matched && (ended == Ended::failed || seconds < 0));
  if (ended == Ended::done || !*done) return {};
  if (const auto found = posted_.find(key); found != posted_.end()) std::erase(found->second, message);
  if (ended == Ended::failed) return local_failure();
  return "Timeout: " + named(key) + " has waited " + std::to_string(static_cast<int>(limit)) + " s for its " +
         (message->is_sent ? "receiver" : "sender") +
         ": both devices must reach the collective; those that come later have SLIPSTREAM_TIMEOUT seconds";
}

}  // namespace slipstream::mpi
