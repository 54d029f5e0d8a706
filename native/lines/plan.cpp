#include "lines/plan.h"

#include <map>
#include <utility>

#include "capi/calls.h"

namespace slipstream::lines {

namespace {

constexpr size_t kMostPacked = 128 << 10;  // bytes of a tensor that travels with others
constexpr size_t kLeastWired = 64 << 10;   // slipstream.comm.collectives.wires has the same

// A factor as numbers of this type are multiplied by it: floating-point ones below float64 by a float32.
double factor_for(int32_t dtype, double factor) {
  const bool narrow =
      dtype == SLIPSTREAM_F32 || dtype == SLIPSTREAM_F16 || dtype == SLIPSTREAM_BF16 || dtype == SLIPSTREAM_C64;
  if (!narrow) return factor;
  const volatile float rounded = static_cast<float>(factor);  // GCC 12 leaves out the rounding of two neighbours
  return static_cast<double>(rounded);
}

bool adds(int32_t op) { return op == SLIPSTREAM_SUM || op == SLIPSTREAM_AVG; }

slipstream_call call_of(const Asked& asked, const Planned& operation, const Operand& one, uint64_t elements) {
  slipstream_call call;
  slipstream_call_init(&call, asked.collective);
  call.dtype = one.dtype;
  call.count = elements;
  call.root = asked.root;
  call.name = operation.label.c_str();
  if (call.collective != SLIPSTREAM_ALL_REDUCE) return call;
  call.op = asked.op;
  call.prescale = factor_for(one.dtype, asked.prescale);
  call.postscale = factor_for(one.dtype, asked.postscale);
  return call;
}

// What the engine tells the end of a call by.
struct Of {
  std::shared_ptr<Planned> operation;
  size_t call;

  static void done(void* user, int32_t status, const char* text) {
    const std::unique_ptr<Of> of(static_cast<Of*>(user));
    of->operation->ended(of->call, status, text);
  }
};

}  // namespace

void plan(const Asked& asked, const std::vector<Operand>& operands, Planned& operation) {
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
    slipstream_call call = call_of(asked, operation, one, one.elements);
    call.src = one.from;
    call.dst = one.to;
    if (wired) call.wire = asked.wire;
    operation.calls.push_back(call);
    operation.packs.emplace_back();
  }
  for (const auto& [dtype, numbers] : small) {
    Pack pack;
    uint64_t elements = 0;
    for (const size_t i : numbers) {
      pack.parts.push_back({operands[i].from, operands[i].to, operands[i].bytes});
      elements += operands[i].elements;
    }
    operation.calls.push_back(call_of(asked, operation, operands[numbers[0]], elements));
    operation.packs.push_back(std::move(pack));
  }
}

void begin(slipstream_group& group, const std::shared_ptr<Planned>& operation, const Told& told) {
  const size_t calls = operation->calls.size();
  for (size_t i = 0; i < calls; ++i) {  // the end of the last one takes the packs away
    Pack& pack = operation->packs[i];
    slipstream_call& call = operation->calls[i];
    if (!pack.parts.empty()) {
      pack.fill();
      call.src = call.dst = pack.memory.data();
    }
    std::unique_ptr<Of> of(new Of{operation, i});  // clang 14 can do no better
    try {
      if (!capi::submit_or_run(group, call, Of::done, of.get())) {
        of.release();
        continue;
      }
      told(i, SLIPSTREAM_OK, "");
    } catch (const Failure& failure) {
      told(i, static_cast<int32_t>(failure.error().code), failure.what());
    } catch (const std::exception& error) {
      told(i, SLIPSTREAM_INTERNAL, error.what());
    }
  }
}

}  // namespace slipstream::lines
