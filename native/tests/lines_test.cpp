// How operations of frameworks become calls: packs, plans, forms and neutral elements, on odd sizes.
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "lines/form.h"
#include "lines/mismatch.h"
#include "lines/neutral.h"
#include "lines/pack.h"
#include "lines/plan.h"
#include "tests/check.h"

namespace slipstream::lines {
namespace {

constexpr size_t kMostPacked = 128 << 10;

class Noted final : public Planned {
 public:
  void ended(size_t, int32_t, const char*) override {}
};

std::vector<std::byte> random_bytes(size_t bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> found(bytes);
  for (std::byte& one : found) one = static_cast<std::byte>(random());
  return found;
}

// A tensor with memory of its own.
struct Tensor {
  Operand operand;
  std::vector<std::byte> in, out;
};

Tensor tensor(int32_t dtype, std::vector<int64_t> dims) {
  Tensor made;
  made.operand.dtype = dtype;
  made.operand.elements = 1;
  for (const int64_t size : dims) made.operand.elements *= static_cast<uint64_t>(size);
  made.operand.dims = std::move(dims);
  made.operand.bytes = made.operand.elements * size_of(static_cast<DType>(dtype));
  made.in = random_bytes(made.operand.bytes, static_cast<unsigned>(made.operand.bytes + 1));
  made.out.resize(made.operand.bytes);
  made.operand.from = made.in.data();
  made.operand.to = made.out.data();
  return made;
}

std::vector<Operand> operands_of(const std::vector<Tensor>& tensors) {
  std::vector<Operand> found;
  for (const Tensor& one : tensors) found.push_back(one.operand);
  return found;
}

std::vector<Tensor> odd_tensors() {
  std::vector<Tensor> found;
  for (const int64_t bytes : {0, 1, 7, 1023, 128 << 10, (128 << 10) + 1})
    found.push_back(tensor(SLIPSTREAM_U8, {bytes}));
  for (const int64_t floats : {1, 3, 32 << 10, (32 << 10) + 1}) found.push_back(tensor(SLIPSTREAM_F32, {floats}));
  found.push_back(tensor(SLIPSTREAM_F32, {}));
  found.push_back(tensor(SLIPSTREAM_F64, {3, 0, 5}));
  found.push_back(tensor(SLIPSTREAM_C128, {3, 5, 7}));
  return found;
}

// What a call does on one rank, if its operation doubles bytes.
void run(const slipstream_call& call) {
  const size_t bytes = call.count * size_of(static_cast<DType>(call.dtype));
  const auto* const from = static_cast<const unsigned char*>(call.src);
  auto* const to = static_cast<unsigned char*>(call.dst);
  for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<unsigned char>(2 * from[i]);
}

TEST(packs_give_each_part_back) {
  for (const size_t last : {0, 1, 5, 1023}) {
    std::vector<Tensor> tensors;
    for (const size_t bytes : {size_t{3}, size_t{0}, size_t{1}, size_t{4097}, last})
      tensors.push_back(tensor(SLIPSTREAM_U8, {static_cast<int64_t>(bytes)}));
    Pack pack;
    size_t total = 0;
    for (const Tensor& one : tensors) {
      pack.parts.push_back({one.operand.from, one.operand.to, one.operand.bytes});
      total += one.operand.bytes;
    }
    pack.fill();
    CHECK_EQ(pack.memory.size(), total);
    size_t at = 0;
    for (const Tensor& one : tensors) {
      CHECK(one.in.empty() || std::memcmp(pack.memory.data() + at, one.in.data(), one.in.size()) == 0);
      at += one.in.size();
    }
    pack.empty();
    for (const Tensor& one : tensors) CHECK(one.in == one.out);
  }
}

TEST(a_plan_takes_each_tensor_once) {
  const Asked asked;
  const std::vector<Tensor> tensors = odd_tensors();
  Noted operation;
  describe(asked, operands_of(tensors), operation);
  plan(asked, operands_of(tensors), operation);
  CHECK_EQ(operation.calls.size(), operation.packs.size());
  for (size_t i = 0; i < operation.calls.size(); ++i) {
    slipstream_call& call = operation.calls[i];
    Pack& pack = operation.packs[i];
    CHECK_EQ(std::string(call.name), operation.label);
    if (!pack.parts.empty()) {
      pack.fill();
      CHECK_EQ(pack.memory.size(), call.count * size_of(static_cast<DType>(call.dtype)));
      call.src = call.dst = pack.memory.data();
    }
    run(call);
    pack.empty();
  }
  for (const Tensor& one : tensors)
    for (size_t i = 0; i < one.in.size(); ++i)
      if (std::to_integer<unsigned char>(one.out[i]) != static_cast<unsigned char>(2 * std::to_integer<int>(one.in[i])))
        check::failed(__FILE__, __LINE__, "byte " + std::to_string(i) + " of " + std::to_string(one.in.size()));
}

TEST(small_tensors_of_a_dtype_travel_together) {
  const std::vector<Tensor> tensors = odd_tensors();
  Noted operation;
  plan({}, operands_of(tensors), operation);
  std::map<int32_t, int> packed, alone;
  for (size_t i = 0; i < operation.calls.size(); ++i) {
    const bool is_pack = !operation.packs[i].parts.empty();
    ++(is_pack ? packed : alone)[operation.calls[i].dtype];
    if (!is_pack) CHECK(operation.calls[i].count * size_of(static_cast<DType>(operation.calls[i].dtype)) > kMostPacked);
  }
  CHECK((packed ==
         std::map<int32_t, int>{{SLIPSTREAM_U8, 1}, {SLIPSTREAM_F32, 1}, {SLIPSTREAM_F64, 1}, {SLIPSTREAM_C128, 1}}));
  CHECK((alone == std::map<int32_t, int>{{SLIPSTREAM_U8, 1}, {SLIPSTREAM_F32, 1}}));
}

TEST(one_tensor_and_broadcasts_are_not_copied) {
  const auto is_direct = [](const Asked& asked, const std::vector<Tensor>& tensors) {
    Noted operation;
    plan(asked, operands_of(tensors), operation);
    CHECK_EQ(operation.calls.size(), tensors.size());
    for (size_t i = 0; i < operation.calls.size(); ++i) {
      CHECK(operation.packs[i].parts.empty());
      CHECK_EQ(operation.calls[i].src, tensors[i].operand.from);
      CHECK_EQ(operation.calls[i].dst, tensors[i].operand.to);
    }
  };
  std::vector<Tensor> one;
  one.push_back(tensor(SLIPSTREAM_F32, {7}));
  is_direct({}, one);
  Asked asked;
  asked.collective = SLIPSTREAM_BROADCAST;
  is_direct(asked, odd_tensors());
}

TEST(only_large_sums_of_floats_are_wired) {
  Asked asked;
  asked.wire = SLIPSTREAM_WIRE_BF16;
  std::vector<Tensor> tensors;
  tensors.push_back(tensor(SLIPSTREAM_F32, {(16 << 10) - 1}));
  tensors.push_back(tensor(SLIPSTREAM_F32, {16 << 10}));
  tensors.push_back(tensor(SLIPSTREAM_I32, {64 << 10}));
  for (const int32_t op : {SLIPSTREAM_SUM, SLIPSTREAM_AVG, SLIPSTREAM_MAX}) {
    asked.op = op;
    Noted operation;
    plan(asked, operands_of(tensors), operation);
    for (const slipstream_call& call : operation.calls) {
      const bool wired = op != SLIPSTREAM_MAX && call.dtype == SLIPSTREAM_F32 && call.count == 16 << 10;
      CHECK_EQ(call.wire, wired ? SLIPSTREAM_WIRE_BF16 : SLIPSTREAM_WIRE_EXACT);
    }
  }
}

TEST(factors_have_the_precision_of_their_numbers) {
  Asked asked;
  asked.prescale = 0.1;
  for (const int32_t dtype : {SLIPSTREAM_F64, SLIPSTREAM_I32, SLIPSTREAM_F32, SLIPSTREAM_F16, SLIPSTREAM_C64}) {
    std::vector<Tensor> tensors;
    tensors.push_back(tensor(dtype, {3}));
    Noted operation;
    plan(asked, operands_of(tensors), operation);
    const bool wide = dtype == SLIPSTREAM_F64 || dtype == SLIPSTREAM_I32;
    CHECK_EQ(operation.calls[0].prescale, wide ? 0.1 : static_cast<double>(0.1F));
    CHECK_EQ(operation.calls[0].postscale, 1.0);
  }
}

TEST(a_form_is_read_as_it_was_written) {
  Asked asked{SLIPSTREAM_BROADCAST, SLIPSTREAM_MAX, 5, SLIPSTREAM_WIRE_F16, 0.1, -3.0};
  const std::vector<Operand> given = operands_of(odd_tensors());
  Noted operation;
  describe(asked, given, operation);
  const Asked found = asked_in(operation.form);
  CHECK_EQ(found.collective, asked.collective);
  CHECK_EQ(found.op, asked.op);
  CHECK_EQ(found.root, asked.root);
  CHECK_EQ(found.wire, asked.wire);
  CHECK_EQ(found.prescale, asked.prescale);
  CHECK_EQ(found.postscale, asked.postscale);
  const std::vector<Operand> operands = operands_in(operation.form);
  CHECK_EQ(operands.size(), given.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    CHECK_EQ(operands[i].dtype, given[i].dtype);
    CHECK(operands[i].dims == given[i].dims);
    CHECK_EQ(operands[i].elements, given[i].elements);
    CHECK_EQ(operands[i].bytes, given[i].bytes);
  }
  CHECK_EQ(root_of(operation.form), 5);
  asked.collective = SLIPSTREAM_ALL_REDUCE;
  Noted reduces;
  describe(asked, given, reduces);
  CHECK_EQ(root_of(reduces.form), -1);
}

// The text of the failure to take part in an operation of this form; "" if there is none.
std::string refusal_of(const std::string& form) {
  Noted neutral;
  try {
    plan_neutral(form, neutral);
  } catch (const Failure& failure) {
    return failure.what();
  }
  for (size_t i = 0; i < neutral.calls.size(); ++i) {
    const slipstream_call& call = neutral.calls[i];
    CHECK(call.count <= neutral.packs[i].memory.size() / size_of(static_cast<DType>(call.dtype)));
  }
  return "";
}

std::string form_of(const std::vector<int64_t>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t)};
}

