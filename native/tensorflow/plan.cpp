#include "tensorflow/plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <utility>

#include "capi/table.h"

namespace slipstream::tensorflow {

namespace {

constexpr size_t kMostPacked = 128 << 10;  // bytes of a tensor that travels with others
constexpr size_t kLeastWired = 64 << 10;   // slipstream.comm.collectives.wires has the same

size_t bytes_of(int32_t dtype) { return capi::table(SLIPSTREAM_API_VERSION)->dtype_bytes(dtype); }

// A factor as numbers of this type are multiplied by it: floating-point ones below float64 by a float32.
double factor_for(int32_t dtype, double factor) {
  const bool narrow =
      dtype == SLIPSTREAM_F32 || dtype == SLIPSTREAM_F16 || dtype == SLIPSTREAM_BF16 || dtype == SLIPSTREAM_C64;
  if (!narrow) return factor;
  const volatile float rounded = static_cast<float>(factor);  // GCC 12 leaves out the rounding of two neighbours
  return static_cast<double>(rounded);
}

bool adds(int64_t op) { return op == SLIPSTREAM_SUM || op == SLIPSTREAM_AVG; }

slipstream_call call_of(const Fields& fields, const Ticket& ticket, const Operand& one, uint64_t elements) {
  slipstream_call call;
  slipstream_call_init(&call, static_cast<int32_t>(fields[kCollective]));
  call.dtype = one.dtype;
  call.count = elements;
  call.root = static_cast<int32_t>(fields[kRoot]);
  call.name = ticket.label.c_str();
  if (call.collective != SLIPSTREAM_ALL_REDUCE) return call;
  call.op = static_cast<int32_t>(fields[kOp]);
  call.prescale = factor_for(one.dtype, std::bit_cast<double>(fields[kPrescale]));
  call.postscale = factor_for(one.dtype, std::bit_cast<double>(fields[kPostscale]));
  return call;
}

// Reads a form, of which this process has made sure that it has the digest of another rank's.
class Reader {
 public:
  explicit Reader(std::string_view form) : rest_(form) {}
  bool more() const { return rest_.size() >= sizeof(int64_t); }
  int64_t number() {
    int64_t found = 0;
    if (more()) std::memcpy(&found, rest_.data(), sizeof found);
    rest_.remove_prefix(std::min(rest_.size(), sizeof found));
    return found;
  }

