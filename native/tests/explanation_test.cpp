// What ranks tell each other of an operation of a TensorFlow graph, and what one reads of another's block.
#include "tensorflow/explanation.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "lines/form.h"
#include "lines/planned.h"
#include "tensorflow/ticket.h"
#include "tests/check.h"

namespace slipstream::tensorflow {
namespace {

const std::vector<int32_t> kRanks{3, 5};

std::unique_ptr<Ticket> operation(int64_t elements) {
  auto ticket = std::make_unique<Ticket>();
  ticket->what = "train_step";
  lines::Operand one;
  one.dtype = 0;
  one.dims = {elements};
  lines::describe(lines::Asked{}, {one}, *ticket);
  return ticket;
}

TEST(alike) {
  const auto ticket = operation(7);
  Explanation told(2, ticket->form.size());
  for (size_t rank = 0; rank < 2; ++rank) told.write(rank, *ticket);
  CHECK(told.problem(kRanks).empty());
  CHECK(told.form() == ticket->form);
}

TEST(one_has_joined) {
  const auto ticket = operation(7);
  Explanation told(2, ticket->form.size());
  told.write(1, *ticket);
  CHECK(told.problem(kRanks).empty());
  CHECK(told.form() == ticket->form);
}

TEST(unlike) {
  const auto mine = operation(7), other = operation(8);
  Explanation told(2, mine->form.size());
  told.write(0, *mine);
  told.write(1, *other);
  const std::string problem = told.problem(kRanks);
  CHECK(problem.find("rank 3") != std::string::npos && problem.find("rank 5") != std::string::npos);
}

// A block says itself how long its form is.
TEST(longer_than_its_block) {
  const auto ticket = operation(7);
  for (const uint64_t bytes : {uint64_t{ticket->form.size() + 64}, ~uint64_t{0}}) {
    Explanation told(2, ticket->form.size());
    told.write(1, *ticket);
    std::memcpy(told.of(1) + sizeof(uint64_t), &bytes, sizeof bytes);
    CHECK(told.problem(kRanks).find("rank 5 tells of an operation in " + std::to_string(bytes)) == 0);
  }
}

std::string text_of_failure(const std::function<void()>& act) {
  try {
    act();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

// The most bytes of a form are a number that other ranks have told: its memory must not be smaller than a block.
TEST(forms_that_are_too_long) {
  for (const size_t bytes : {Explanation::kMostForm + 1, SIZE_MAX, SIZE_MAX - 7, SIZE_MAX / 2 - 900}) {
    const std::string text = text_of_failure([&] { Explanation(2, bytes); });
    CHECK(text.find("takes " + std::to_string(bytes) + " bytes, and the most is 1048576") != std::string::npos);
  }
  CHECK(Explanation(2, Explanation::kMostForm).bytes() > Explanation::kMostForm);
}

TEST(a_form_longer_than_told) {
  const auto ticket = operation(7);
  for (const size_t bytes : {size_t{0}, ticket->form.size() - 8}) {
    Explanation told(1, bytes);
    const std::string text = text_of_failure([&] { told.write(0, *ticket); });
    CHECK(text.find(ticket->label + " takes " + std::to_string(ticket->form.size()) + " bytes") == 0);
  }
}

// Each 8 bytes of the form, and its digest: no other rank takes part in what is not what was written.
TEST(damaged_on_the_way) {
  const auto ticket = operation(7);
  const size_t before = Explanation(1, 0).bytes();
  std::vector<size_t> places{0};
  for (size_t at = 0; at < ticket->form.size(); at += 8) places.push_back(before + at);
  for (const size_t place : places) {
    Explanation told(2, ticket->form.size());
    told.write(1, *ticket);
    CHECK(told.problem(kRanks).empty());
    told.of(1)[place] ^= std::byte{4};
    CHECK(told.problem(kRanks).find("rank 5 tells of an operation with a digest") == 0);
  }
}

// Also where the digest is right.
TEST(an_operation_that_cannot_be) {
  const auto ticket = operation(-7);
  Explanation told(2, ticket->form.size());
  told.write(1, *ticket);
  CHECK(told.problem(kRanks).find(ticket->label + ": an operation that a rank tells of cannot be: ") == 0);
}

// All blocks say that their ranks have joined.
TEST(nobody_calls) { CHECK(Explanation(2, 64).problem(kRanks).find("its form ends early") != std::string::npos); }

TEST(the_root_has_joined) {
  lines::Asked asked;
  asked.collective = SLIPSTREAM_BROADCAST;
  Ticket ticket;
  lines::describe(asked, {}, ticket);
  Explanation told(2, ticket.form.size());
  told.write(1, ticket);
  CHECK(told.problem(kRanks).find("cannot do without rank 3, which has joined") != std::string::npos);
}

}  // namespace
}  // namespace slipstream::tensorflow