// Else the engine would write more than there is memory for.
TEST(a_form_that_cannot_be_is_refused) {
  constexpr int64_t kOne = 0x3FF0000000000000;  // the bits of 1.0
  const auto of = [](std::vector<int64_t> tensors, int64_t collective = SLIPSTREAM_ALL_REDUCE) {
    std::vector<int64_t> numbers{collective, 0, 0, 0, kOne, kOne};
    numbers.insert(numbers.end(), tensors.begin(), tensors.end());
    return form_of(numbers);
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK_EQ(refusal_of(of({SLIPSTREAM_F32, 2, 3, 5, SLIPSTREAM_F64, 0})), std::string());
  constexpr int64_t kHuge = int64_t{1} << 62;
  for (const int64_t size : {kHuge, kHuge + 1, INT64_MAX, int64_t{1} << 61})
    CHECK(has(refusal_of(of({SLIPSTREAM_F32, 1, size})), "too many elements"));
  CHECK(has(refusal_of(of({SLIPSTREAM_U8, 2, int64_t{1} << 32, int64_t{1} << 32})), "too many elements"));
  CHECK(has(refusal_of(of({SLIPSTREAM_U8, 3, kHuge, 2, 2})), "too many elements"));
  CHECK(has(refusal_of(of({SLIPSTREAM_U8, 2, -1, -3})), "negative size"));
  CHECK(has(refusal_of(of({SLIPSTREAM_U8, -1})), "negative size"));
  for (const int64_t dtype : {int64_t{-1}, int64_t{kDTypes}, int64_t{1} << 32})
    CHECK(has(refusal_of(of({dtype, 1, 3})), "no dtype"));
  CHECK(has(refusal_of(of({SLIPSTREAM_U8, 3, 1, 1})), "ends early"));
  CHECK(has(refusal_of(of({SLIPSTREAM_U8, 1, 1}) + "more"), "ends early"));
  CHECK(has(refusal_of(""), "ends early"));
  CHECK(has(refusal_of(of({SLIPSTREAM_U8, 1, 1}, SLIPSTREAM_ALL_GATHER)), "no collective 3"));
}

TEST(what_ranks_must_agree_about_is_in_the_form_and_the_label) {
  const auto described = [](const Asked& asked, const std::vector<Tensor>& tensors, const char* what = "") {
    Noted operation;
    operation.what = what;
    describe(asked, operands_of(tensors), operation);
    return std::pair(digest_of(operation.form), operation.label);
  };
  const auto of = [](int32_t dtype, std::vector<int64_t> dims) {
    std::vector<Tensor> tensors;
    tensors.push_back(tensor(dtype, std::move(dims)));
    return tensors;
  };
  std::vector<std::pair<uint64_t, std::string>> all;
  all.push_back(described({}, of(SLIPSTREAM_F32, {6})));
  all.push_back(described({}, of(SLIPSTREAM_I32, {6})));
  all.push_back(described({}, of(SLIPSTREAM_F32, {2, 3})));
  all.push_back(described({}, of(SLIPSTREAM_F32, {3, 2})));
  all.push_back(described({}, of(SLIPSTREAM_F32, {6, 1})));
  all.push_back(described({}, of(SLIPSTREAM_F32, {})));
  all.push_back(described({SLIPSTREAM_ALL_REDUCE, SLIPSTREAM_MAX, 0, 0, 1.0, 1.0}, of(SLIPSTREAM_F32, {6})));
  all.push_back(described({SLIPSTREAM_ALL_REDUCE, 0, 0, 0, 2.0, 1.0}, of(SLIPSTREAM_F32, {6})));
  all.push_back(described({SLIPSTREAM_BROADCAST, 0, 0, 0, 1.0, 1.0}, of(SLIPSTREAM_F32, {6})));
  all.push_back(described({SLIPSTREAM_BROADCAST, 0, 1, 0, 1.0, 1.0}, of(SLIPSTREAM_F32, {6})));
  std::vector<Tensor> many;
  for (int i = 0; i < 100; ++i) many.push_back(tensor(SLIPSTREAM_F32, {7}));
  all.push_back(described({}, many));
  many.back() = tensor(SLIPSTREAM_F32, {8});
  all.push_back(described({}, many));
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(all[i].second.size() < 200);
    for (size_t k = 0; k < i; ++k) {
      CHECK(all[i].first != all[k].first);
      CHECK(all[i].second != all[k].second);
    }
  }
  CHECK_EQ(all[0].second, std::string("allreduce of float32, (6,), sum"));
  CHECK_EQ(described({}, of(SLIPSTREAM_F32, {2, 3}), "allreduce 'x'").second,
           std::string("allreduce 'x' of float32, (2, 3), sum"));
}

