#include "mxnet/plan.h"

#include <bit>
#include <map>
#include <string>
#include <utility>

namespace slipstream::mxnet {

namespace {

constexpr size_t kMostPacked = 128 << 10;  // bytes of a tensor that travels with others
constexpr size_t kLeastWired = 64 << 10;   // slipstream.comm.collectives.wires has the same
constexpr size_t kMostLabel = 160;         // letters

const char* name_of(int32_t dtype) {
  constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16",  "float8_e4m3fn", "float8_e5m2",
                                    "int8",    "int16",   "int32",   "int64",     "uint8",         "uint16",
                                    "uint32",  "uint64",  "bool",    "complex64", "complex128"};
  return kNames[dtype];
}

const char* name_of_op(int32_t op) {
  constexpr const char* kNames[] = {"sum", "product", "min", "max", "average"};
  return op >= 0 && op < 5 ? kNames[op] : "?";
}

// A factor as numbers of this type are multiplied by it: floating-point ones below float64 by a float32.
double factor_for(int32_t dtype, double factor) {
  const bool narrow =
      dtype == SLIPSTREAM_F32 || dtype == SLIPSTREAM_F16 || dtype == SLIPSTREAM_BF16 || dtype == SLIPSTREAM_C64;
  if (!narrow) return factor;
  const volatile float rounded = static_cast<float>(factor);  // GCC 12 leaves out the rounding of two neighbours
  return static_cast<double>(rounded);
}

void append(std::string& form, int64_t number) { form.append(reinterpret_cast<const char*>(&number), sizeof number); }

void describe_one(const Operand& one, Ticket& ticket) {
  append(ticket.form, one.dtype);
  append(ticket.form, static_cast<int64_t>(one.dims.size()));
  ticket.title += std::string(ticket.title.empty() ? "" : "; ") + name_of(one.dtype) + ", (";
  for (size_t i = 0; i < one.dims.size(); ++i) {
    append(ticket.form, one.dims[i]);
    ticket.title += (i == 0 ? "" : " ") + std::to_string(one.dims[i]) + (i + 1 < one.dims.size() || i == 0 ? "," : "");
  }
  ticket.title += ")";
}

// Begins like the title, and differs wherever the form does.
std::string label_of(const Ticket& ticket) {
  const std::string text = (ticket.what.empty() ? ticket.kind : ticket.what) + " of " + ticket.title;
  if (text.size() <= kMostLabel) return text;
  return text.substr(0, kMostLabel) + "... (digest " + std::to_string(digest_of(ticket.form)) + ")";
}

bool adds(int32_t op) { return op == SLIPSTREAM_SUM || op == SLIPSTREAM_AVG; }

slipstream_call call_of(const Asked& asked, const Ticket& ticket, const Operand& one, uint64_t elements) {
  slipstream_call call;
  slipstream_call_init(&call, asked.collective);
  call.dtype = one.dtype;
  call.count = elements;
  call.root = asked.root;
  call.name = ticket.label.c_str();
  if (call.collective != SLIPSTREAM_ALL_REDUCE) return call;
  call.op = asked.op;
  call.prescale = factor_for(one.dtype, asked.prescale);
  call.postscale = factor_for(one.dtype, asked.postscale);
  return call;
}

}  // namespace

void describe(const Asked& asked, const std::vector<Operand>& operands, Ticket& ticket) {
  const bool reduces = asked.collective == SLIPSTREAM_ALL_REDUCE;
  ticket.kind = reduces ? "allreduce" : "broadcast";
  for (const int64_t field : {int64_t{asked.collective}, int64_t{asked.op}, int64_t{asked.root}, int64_t{asked.wire},
                              std::bit_cast<int64_t>(asked.prescale), std::bit_cast<int64_t>(asked.postscale)})
    append(ticket.form, field);
  for (const Operand& one : operands) describe_one(one, ticket);
  ticket.title += reduces ? std::string(", ") + name_of_op(asked.op)
                          : ", from rank " + std::to_string(asked.root) + " of the group";
  if (asked.prescale != 1.0 || asked.postscale != 1.0)
    ticket.title += ", factors " + std::to_string(asked.prescale) + " and " + std::to_string(asked.postscale);
  ticket.label = label_of(ticket);
}

void plan(const Asked& asked, const std::vector<Operand>& operands, Ticket& ticket) {
  std::map<int32_t, std::vector<size_t>> small;
  const bool reduces = asked.collective == SLIPSTREAM_ALL_REDUCE;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& one = operands[i];
    const bool wired =
        reduces && asked.wire != 0 && one.dtype == SLIPSTREAM_F32 && one.bytes >= kLeastWired && adds(asked.op);
    if (reduces && operands.size() > 1 && one.bytes <= kMostPacked && !wired) {
      small[one.dtype].push_back(i);
      continue;
    }
    slipstream_call call = call_of(asked, ticket, one, one.elements);
    call.src = one.from;
    call.dst = one.to;
    if (wired) call.wire = asked.wire;
    ticket.calls.push_back(call);
    ticket.packs.emplace_back();
  }
  for (const auto& [dtype, numbers] : small) {
    Pack pack;
    uint64_t elements = 0;
    for (const size_t i : numbers) {
      pack.parts.push_back({operands[i].from, operands[i].to, operands[i].bytes});
      elements += operands[i].elements;
    }
    ticket.calls.push_back(call_of(asked, ticket, operands[numbers[0]], elements));
    ticket.packs.push_back(std::move(pack));
  }
}

}  // namespace slipstream::mxnet
