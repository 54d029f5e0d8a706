#include "tensorflow/waiting.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "tensorflow/cancellation.h"
#include "tensorflow/operations.h"

namespace slipstream::tensorflow {

namespace {

constexpr const char *kOpen = "SlipstreamOpen", *kWait = "SlipstreamWait";
constexpr size_t kAligned = 128;  // bytes; TensorFlow copies what is aligned to less than 64

const Api* the_api = nullptr;

const Api& api() { return *the_api; }

void* create_nothing(Construction*) { return nullptr; }
void destroy_nothing(void*) {}

void fail(Context* context, int code, const char* text) {
  const Outcome outcome(api());
  api().failed(context, outcome.as(code, text));
}

// A node that waits: for the end of its ticket or of its step, whichever comes first.
class Waiter : public std::enable_shared_from_this<Waiter> {
 public:
  Waiter(Context* context, Done done) : context_(context), done_(std::move(done)) {}
  Waiter(const Waiter&) = delete;

  void wait_for(const std::shared_ptr<Ticket>& ticket) {
    if (!watch_.begin(context_, [self = shared_from_this()] { self->cancelled(); })) {
      cancelled();
      return;
    }
    if (ticket->when_done([self = shared_from_this(), of = ticket.get()] { self->over(*of); })) return;
    end([this] { fail(context_, kInvalidArgument, "two SlipstreamWait wait for one SlipstreamStart"); });
  }

 private:
  void over(const Ticket& ticket) {
    end([&] { pass_on(ticket); });
  }

  void cancelled() {
    if (taken_.exchange(true)) return;
    fail(context_, kCancelled, "the step was cancelled while it waited for other ranks");
    std::exchange(done_, nullptr)();
  }

  // With the step's watch ended, as the step may be gone once done() is called.
  template <class F>
  void end(F&& tell) {
    if (taken_.exchange(true)) return;
    watch_.end();
    tell();
    std::exchange(done_, nullptr)();
  }

  // The results, or the error.
  void pass_on(const Ticket& ticket) {
    if (ticket.outcome().code != kOk) {
      fail(context_, ticket.outcome().code, ticket.outcome().text.c_str());
      return;
    }
    const Api& tf = api();
    const Outcome outcome(tf);
    for (int i = 1; i < tf.inputs(context_) && outcome.ok(); ++i) {
      Tensor* result = nullptr;
      tf.input(context_, i, &result, outcome.get());
      if (!outcome.ok()) break;
      tf.set_output(context_, i - 1, result, outcome.get());
      tf.delete_tensor(result);
    }
    if (!outcome.ok()) tf.failed(context_, outcome.get());
  }

  Context* const context_;
  Done done_;
  StepWatch watch_;
  std::atomic<bool> taken_{false};  // by whoever ends it
};

std::shared_ptr<Ticket> awaited_by(Context* context) {
  const Api& tf = api();
  const Outcome outcome(tf);
  Tensor* number = nullptr;
  tf.input(context, 0, &number, outcome.get());
  if (!outcome.ok()) return nullptr;
  std::shared_ptr<Ticket> found;
  if (tf.dtype(number) == kInt64 && tf.bytes(number) == sizeof(int64_t))
    found = ticket_of(*static_cast<const int64_t*>(tf.data(number)));
  tf.delete_tensor(number);
  return found;
}

void compute_wait(void*, Context* context, Done* given) {
  const Done done = *given;
  const std::shared_ptr<Ticket> ticket = awaited_by(context);
  if (ticket == nullptr) {
    fail(context, kInvalidArgument,
         "SlipstreamWait waits for nothing that SlipstreamStart has started. tf.vectorized_map, "
         "tf.GradientTape.jacobian "
         "and batch_jacobian cannot have operations of slipstream in them: call them outside, or use tf.map_fn and "
         "jacobian(experimental_use_pfor=False)");
    done();
    return;
  }
  std::make_shared<Waiter>(context, done)->wait_for(ticket);
}

void compute_open(void*, Context* context) {
  const Api& tf = api();
  const Outcome outcome(tf);
  try {
    Tensor* const number = number_of(tf, std::make_shared<Ticket>(&tf));
    tf.set_output(context, 0, number, outcome.get());
    tf.delete_tensor(number);
    if (!outcome.ok()) tf.failed(context, outcome.get());
  } catch (const std::exception& error) {
    fail(context, kUnknown, error.what());
  }
}

void infer_wait(ShapeContext* context, Status* status) {
  const Api& tf = api();
  ShapeHandle* const shape = tf.new_shape();
  const auto inputs = static_cast<int>(tf.shape_inputs(context));
  for (int i = 1; i < inputs && tf.code_of(status) == 0; ++i) {
    tf.input_shape(context, i, shape, status);
    if (tf.code_of(status) == 0) tf.output_shape(context, i - 1, shape, status);
  }
  tf.delete_shape(shape);
}

void infer_open(ShapeContext* context, Status* status) {
  ShapeHandle* const scalar = api().scalar_shape(context);
  api().output_shape(context, 0, scalar, status);
  api().delete_shape(scalar);
}

void add_wait(const Api& tf, const Outcome& outcome) {
  OpBuilder* const op = tf.new_op(kWait);
  tf.add_attribute(op, "T: list(type) >= 1");
  tf.add_input(op, "ticket: int64");
  tf.add_input(op, "results: T");
  tf.add_output(op, "outputs: T");
  tf.set_stateful(op, true);  // else TensorFlow leaves out those whose results nobody uses, with their errors
  tf.set_shapes(op, infer_wait);
  tf.register_op(op, outcome.get());
  if (!outcome.ok()) return;
  tf.register_kernel(kWait, tf.new_async_kernel(kWait, "CPU", create_nothing, compute_wait, destroy_nothing),
                     outcome.get());
}

void add_open(const Api& tf, const Outcome& outcome) {
  OpBuilder* const op = tf.new_op(kOpen);
  tf.add_output(op, "ticket: int64");
  tf.set_stateful(op, true);
  tf.set_shapes(op, infer_open);
  tf.register_op(op, outcome.get());
  if (!outcome.ok()) return;
  tf.register_kernel(kOpen, tf.new_kernel(kOpen, "CPU", create_nothing, compute_open, destroy_nothing), outcome.get());
}

void free_number(void* data, size_t, void* user) {
  forget_ticket(static_cast<int64_t>(reinterpret_cast<intptr_t>(user)));
  std::free(data);
}

}  // namespace

Tensor* number_of(const Api& tf, std::shared_ptr<Ticket> ticket) {
  auto* const data = static_cast<int64_t*>(std::aligned_alloc(kAligned, kAligned));
  if (data == nullptr) throw std::bad_alloc();
  *data = give(std::move(ticket));
  return tf.new_tensor(kInt64, nullptr, 0, data, sizeof *data, free_number, reinterpret_cast<void*>(*data));
}

void add_waiting(const Api& tf, const Outcome& outcome) {
  the_api = &tf;
  add_wait(tf, outcome);
  if (outcome.ok()) add_open(tf, outcome);
}

bool end_ticket(int64_t number, End end) {
  const std::shared_ptr<Ticket> ticket = ticket_of(number);
  if (ticket == nullptr) return false;
  ticket->close(std::move(end));
  return true;
}

bool is_open(int64_t number) { return ticket_of(number) != nullptr; }

}  // namespace slipstream::tensorflow