// Numbers that each dtype can hold.
std::vector<std::byte> values(DType dtype, size_t count) {
  std::vector<float> numbers(2 * count);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(static_cast<int>(i % 15) - 7) / 2;
  std::vector<std::byte> found(count * size_of(dtype));
  if (count == 0) return found;  // without memory
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e5m2:
      cast(DType::f32, dtype, found.data(), numbers.data(), count);
      return found;
    case DType::c64:
      std::memcpy(found.data(), numbers.data(), found.size());
      return found;
    case DType::c128:
      cast(DType::f32, DType::f64, found.data(), numbers.data(), 2 * count);
      return found;
    case DType::boolean:
      for (size_t i = 0; i < count; ++i) found[i] = static_cast<std::byte>(i % 2);
      return found;
    default:
      return random_bytes(found.size(), 1);
  }
}

TEST(a_mismatch_names_a_rank_of_each_form) {
  CHECK_EQ(mismatch("allreduce", {{4, 1, "a"}, {5, 1, "a"}}), std::string());
  CHECK_EQ(mismatch("allreduce", {}), std::string());
  CHECK_EQ(mismatch("allreduce", {{4, 1, "a"}, {5, 1, "a"}, {7, 2, "b"}, {9, 1, "a"}}),
           std::string("Mismatched allreduce: rank 4 with a; rank 7 with b. All ranks must call the same operations in "
                       "the same order, with the same shapes and dtypes"));
  std::vector<Called> many;
  for (int32_t rank = 0; rank < 9; ++rank) many.push_back({rank, static_cast<uint64_t>(rank), "a"});
  const std::string text = mismatch("allreduce", many);
  CHECK(text.find("rank 3 with a.") != std::string::npos);
  CHECK(text.find("rank 4") == std::string::npos);
}

