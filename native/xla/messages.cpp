#include "xla/messages.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "capi/table.h"

namespace slipstream::xla {

namespace {

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

// The engine's tags of all envelopes, and of what does not fit into them.
constexpr int32_t kEnvelopeTag = std::numeric_limits<int32_t>::min();
constexpr int32_t kPayloadTag = kEnvelopeTag + 1;
constexpr uint64_t kMostKept = uint64_t{1} << 30;  // bytes of messages that nobody has received yet

// What says which message it is, with a small one in it: the engine sends so many bytes without waiting for a receive.
struct Envelope {
  struct {
    int64_t tag;
    uint64_t bytes;
    int64_t dtype;
    int64_t unused;
  } head;
  std::array<std::byte, 4096 - sizeof(head)> small;
};
static_assert(sizeof(Envelope) == 4096);

struct Kept {
  int64_t tag;
  int64_t dtype;
  std::vector<std::byte> data;
};

// Of one rank of one group.
struct Peer {
  std::mutex sends, receives;
  std::deque<Kept> kept;  // come, and not received; `receives` guards both
  uint64_t kept_bytes = 0;
};

std::mutex peers_mutex;
std::map<std::pair<uint64_t, int64_t>, std::shared_ptr<Peer>> peers;

std::shared_ptr<Peer> peer_of(slipstream_group* group, int64_t rank) {
  const std::lock_guard lock(peers_mutex);
  auto& found = peers[{api().group_id(group), rank}];
  if (found == nullptr) found = std::make_shared<Peer>();
  return found;
}

slipstream_call call_of(int32_t collective, int64_t peer, int32_t tag, const void* src, void* dst, uint64_t bytes) {
  slipstream_call call;
  slipstream_call_init(&call, collective);
  call.root = static_cast<int32_t>(peer);
  call.tag = tag;
  call.src = src;
  call.dst = dst;
  call.count = bytes;
  call.dtype = SLIPSTREAM_U8;
  return call;
}

// As JAX calls them, by the table's numbers.
constexpr std::array<const char*, 17> kDtypes = {
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8",      "int16",     "int32",
    "int64",   "uint8",   "uint16",  "uint32",   "uint64",        "bool",        "complex64", "complex128"};

std::string described(uint64_t bytes, int64_t dtype) {
  if (dtype < 0 || dtype >= static_cast<int64_t>(kDtypes.size())) return std::to_string(bytes) + " bytes";
  const uint64_t each = api().dtype_bytes(static_cast<int32_t>(dtype));
  return std::to_string(bytes / each) + " elements of " + kDtypes[static_cast<size_t>(dtype)];
}

class Exchange {
 public:
  Exchange(slipstream_group* group, std::string& text) : group_(group), rank_(api().group_rank(group)), text_(text) {}

  // Begins to send. The envelope and the rest are one after the other also if other threads send to this rank.
  int32_t send(const Outgoing& out) {
    if (out.dest == kNobody) return SLIPSTREAM_OK;
    const auto peer = peer_of(group_, out.dest);
    if (out.dest == rank_) return keep_own(*peer, out);
    envelope_.head = {out.tag, out.bytes, out.dtype, 0};
    const bool small = out.bytes <= envelope_.small.size();
    if (small && out.bytes != 0) std::memcpy(envelope_.small.data(), out.data, out.bytes);
    const std::lock_guard lock(peer->sends);
    const auto envelope = call_of(SLIPSTREAM_SEND, out.dest, kEnvelopeTag, &envelope_, nullptr, sizeof envelope_);
    if (const int32_t status = begin(envelope, sent_[0]); status != SLIPSTREAM_OK || small) return status;
    return begin(call_of(SLIPSTREAM_SEND, out.dest, kPayloadTag, out.data, nullptr, out.bytes), sent_[1]);
  }

  int32_t receive(const Incoming& in) {
    if (in.source == kNobody) {
      if (in.bytes != 0) std::memset(in.data, 0, in.bytes);
      return received(in, kNobody, kAnyTag, 0);
    }
    const auto peer = peer_of(group_, in.source);
    const std::lock_guard lock(peer->receives);
    for (auto kept = peer->kept.begin(); kept != peer->kept.end(); ++kept)
      if (matches(in, kept->tag)) return take(in, *peer, kept);
    if (in.source == rank_) {
      text_ = "recv: this rank has sent itself no message with this tag, and would wait for ever";
      return SLIPSTREAM_INVALID;
    }
    for (;;) {
      const auto envelope = std::make_unique<Envelope>();
      if (const int32_t status =
              run(call_of(SLIPSTREAM_RECV, in.source, kEnvelopeTag, nullptr, envelope.get(), sizeof *envelope));
          status != SLIPSTREAM_OK)
        return status;
      if (matches(in, envelope->head.tag)) return take(in, *envelope);
      if (const int32_t status = keep(*peer, in.source, *envelope); status != SLIPSTREAM_OK) return status;
    }
  }

  // Ends the job.
  int32_t abort(std::string why) {
    text_ = std::move(why);
    api().abort(group_, text_.c_str());
    return SLIPSTREAM_MISMATCH;
  }

