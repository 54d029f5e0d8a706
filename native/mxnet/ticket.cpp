#include "mxnet/ticket.h"

#include <cstring>
#include <utility>

namespace slipstream::mxnet {

void Pack::fill() {
  size_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  memory.resize(bytes);
  std::byte* to = memory.data();
  for (const Part& part : parts) {
    if (part.bytes != 0) std::memcpy(to, part.from, part.bytes);
    to += part.bytes;
  }
}

void Pack::empty() const {
  const std::byte* from = memory.data();
  for (const Part& part : parts) {
    if (part.bytes != 0) std::memcpy(part.to, from, part.bytes);
    from += part.bytes;
  }
}

void Ticket::ended(size_t call, int32_t status, const char* text) {
  if (status == SLIPSTREAM_OK) packs[call].empty();
  std::unique_lock lock(mutex_);
  if (status != SLIPSTREAM_OK && outcome_.status == SLIPSTREAM_OK)
    outcome_ = {status, *text == '\0' ? "the operation has failed" : text};
  if (++ended_ == calls.size()) end(std::move(lock));
}

void Ticket::close(Outcome how) {
  std::unique_lock lock(mutex_);
  if (over_.load(std::memory_order_relaxed)) return;
  outcome_ = std::move(how);
  end(std::move(lock));
}

void Ticket::end(std::unique_lock<std::mutex> lock) {
  packs.clear();
  over_.store(true, std::memory_order_release);
  lock.unlock();
  told();
}

void Ticket::Of::done(void* user, int32_t status, const char* text) {
  const std::unique_ptr<Of> of(static_cast<Of*>(user));
  of->ticket->ended(of->call, status, text);
}

uint64_t digest_of(const std::string& form) {  // FNV-1a
  uint64_t digest = 0xcbf29ce484222325;
  for (const char c : form) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

}  // namespace slipstream::mxnet