TEST(a_dtype_that_does_not_exist_has_a_name) {
  for (const int32_t dtype : {-1, kDTypes, 256, 1 << 30}) {
    Noted noted;
    describe(Asked{}, {Operand{dtype, {3}, 0, 3, nullptr, nullptr}}, noted);
    CHECK_EQ(noted.title, std::string("?, (3,), sum"));
  }
}

TEST(neutral_elements_change_nothing) {
  int reduced = 0;
  for (int t = 0; t < kDTypes - 1; ++t) {  // block-int8 is no dtype of tensors
    const auto dtype = static_cast<DType>(t);
    for (const Op op : {Op::sum, Op::prod, Op::min, Op::max, Op::avg})
      for (const size_t count : {0, 1, 7, 1023}) {
        const ReduceFn reduce = reduce_fn(dtype, op);
        if (reduce == nullptr) continue;
        const std::vector<std::byte> given = values(dtype, count);
        std::vector<std::byte> neutral = random_bytes(given.size(), 2), found(given.size());
        fill_neutral(t, static_cast<int32_t>(op), neutral);
        ++reduced;
        for (const bool first : {false, true}) {
          reduce(found.data(), first ? neutral.data() : given.data(), first ? given.data() : neutral.data(), count);
          if (found != given) check::failed(__FILE__, __LINE__, std::string(name_of(op)) + " of " + name_of(dtype));
        }
      }
  }
  CHECK(reduced > 200);
}

