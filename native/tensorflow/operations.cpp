#include "tensorflow/operations.h"

#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "lines/form.h"
#include "lines/plan.h"
#include "tensorflow/cancellation.h"
#include "tensorflow/plan.h"
#include "tensorflow/waiting.h"

namespace slipstream::tensorflow {

namespace {

constexpr const char* kStart = "SlipstreamStart";
constexpr const char* kIn = " in ";  // of a place: "operation 1 in cond_true in train_step"

Api tf;

// TensorFlow's numbers of types; -1: one that the engine has not.
int32_t dtype_of(int of_tensorflow) {
  switch (of_tensorflow) {
    case 1:
      return SLIPSTREAM_F32;
    case 2:
      return SLIPSTREAM_F64;
    case 3:
      return SLIPSTREAM_I32;
    case 4:
      return SLIPSTREAM_U8;
    case 5:
      return SLIPSTREAM_I16;
    case 6:
      return SLIPSTREAM_I8;
    case 8:
      return SLIPSTREAM_C64;
    case 9:
      return SLIPSTREAM_I64;
    case 10:
      return SLIPSTREAM_BOOL;
    case 14:
      return SLIPSTREAM_BF16;
    case 17:
      return SLIPSTREAM_U16;
    case 18:
      return SLIPSTREAM_C128;
    case 19:
      return SLIPSTREAM_F16;
    case 22:
      return SLIPSTREAM_U32;
    case 23:
      return SLIPSTREAM_U64;
    default:
      return -1;
  }
}

// A node that starts operations.
struct Start {
  Fields fields{};
  std::string line, what;  // what errors call it
  std::string place;       // in the program
};

std::string text_of(Construction* construction, const char* attribute, const Outcome& outcome) {
  int32_t count = 0, bytes = 0;
  if (outcome.ok()) tf.attribute_size(construction, attribute, &count, &bytes, outcome.get());
  std::string text;
  if (!outcome.ok() || bytes <= 0) return text;
  text.resize(static_cast<size_t>(bytes));
  tf.attribute_text(construction, attribute, text.data(), text.size(), outcome.get());
  return text;
}

void* create_start(Construction* construction) {
  auto node = std::make_unique<Start>();
  const Outcome outcome(tf);
  tf.attribute_numbers(construction, "call", node->fields.data(), kFields, outcome.get());
  node->line = text_of(construction, "line", outcome);
  node->what = text_of(construction, "what", outcome);
  node->place = text_of(construction, "place", outcome);
  if (!outcome.ok()) tf.construction_failed(construction, outcome.get());
  return node.release();
}

void destroy_start(void* node) { delete static_cast<Start*>(node); }

// Takes the input of this number, and makes the output for it: in the same memory, if nobody else uses that. Adds both
// to what the ticket holds. False: the outcome says why not.
bool take(Context* context, int index, Ticket& ticket, lines::Operand& found, const Outcome& outcome) {
  Tensor* input = nullptr;
  tf.input(context, index, &input, outcome.get());
  if (!outcome.ok()) return false;
  found.dtype = dtype_of(tf.dtype(input));
  found.bytes = tf.bytes(input);
  found.elements = static_cast<uint64_t>(tf.elements(input));
  std::vector<int64_t>& dims = found.dims;
  dims.resize(static_cast<size_t>(tf.rank(input)));
  for (size_t i = 0; i < dims.size(); ++i) dims[i] = tf.dim(input, static_cast<int>(i));
  tf.delete_tensor(input);  // else there are two users of its memory
  if (found.dtype < 0) {
    outcome.as(kInvalidArgument, "slipstream cannot communicate tensors of this dtype");
    return false;
  }

  int forwarded = -1;
  Tensor* const output = tf.forward_or_allocate(context, &index, 1, index + 1, dims.data(),
                                                static_cast<int>(dims.size()), &forwarded, outcome.get());
  if (!outcome.ok()) return false;
  ticket.held.push_back(output);
  found.to = tf.data(output);
  found.from = found.to;
  if (forwarded == index) return true;
  tf.input(context, index, &input, outcome.get());
  if (!outcome.ok()) return false;
  ticket.held.push_back(input);
  found.from = tf.data(input);
  return true;
}

void start(const Start& node, Context* context, const Outcome& outcome) {
  const auto ticket = std::make_shared<Ticket>(&tf);
  ticket->what = node.what;
  ticket->step = tf.step(context);
  std::vector<lines::Operand> operands(static_cast<size_t>(tf.inputs(context)));
  for (size_t i = 0; i < operands.size(); ++i)
    if (!take(context, static_cast<int>(i), *ticket, operands[i], outcome)) {
      tf.failed(context, outcome.get());
      return;
    }
  const lines::Asked asked = asked_by(node.fields);
  lines::describe(asked, operands, *ticket);
  if (!node.place.empty()) {
    ticket->title += " (" + node.place + ")";
    ticket->label = lines::label_of(*ticket);
    const size_t in = node.place.rfind(kIn);
    if (in != std::string::npos) ticket->function = lines::digest_of(node.place.substr(in));
  }
  lines::plan(asked, operands, *ticket);
  Tensor* const number = number_of(tf, ticket);
  tf.set_output(context, 0, number, outcome.get());
  tf.delete_tensor(number);
  line_of(node.line).start(ticket);
  if (ticket->has_failed()) tf.failed(context, Outcome(tf).as(ticket->outcome().code, ticket->outcome().text.c_str()));
}

void compute_start(void* node, Context* context) {
  const Outcome outcome(tf);
  try {
    start(*static_cast<Start*>(node), context, outcome);
  } catch (const std::exception& error) {
    tf.failed(context, Outcome(tf).as(kUnknown, error.what()));
  }
}

void infer(ShapeContext* context, Status* status) {
  ShapeHandle* const scalar = tf.scalar_shape(context);
  tf.output_shape(context, 0, scalar, status);
  tf.delete_shape(scalar);
  ShapeHandle* const shape = tf.new_shape();
  const auto inputs = static_cast<int>(tf.shape_inputs(context));
  for (int i = 0; i < inputs && tf.code_of(status) == 0; ++i) {
    tf.input_shape(context, i, shape, status);
    if (tf.code_of(status) == 0) tf.output_shape(context, i + 1, shape, status);
  }
  tf.delete_shape(shape);
}

void add_start(const Outcome& outcome) {
  OpBuilder* const op = tf.new_op(kStart);
  for (const char* text :
       {"T: list(type) >= 1", "call: list(int)", "line: string", "what: string", "place: string = ''"})
    tf.add_attribute(op, text);
  tf.add_input(op, "inputs: T");
  tf.add_output(op, "ticket: int64");
  tf.add_output(op, "results: T");
  tf.set_stateful(op, true);
  tf.set_shapes(op, infer);
  tf.register_op(op, outcome.get());
  if (!outcome.ok()) return;
  tf.register_kernel(kStart, tf.new_kernel(kStart, "CPU", create_start, compute_start, destroy_start), outcome.get());
}

}  // namespace

std::string add_operations(const char* library, Opener open) {
  std::string problem = look_up(library, tf);
  if (!problem.empty()) return problem;
  set_opener(open);
  const Outcome outcome(tf);
  add_start(outcome);
  if (outcome.ok()) add_waiting(tf, outcome);
  return outcome.ok() ? "" : outcome.text();
}

std::string watch_steps(const char* eager_library, std::string config, int rank) {
  return prepare_cancellation(tf, eager_library, std::move(config), rank);
}

}  // namespace slipstream::tensorflow
