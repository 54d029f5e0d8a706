#include "xla/handler.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "capi/slipstream.h"
#include "capi/table.h"
#include "xla/messages.h"

namespace slipstream::xla {

namespace {

constexpr uint64_t kInline = 64 << 10;  // bytes: less is done before a thread has been told of more
constexpr int kSigned64 = 5;            // XLA's number for int64
constexpr int kToken = 17;              // and for what has no data

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

Error* error_of(const Api& xla, int code, const std::string& text) {
  ErrorCreate args{sizeof(ErrorCreate), nullptr, text.c_str(), code};
  return xla.error_create(&args);
}

int code_of(int32_t status) {
  switch (status) {
    case SLIPSTREAM_INVALID:
      return kInvalidArgument;
    case SLIPSTREAM_TIMEOUT_ERROR:
      return kDeadlineExceeded;
    case SLIPSTREAM_INTERNAL:
      return kInternal;
    default:
      return kAborted;
  }
}

// XLA's numbers of types; -1: one that the engine has not.
int32_t dtype_of(int xla) {
  constexpr int8_t kTypes[] = {-1,
                               SLIPSTREAM_BOOL,
                               SLIPSTREAM_I8,
                               SLIPSTREAM_I16,
                               SLIPSTREAM_I32,
                               SLIPSTREAM_I64,
                               SLIPSTREAM_U8,
                               SLIPSTREAM_U16,
                               SLIPSTREAM_U32,
                               SLIPSTREAM_U64,
                               SLIPSTREAM_F16,
                               SLIPSTREAM_F32,
                               SLIPSTREAM_F64,
                               -1,
                               -1,
                               SLIPSTREAM_C64,
                               SLIPSTREAM_BF16,
                               -1,
                               SLIPSTREAM_C128,
                               SLIPSTREAM_F8E5M2,
                               SLIPSTREAM_F8E4M3};
  return xla < 0 || xla >= static_cast<int>(std::size(kTypes)) ? -1 : kTypes[xla];
}

uint64_t elements_of(const Buffer& buffer) {
  uint64_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= static_cast<uint64_t>(buffer.dims[i]);
  return count;
}

const Buffer& buffer_at(const Buffers& buffers, int64_t i) { return *static_cast<const Buffer*>(buffers.values[i]); }

// A reference, given back at the end.
class GroupOf {
 public:
  explicit GroupOf(int64_t id) : status_(api().group_by_id(static_cast<uint64_t>(id), &group_)) {}
  ~GroupOf() { api().group_release(group_); }
  GroupOf(const GroupOf&) = delete;
  int32_t status() const { return status_; }
  slipstream_group* get() const { return group_; }

 private:
  slipstream_group* group_ = nullptr;
  int32_t status_;
};

// Operations that one future stands for. It deletes itself with the last of them.
class Pending {
 public:
  Pending(const Api& xla, size_t operations) : xla_(xla), left_(operations) {
    FutureCreate args{sizeof(FutureCreate), nullptr, nullptr};
    problem_ = xla.future_create(&args);
    future_ = args.future;
  }
  Error* problem() const { return problem_; }
  Future* future() const { return future_; }

  static void done(void* user, int32_t status, const char* message) {
    static_cast<Pending*>(user)->ended(status, message);
  }
  void ended(int32_t status, const char* message) {
    if (status != SLIPSTREAM_OK) {
      const std::lock_guard lock(mutex_);
      if (status_ == SLIPSTREAM_OK) {
        status_ = status;
        text_ = message;
      }
    }
    if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (status_ == SLIPSTREAM_OK) {
      FutureAvailable args{sizeof(FutureAvailable), nullptr, future_};
      xla_.future_available(&args);
    } else {
      FutureError args{sizeof(FutureError), nullptr, future_, error_of(xla_, code_of(status_), text_)};
      xla_.future_error(&args);
    }
    delete this;
  }