TEST(a_neutral_part_has_the_calls_of_the_others) {
  const std::vector<Operand> operands = operands_of(odd_tensors());
  for (const int32_t collective : {SLIPSTREAM_ALL_REDUCE, SLIPSTREAM_BROADCAST})
    for (const int32_t op : {SLIPSTREAM_SUM, SLIPSTREAM_PROD}) {
      const Asked asked{collective, op, 0, 0, 2.0, 1.0};
      Noted theirs, neutral;
      describe(asked, operands, theirs);
      plan(asked, operands, theirs);
      neutral.label = theirs.label;
      plan_neutral(theirs.form, neutral);
      CHECK_EQ(neutral.calls.size(), theirs.calls.size());
      for (size_t i = 0; i < neutral.calls.size(); ++i) {
        const slipstream_call &mine = neutral.calls[i], &other = theirs.calls[i];
        CHECK_EQ(mine.collective, other.collective);
        CHECK_EQ(mine.dtype, other.dtype);
        CHECK_EQ(mine.count, other.count);
        CHECK_EQ(mine.op, other.op);
        CHECK_EQ(mine.prescale, other.prescale);
        CHECK_EQ(std::string(mine.name), std::string(other.name));
        const size_t bytes = mine.count * size_of(static_cast<DType>(mine.dtype));
        CHECK_EQ(neutral.packs[i].memory.size(), bytes);
        CHECK_EQ(mine.dst, static_cast<void*>(neutral.packs[i].memory.data()));
        CHECK(neutral.packs[i].parts.empty());
        std::vector<std::byte> wanted(bytes);
        fill_neutral(mine.dtype, collective == SLIPSTREAM_ALL_REDUCE ? op : SLIPSTREAM_SUM, wanted);
        CHECK(neutral.packs[i].memory == wanted);
      }
    }
}

}  // namespace
}  // namespace slipstream::lines
