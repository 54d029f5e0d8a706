#include "tensorflow/plan.h"

#include <bit>
#include <utility>

#include "lines/neutral.h"

namespace slipstream::tensorflow {

lines::Asked asked_by(const Fields& fields) {
  const auto number = [&](Field field) { return static_cast<int32_t>(fields[field]); };
  return {number(kCollective),
          number(kOp),
          number(kRoot),
          number(kWire),
          std::bit_cast<double>(fields[kPrescale]),
          std::bit_cast<double>(fields[kPostscale])};
}

std::shared_ptr<Ticket> neutral_ticket(std::string_view form, std::string label) {
  auto ticket = std::make_shared<Ticket>();
  ticket->label = std::move(label);
  lines::plan_neutral(form, *ticket);
  return ticket;
}

}  // namespace slipstream::tensorflow