 private:
  const Api& xla_;
  std::atomic<size_t> left_;
  Future* future_ = nullptr;
  Error* problem_ = nullptr;
  std::mutex mutex_;
  int32_t status_ = SLIPSTREAM_OK;  // the first that is no success
  std::string text_;
};

struct Calls {
  std::vector<slipstream_call> calls;
  std::deque<std::string> names;  // of the calls
  uint64_t bytes = 0;
  bool waits = false;  // for ranks that need not come soon
};

slipstream_call plain(const int64_t* fields, int32_t collective) {
  slipstream_call call;
  slipstream_call_init(&call, collective);
  call.op = static_cast<int32_t>(fields[kOp]);
  call.root = static_cast<int32_t>(fields[kRoot]);
  call.tag = static_cast<int32_t>(fields[kTag]);
  call.wire = static_cast<int32_t>(fields[kWire]);
  call.prescale = std::bit_cast<double>(fields[kPrescale]);
  call.postscale = std::bit_cast<double>(fields[kPostscale]);
  return call;
}

// Whether the arrays have the lengths that the operation has in a group of so many ranks: the function may have been
// compiled in a job of another size.
bool fit(int32_t collective, uint64_t in, uint64_t out, uint64_t ranks) {
  switch (collective) {
    case SLIPSTREAM_REDUCE_SCATTER:
    case SLIPSTREAM_SCATTER:
      return in == out * ranks;
    case SLIPSTREAM_ALL_GATHER:
    case SLIPSTREAM_GATHER:
      return out == in * ranks;
    case SLIPSTREAM_ALL_TO_ALL:
      return in == out && in % ranks == 0;
    default:
      return in == out;
  }
}

// What ranks compare of an array's shape, and errors call it by; empty for one of no or one dimension.
std::string shape_of(const Buffer& one) {
  std::string text;
  for (int64_t i = 0; one.rank > 1 && i < one.rank; ++i)
    text += (i == 0 ? "shape " : "x") + std::to_string(one.dims[i]);
  return text;
}

// Appends the call on these buffers; either may be null. Returns what is wrong with them, or null.
const char* append(Calls& to, slipstream_call call, const Buffer* in, const Buffer* out, uint64_t ranks) {
  const Buffer& one = in != nullptr ? *in : *out;
  call.dtype = dtype_of(one.dtype);
  if (call.dtype < 0) return "slipstream cannot communicate arrays of this dtype";
  if (in != nullptr && out != nullptr &&
      (in->dtype != out->dtype || !fit(call.collective, elements_of(*in), elements_of(*out), ranks)))
    return "this function was compiled for a group of another size: compile it anew (jax.clear_caches())";
  call.src = in != nullptr ? in->data : nullptr;
  call.dst = out != nullptr ? out->data : nullptr;
  const bool parts = call.collective == SLIPSTREAM_REDUCE_SCATTER || call.collective == SLIPSTREAM_SCATTER;
  call.count = elements_of(parts ? *out : one);
  if (call.collective == SLIPSTREAM_ALL_TO_ALL) call.count /= ranks;
  to.bytes += call.count * api().dtype_bytes(call.dtype);
  to.waits = to.waits || call.collective == SLIPSTREAM_SEND || call.collective == SLIPSTREAM_RECV;
  to.calls.push_back(call);
  return nullptr;
}

const char* read(const CallFrame& frame, const int64_t* fields, uint64_t ranks, Calls& found) {
  const int64_t in = fields[kArrays], out = frame.results.size - 1;
  const auto collective = static_cast<int32_t>(fields[kCollective]);
  if (collective == SLIPSTREAM_BARRIER) {
    found.calls.push_back(plain(fields, collective));
    return nullptr;
  }
  const bool one_sided = collective == SLIPSTREAM_SEND || collective == SLIPSTREAM_RECV ||
                         collective == SLIPSTREAM_GATHER || collective == SLIPSTREAM_SCATTER;
  if (in != out && !one_sided) return "an operation has not as many results as arrays";
  for (int64_t i = 0; i < std::max(in, out); ++i) {
    const Buffer* const src = i < in ? &buffer_at(frame.args, i) : nullptr;
    const Buffer* const dst = i < out ? &buffer_at(frame.results, i) : nullptr;
    const char* problem = nullptr;
    if (fields[kCollective] != kSendRecv) {
      slipstream_call call = plain(fields, collective);
      if (fields[kShapes] != 0) {
        found.names.push_back(shape_of(src != nullptr ? *src : *dst));
        if (!found.names.back().empty()) call.name = found.names.back().c_str();
      }
      problem = append(found, call, src, dst, ranks);
    } else {
      slipstream_call receives = plain(fields, SLIPSTREAM_RECV);
      receives.root = static_cast<int32_t>(fields[kSource]);
      problem = append(found, plain(fields, SLIPSTREAM_SEND), src, nullptr, ranks);
      if (problem == nullptr) problem = append(found, receives, nullptr, dst, ranks);
    }
    if (problem != nullptr) return problem;
  }
  return nullptr;
}

Error* run(const CallFrame& frame, slipstream_group* group, const Calls& calls) {
  for (const slipstream_call& call : calls.calls)
    if (const int32_t status = api().run(group, &call); status != SLIPSTREAM_OK)
      return error_of(*frame.api, code_of(status), api().last_error());
  return nullptr;
}

Error* submit(CallFrame& frame, slipstream_group* group, const Calls& calls) {
  auto* const pending = new Pending(*frame.api, calls.calls.size());
  if (Error* const problem = pending->problem()) {
    delete pending;
    return problem;
  }
  frame.future = pending->future();
  for (const slipstream_call& call : calls.calls)
    if (const int32_t status = api().submit(group, &call, Pending::done, pending); status != SLIPSTREAM_OK)
      pending->ended(status, std::string(api().last_error()).c_str());
  return nullptr;
}

// One message each way, at most.
Error* exchanged(const CallFrame& frame, const int64_t* fields, slipstream_group* group) {
  Outgoing out;
  Incoming in;
  if (fields[kArrays] > 1 || frame.results.size > 2)
    return error_of(*frame.api, kInvalidArgument, "an exchange has one array each way");
  const bool sends = fields[kArrays] == 1, receives = frame.results.size == 2;
  const auto bytes_of = [](const Buffer& one) { return elements_of(one) * api().dtype_bytes(dtype_of(one.dtype)); };
  if (sends) {
    const Buffer& src = buffer_at(frame.args, 0);
    out = {fields[kRoot], fields[kTag], src.data, bytes_of(src), dtype_of(src.dtype)};
  }
  if (receives) {
    const Buffer& dst = buffer_at(frame.results, 0);
    auto* const status = reinterpret_cast<Arrived*>(static_cast<uintptr_t>(fields[kStatus]));
    in = {fields[kSource], fields[kRecvTag], dst.data, bytes_of(dst), dtype_of(dst.dtype), status};
  }
  if (out.dtype < 0 || in.dtype < 0)
    return error_of(*frame.api, kInvalidArgument, "slipstream cannot communicate arrays of this dtype");
  std::string text;
  const int32_t status = exchange(group, sends ? &out : nullptr, receives ? &in : nullptr, text);
  return status == SLIPSTREAM_OK ? nullptr : error_of(*frame.api, code_of(status), text);
}

Error* executed(CallFrame& frame) {
  const Attributes& attributes = frame.attributes;
  if (attributes.size != 1 || attributes.types[0] != kArray || frame.results.size < 1)
    return error_of(*frame.api, kInvalidArgument, "this is no call of slipstream");
  const auto& array = *static_cast<const Array*>(attributes.values[0]);
  if (array.dtype != kSigned64 || array.size != kFields)
    return error_of(*frame.api, kInvalidArgument, "slipstream and its native part are of different releases");
  const auto* const fields = static_cast<const int64_t*>(array.data);
  if (fields[kArrays] < 0 || fields[kArrays] > frame.args.size)
    return error_of(*frame.api, kInvalidArgument, "an operation has more arrays than arguments");
  const GroupOf group(fields[kGroup]);
  if (group.status() != SLIPSTREAM_OK) return error_of(*frame.api, code_of(group.status()), api().last_error());
  if (const Buffer& after = buffer_at(frame.results, frame.results.size - 1); after.dtype != kToken)
    *static_cast<std::byte*>(after.data) = std::byte{0};
  if (fields[kCollective] == kExchange) return exchanged(frame, fields, group.get());
  Calls calls;
  const auto ranks = static_cast<uint64_t>(api().group_size(group.get()));
  if (const char* const problem = read(frame, fields, ranks, calls); problem != nullptr)
    return error_of(*frame.api, kInvalidArgument, problem);
  const bool at_once = !calls.waits && (calls.bytes <= kInline || calls.calls.empty());
  return at_once ? run(frame, group.get(), calls) : submit(frame, group.get(), calls);
}

}  // namespace

Error* call(CallFrame* frame) {
  if (Extension* const extension = frame->extension; extension != nullptr && extension->type == kMetadata) {
    Metadata& metadata = *reinterpret_cast<MetadataExtension*>(extension)->metadata;
    metadata.version.major = 0;
    metadata.version.minor = 1;
    metadata.traits = 0;
    return nullptr;
  }
  if (frame->stage != kExecute) return nullptr;
  try {
    return executed(*frame);
  } catch (const std::exception& error) {
    return error_of(*frame->api, kInternal, error.what());
  }
}

}  // namespace slipstream::xla
