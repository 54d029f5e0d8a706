#include "mxnet/operation.h"

#include <algorithm>
#include <utility>

#include "capi/table.h"
#include "lines/plan.h"

namespace slipstream::mxnet {

namespace {

constexpr Device kCpu{1, 0};
constexpr int kDense = 0;  // how an array is stored

const slipstream_api& table() { return *capi::table(SLIPSTREAM_API_VERSION); }

bool is_cpu(int device) { return device == 1 || device == 3 || device == 5; }  // also pinned, and shared

// MXNet's numbers of types; -1: one that is not pushed.
int32_t dtype_of(int of_mxnet) {
  constexpr int32_t kKnown[] = {SLIPSTREAM_F32, SLIPSTREAM_F64, SLIPSTREAM_F16, SLIPSTREAM_U8,
                                SLIPSTREAM_I32, SLIPSTREAM_I8,  SLIPSTREAM_I64, SLIPSTREAM_BOOL};
  return of_mxnet >= 0 && of_mxnet < 8 ? kKnown[of_mxnet] : -1;
}

// As Python calls them: a text of MXNet's that begins so becomes the exception (slipstream.faces.mxnet.failures).
const char* name_of(int32_t status) {
  constexpr const char* kNames[] = {"", "PeerLost: ", "Mismatch: ", "Timeout: ", "Refused: ", "Aborted: "};
  return status > SLIPSTREAM_OK && status <= SLIPSTREAM_ABORTED ? kNames[status] : "SlipstreamError: ";
}

Chunk* chunk_of(NDArray* array) { return *reinterpret_cast<Chunk**>(array); }

}  // namespace

std::shared_ptr<Operation> Operation::make(const Api& mx, const std::shared_ptr<PushLine>& line, const Pushed& pushed) {
  auto made = std::make_shared<Operation>(mx, line, pushed);
  for (size_t i = 0; i < pushed.inputs.size(); ++i)
    if (!made->take(pushed.inputs[i], pushed.results[i])) return nullptr;
  return made;
}

Operation::Operation(const Api& mx, std::shared_ptr<PushLine> line, const Pushed& pushed)
    : mx_(mx), line_(std::move(line)), asked_(pushed.asked) {
  what = pushed.what;
  asks = pushed.asks;
  kind = asked_.collective == SLIPSTREAM_ALL_REDUCE ? "allreduce" : "broadcast";
  in_place_ = pushed.inputs == pushed.results;
  count_flight(1);
}

Operation::~Operation() {
  for (NDArray* const one : arrays_) mx_.free(one);
  count_flight(-1);
}

bool Operation::take(uintptr_t input, uintptr_t result) {
  auto* const array = reinterpret_cast<NDArray*>(input);
  int storage = -1, device = 0, number = 0, type = -1, dims = -1;
  const int* sizes = nullptr;
  if (mx_.storage(array, &storage) != 0 || storage != kDense) return false;
  if (mx_.device(array, &device, &number) != 0 || !is_cpu(device)) return false;
  if (mx_.dtype(array, &type) != 0 || dtype_of(type) < 0) return false;
  if (mx_.shape(array, &dims, &sizes) != 0 || dims <= 0) return false;
  lines::Operand one;
  one.dtype = dtype_of(type);
  if (asked_.collective == SLIPSTREAM_ALL_REDUCE && table().reduces(one.dtype, asked_.op) == 0) return false;
  one.elements = 1;
  for (int i = 0; i < dims; ++i) {
    if (sizes[i] <= 0) return false;  // which may stand for one that MXNet does not know yet
    one.dims.push_back(sizes[i]);
    one.elements *= static_cast<uint64_t>(sizes[i]);
  }
  one.bytes = one.elements * table().dtype_bytes(one.dtype);
  operands_.push_back(std::move(one));
  return copy_of(input) != nullptr && (in_place_ || copy_of(result) != nullptr);
}

// Null where it has no memory, or shares that with another array of the operation.
NDArray* Operation::copy_of(uintptr_t array) {
  NDArray* copy = nullptr;
  if (mx_.shallow_copy(reinterpret_cast<NDArray*>(array), &copy) != 0) return nullptr;
  const Chunk* const chunk = chunk_of(copy);
  const bool usable = chunk != nullptr && !known(chunk);
  arrays_.push_back(copy);
  return usable ? copy : nullptr;
}

bool Operation::known(const Chunk* chunk) const {
  return std::any_of(arrays_.begin(), arrays_.end(), [&](NDArray* one) { return chunk_of(one) == chunk; });
}

// All arrays are written, as the engine has it: the layout of what is read only may have to be changed, too.
void Operation::push() {
  const auto self = std::static_pointer_cast<Operation>(shared_from_this());
  auto kept = std::make_unique<std::shared_ptr<Operation>>(self);
  const int status = mx_.push(run, kept.get(), forget, &kCpu, nullptr, 0, arrays_.data(),
                              static_cast<int>(arrays_.size()), &kPrioritized, 0, "slipstream", false);
  if (status == 0)
    kept.release();
  else
    left_out(mx_.last_error());
}

void Operation::run(void*, void* done, void* param) {
  (*static_cast<std::shared_ptr<Operation>*>(param))->arrived(*static_cast<const Done*>(done));
}

void Operation::forget(void* param) {
  const std::unique_ptr<std::shared_ptr<Operation>> kept(static_cast<std::shared_ptr<Operation>*>(param));
  Operation& self = **kept;
  if (!self.arrived_)
    self.left_out(
        "an operation of MXNet or slipstream that makes one of its arrays has failed; MXNet raises that error where "
        "the program reads the array");
}

void Operation::arrived(const Done& done) {
  done_ = done;
  arrived_ = true;
  const auto self = shared_from_this();  // its end may come amid this
  try {
    describe(asked_, operands_);
    find_memory();
    lines::plan(asked_, operands_, *this);
  } catch (const std::exception& error) {
    given_up = "could not run " + (what.empty() ? kind : what) + " (" + error.what() + ")";
  }
  line_->ready(*this);
}

// The engine does not call run().
void Operation::left_out(const char* why) {
  given_up = "could not run " + (what.empty() ? "an " + kind : what) + ", which the other ranks wait for: " + why;
  line_->ready(*this);
}

void Operation::find_memory() {
  for (size_t i = 0; i < operands_.size(); ++i) {
    lines::Operand& one = operands_[i];
    one.to = memory_of(arrays_[in_place_ ? i : 2 * i + 1]);
    one.from = in_place_ ? one.to : memory_of(arrays_[2 * i]);
  }
}

void* Operation::memory_of(NDArray* array) const {
  Chunk* const chunk = chunk_of(array);
  if (mx_.has_own_layout != nullptr && mx_.has_own_layout(chunk)) mx_.to_common_layout(chunk);
  void* data = nullptr;
  if (mx_.data(array, &data) != 0) throw Failure(Code::internal, mx_.last_error());
  return data;
}

void Operation::told() {
  if (!arrived_) return;
  const Outcome& how = outcome();
  if (how.status == SLIPSTREAM_OK) {
    done_.end(done_.engine, done_.operation, nullptr);
    return;
  }
  const std::string text = name_of(how.status) + how.text;
  count_failure(text);
  const LaidOut error(text);
  done_.end(done_.engine, done_.operation, error.error());
}

}  // namespace slipstream::mxnet
