#include "lines/form.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace slipstream::lines {

namespace {

constexpr size_t kMostLabel = 160;  // letters

void append(std::string& form, int64_t number) { form.append(reinterpret_cast<const char*>(&number), sizeof number); }

// The number may be another rank's.
const char* name_of_dtype(int32_t dtype) {
  return dtype >= 0 && dtype < kDTypes ? name_of(static_cast<DType>(dtype)) : "?";
}

void describe_one(const Operand& one, Planned& operation) {
  append(operation.form, one.dtype);
  append(operation.form, static_cast<int64_t>(one.dims.size()));
  std::string& title = operation.title;
  if (!title.empty()) title += "; ";
  title.append(name_of_dtype(one.dtype)).append(", (");
  for (size_t i = 0; i < one.dims.size(); ++i) {
    append(operation.form, one.dims[i]);
    if (i > 0) title += ' ';
    title += std::to_string(one.dims[i]);
    if (i + 1 < one.dims.size() || i == 0) title += ',';
  }
  title += ")";
}

[[noreturn]] void refuse(const std::string& why) {
  throw Failure(Code::internal, "an operation that a rank tells of cannot be: " + why +
                                    ". All ranks must run the same slipstream, on sound memory");
}

class Reader {
 public:
  explicit Reader(std::string_view form) : rest_(form) {}
  bool more() const { return !rest_.empty(); }
  int64_t number() {
    int64_t found = 0;
    if (rest_.size() < sizeof found) refuse("its form ends early");
    std::memcpy(&found, rest_.data(), sizeof found);
    rest_.remove_prefix(sizeof found);
    return found;
  }

 private:
  std::string_view rest_;
};

size_t bytes_of_one(int64_t dtype) {
  if (dtype < 0 || dtype >= kDTypes) refuse("there is no dtype " + std::to_string(dtype));
  return size_of(static_cast<DType>(dtype));
}

uint64_t product(uint64_t one, uint64_t other) {
  uint64_t found = 0;
  if (__builtin_mul_overflow(one, other, &found) || found > INT64_MAX) refuse("a tensor has too many elements");
  return found;
}

Operand read_operand(Reader& reader) {
  Operand one;
  const int64_t dtype = reader.number();
  const size_t each = bytes_of_one(dtype);
  one.dtype = static_cast<int32_t>(dtype);
  one.elements = 1;
  for (int64_t dims = reader.number(); dims != 0; --dims) {
    const int64_t size = dims < 0 ? -1 : reader.number();
    if (size < 0) refuse("a tensor has a negative size");
    one.dims.push_back(size);
    one.elements = product(one.elements, static_cast<uint64_t>(size));
  }
  one.bytes = product(one.elements, each);
  return one;
}

Asked read(Reader& reader) {
  Asked asked;
  for (int32_t* const field : {&asked.collective, &asked.op, &asked.root, &asked.wire})
    *field = static_cast<int32_t>(reader.number());
  if (asked.collective != SLIPSTREAM_ALL_REDUCE && asked.collective != SLIPSTREAM_BROADCAST)
    refuse("there is no collective " + std::to_string(asked.collective) + " here");
  asked.prescale = std::bit_cast<double>(reader.number());
  asked.postscale = std::bit_cast<double>(reader.number());
  return asked;
}

}  // namespace

const char* name_of_op(int32_t op) {
  constexpr const char* kNames[] = {"sum", "product", "min", "max", "average"};
  return op >= 0 && op < 5 ? kNames[op] : "?";
}

void describe(const Asked& asked, const std::vector<Operand>& operands, Planned& operation) {
  const bool reduces = asked.collective == SLIPSTREAM_ALL_REDUCE;
  operation.kind = reduces ? "allreduce" : "broadcast";
  for (const int64_t field : {int64_t{asked.collective}, int64_t{asked.op}, int64_t{asked.root}, int64_t{asked.wire},
                              std::bit_cast<int64_t>(asked.prescale), std::bit_cast<int64_t>(asked.postscale)})
    append(operation.form, field);
  for (const Operand& one : operands) describe_one(one, operation);
  operation.title += reduces ? std::string(", ") + name_of_op(asked.op)
                             : ", from rank " + std::to_string(asked.root) + " of the group";
  if (asked.prescale != 1.0 || asked.postscale != 1.0)
    operation.title += ", factors " + std::to_string(asked.prescale) + " and " + std::to_string(asked.postscale);
  operation.label = label_of(operation);
}

std::string label_of(const Planned& operation) {
  const std::string text = (operation.what.empty() ? operation.kind : operation.what) + " of " + operation.title;
  if (text.size() <= kMostLabel) return text;
  return text.substr(0, kMostLabel) + "... (digest " + std::to_string(digest_of(operation.form + operation.title)) +
         ")";
}

uint64_t digest_of(std::string_view form) {  // FNV-1a
  uint64_t digest = 0xcbf29ce484222325;
  for (const char c : form) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

Asked asked_in(std::string_view form) {
  Reader reader(form);
  return read(reader);
}

std::vector<Operand> operands_in(std::string_view form) {
  Reader reader(form);
  read(reader);
  std::vector<Operand> operands;
  while (reader.more()) operands.push_back(read_operand(reader));
  return operands;
}

int64_t root_of(std::string_view form) {
  const Asked asked = asked_in(form);
  return asked.collective == SLIPSTREAM_BROADCAST ? asked.root : -1;
}

}  // namespace slipstream::lines