  // Waits until what is sent may be written again. Errors of the job end it.
  int32_t finish(int32_t status) {
    for (slipstream_work* work : sent_) {
      if (work == nullptr) continue;
      const int32_t ended = api().work_wait(work, -1.0);
      if (status == SLIPSTREAM_OK && ended != SLIPSTREAM_OK) status = told(ended);
      api().work_free(work);
    }
    return status;
  }

 private:
  int32_t told(int32_t status) {
    if (status != SLIPSTREAM_OK) text_ = api().last_error();
    return status;
  }
  int32_t run(const slipstream_call& call) { return told(api().run(group_, &call)); }
  int32_t begin(const slipstream_call& call, slipstream_work*& work) { return told(api().begin(group_, &call, &work)); }

  // Any tag is any of the program's: those of `scan` are negative.
  static bool matches(const Incoming& in, int64_t tag) { return in.tag == kAnyTag ? tag >= 0 : in.tag == tag; }

  static int32_t received(const Incoming& in, int64_t source, int64_t tag, uint64_t bytes) {
    if (in.status != nullptr) *in.status = {source, tag, static_cast<int64_t>(bytes)};
    return SLIPSTREAM_OK;
  }

  int32_t fits(const Incoming& in, int64_t tag, uint64_t bytes, int64_t dtype) {
    if (bytes == in.bytes && dtype == in.dtype) return SLIPSTREAM_OK;
    return abort("recv on rank " + std::to_string(rank_) + " wants " + described(in.bytes, in.dtype) + ", and rank " +
                 std::to_string(in.source) + " has sent " + described(bytes, dtype) + " with the tag " +
                 std::to_string(tag) + ": shapes and dtypes of a message must be the same on both ranks");
  }

  int32_t take(const Incoming& in, Peer& peer, std::deque<Kept>::iterator kept) {
    if (const int32_t status = fits(in, kept->tag, kept->data.size(), kept->dtype); status != SLIPSTREAM_OK)
      return status;
    if (in.bytes != 0) std::memcpy(in.data, kept->data.data(), in.bytes);
    const int64_t tag = kept->tag;
    peer.kept_bytes -= cost_of(kept->data.size());
    peer.kept.erase(kept);
    return received(in, in.source, tag, in.bytes);
  }

  int32_t take(const Incoming& in, const Envelope& envelope) {
    const auto& head = envelope.head;
    if (const int32_t status = fits(in, head.tag, head.bytes, head.dtype); status != SLIPSTREAM_OK) return status;
    if (const int32_t status = fetch(in.source, envelope, in.data); status != SLIPSTREAM_OK) return status;
    return received(in, in.source, head.tag, in.bytes);
  }

  int32_t fetch(int64_t source, const Envelope& envelope, void* data) {
    const uint64_t bytes = envelope.head.bytes;
    if (bytes > envelope.small.size()) return run(call_of(SLIPSTREAM_RECV, source, kPayloadTag, nullptr, data, bytes));
    if (bytes != 0) std::memcpy(data, envelope.small.data(), bytes);
    return SLIPSTREAM_OK;
  }

  int32_t keep(Peer& peer, int64_t source, const Envelope& envelope) {
    if (!has_room(peer, envelope.head.bytes)) return too_many(source);
    Kept kept{envelope.head.tag, envelope.head.dtype, std::vector<std::byte>(envelope.head.bytes)};
    if (const int32_t status = fetch(source, envelope, kept.data.data()); status != SLIPSTREAM_OK) return status;
    put(peer, std::move(kept));
    return SLIPSTREAM_OK;
  }

  static uint64_t cost_of(uint64_t bytes) { return bytes + sizeof(Kept); }
  static bool has_room(const Peer& peer, uint64_t bytes) {
    return bytes < kMostKept && cost_of(bytes) <= kMostKept - peer.kept_bytes;
  }
  static void put(Peer& peer, Kept kept) {
    const uint64_t cost = cost_of(kept.data.size());
    peer.kept.push_back(std::move(kept));
    peer.kept_bytes += cost;
  }
  int32_t too_many(int64_t source) {
    return abort("rank " + std::to_string(rank_) + " has more than 1 GiB of messages from rank " +
                 std::to_string(source) + " whose tags no recv has named: receive them in the order of the sends");
  }

  int32_t keep_own(Peer& peer, const Outgoing& out) {
    const auto* const data = static_cast<const std::byte*>(out.data);
    const std::lock_guard lock(peer.receives);
    if (!has_room(peer, out.bytes)) return too_many(rank_);
    put(peer, {out.tag, out.dtype, std::vector<std::byte>(data, data + out.bytes)});
    return SLIPSTREAM_OK;
  }

  slipstream_group* group_;
  int64_t rank_;
  std::string& text_;
  Envelope envelope_{};
  std::array<slipstream_work*, 2> sent_{};
};

}  // namespace

int32_t exchange(slipstream_group* group, const Outgoing* out, const Incoming* in, std::string& text) {
  Exchange both(group, text);
  int32_t status = SLIPSTREAM_OK;
  try {
    if (out != nullptr) status = both.send(*out);
    if (status == SLIPSTREAM_OK && in != nullptr) status = both.receive(*in);
  } catch (const std::exception& error) {  // what is sent must not outlive its memory
    status = both.abort(std::string("a message cannot be kept: ") + error.what());
  }
  return both.finish(status);
}

void forget_messages() {
  const std::lock_guard lock(peers_mutex);
  peers.clear();
}

}  // namespace slipstream::xla
