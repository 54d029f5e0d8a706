// What ranks tell each other of an operation of a TensorFlow graph, and what one reads of another's block.
#include "tensorflow/explanation.h"

#include <cstring>
#include <memory>
#include <string>
#include <vector>

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

}  // namespace
}  // namespace slipstream::tensorflow