 private:
  std::string_view rest_;
};

bool is_signed(int32_t dtype) {
  return dtype == SLIPSTREAM_I8 || dtype == SLIPSTREAM_I16 || dtype == SLIPSTREAM_I32 || dtype == SLIPSTREAM_I64;
}

uint64_t one_of(int32_t dtype) {
  switch (dtype) {
    case SLIPSTREAM_F64:
    case SLIPSTREAM_C128:
      return std::bit_cast<uint64_t>(1.0);
    case SLIPSTREAM_F32:
    case SLIPSTREAM_C64:
      return std::bit_cast<uint32_t>(1.0F);
    case SLIPSTREAM_F16:
      return 0x3C00;
    case SLIPSTREAM_BF16:
      return 0x3F80;
    default:
      return 1;
  }
}

uint64_t highest_of(int32_t dtype) {
  switch (dtype) {
    case SLIPSTREAM_F64:
      return std::bit_cast<uint64_t>(std::numeric_limits<double>::infinity());
    case SLIPSTREAM_F32:
      return std::bit_cast<uint32_t>(std::numeric_limits<float>::infinity());
    case SLIPSTREAM_F16:
      return 0x7C00;
    case SLIPSTREAM_BF16:
      return 0x7F80;
    case SLIPSTREAM_BOOL:
      return 1;
    default:
      return is_signed(dtype) ? UINT64_MAX >> (65 - 8 * bytes_of(dtype)) : UINT64_MAX;
  }
}

uint64_t lowest_of(int32_t dtype) {
  switch (dtype) {
    case SLIPSTREAM_F64:
      return std::bit_cast<uint64_t>(-std::numeric_limits<double>::infinity());
    case SLIPSTREAM_F32:
      return std::bit_cast<uint32_t>(-std::numeric_limits<float>::infinity());
    case SLIPSTREAM_F16:
      return 0xFC00;
    case SLIPSTREAM_BF16:
      return 0xFF80;
    default:
      return is_signed(dtype) ? uint64_t{1} << (8 * bytes_of(dtype) - 1) : 0;
  }
}

}  // namespace

const char* name_of_dtype(int32_t dtype) {
  constexpr const char* kNames[] = {"float64", "float32", "float16", "bfloat16",  "float8_e4m3fn", "float8_e5m2",
                                    "int8",    "int16",   "int32",   "int64",     "uint8",         "uint16",
                                    "uint32",  "uint64",  "bool",    "complex64", "complex128"};
  return kNames[dtype];
}

const char* name_of_op(int64_t op) {
  constexpr const char* kNames[] = {"sum", "product", "min", "max", "average"};
  return op >= 0 && op < 5 ? kNames[op] : "?";
}

void append(std::string& form, int64_t number) { form.append(reinterpret_cast<const char*>(&number), sizeof number); }

int64_t root_of(std::string_view form) {
  Reader reader(form);
  Fields fields{};
  for (int64_t& field : fields) field = reader.number();
  return fields[kCollective] == SLIPSTREAM_BROADCAST ? fields[kRoot] : -1;
}

void plan(const Fields& fields, const std::vector<Operand>& operands, Ticket& ticket) {
  std::map<int32_t, std::vector<size_t>> small;
  const bool reduces = fields[kCollective] == SLIPSTREAM_ALL_REDUCE;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand& one = operands[i];
    const bool wired =
        reduces && fields[kWire] != 0 && one.dtype == SLIPSTREAM_F32 && one.bytes >= kLeastWired && adds(fields[kOp]);
    if (reduces && operands.size() > 1 && one.bytes <= kMostPacked && !wired) {
      small[one.dtype].push_back(i);
      continue;
    }
    slipstream_call call = call_of(fields, ticket, one, one.elements);
    call.src = one.from;
    call.dst = one.to;
    if (wired) call.wire = static_cast<int32_t>(fields[kWire]);
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
    ticket.calls.push_back(call_of(fields, ticket, operands[numbers[0]], elements));
    ticket.packs.push_back(std::move(pack));
  }
}

void fill_neutral(int32_t dtype, int64_t op, std::vector<std::byte>& memory) {
  std::memset(memory.data(), 0, memory.size());
  if (op != SLIPSTREAM_PROD && op != SLIPSTREAM_MIN && op != SLIPSTREAM_MAX) return;
  const uint64_t pattern = op == SLIPSTREAM_PROD  ? one_of(dtype)
                           : op == SLIPSTREAM_MIN ? highest_of(dtype)
                                                  : lowest_of(dtype);
  const size_t step = bytes_of(dtype);
  // Of a complex number, the imaginary part stays 0.
  const bool complex = dtype == SLIPSTREAM_C64 || dtype == SLIPSTREAM_C128;
  const size_t bytes = complex ? step / 2 : step;
  for (size_t at = 0; at + step <= memory.size(); at += step) std::memcpy(memory.data() + at, &pattern, bytes);
}

std::shared_ptr<Ticket> neutral_ticket(std::string_view form, std::string label) {
  Reader reader(form);
  Fields fields{};
  for (int64_t& field : fields) field = reader.number();
  std::vector<Operand> operands;
  while (reader.more()) {
    Operand one;
    one.dtype = static_cast<int32_t>(reader.number());
    one.elements = 1;
    for (int64_t dims = reader.number(); dims > 0; --dims) one.elements *= static_cast<uint64_t>(reader.number());
    one.bytes = one.elements * bytes_of(one.dtype);
    operands.push_back(one);
  }
  auto ticket = std::make_shared<Ticket>();
  ticket->label = std::move(label);
  plan(fields, operands, *ticket);
  for (size_t i = 0; i < ticket->calls.size(); ++i) {
    slipstream_call& call = ticket->calls[i];
    Pack& pack = ticket->packs[i];
    pack.parts.clear();
    pack.memory.resize(call.count * bytes_of(call.dtype));
    fill_neutral(call.dtype, fields[kCollective] == SLIPSTREAM_ALL_REDUCE ? fields[kOp] : SLIPSTREAM_SUM, pack.memory);
    call.src = call.dst = pack.memory.data();
  }
  return ticket;
}

}  // namespace slipstream::tensorflow
