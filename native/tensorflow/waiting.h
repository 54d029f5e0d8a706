// What waits for tickets: SlipstreamWait, and SlipstreamOpen, which makes a ticket for what Python does.
#pragma once

#include <memory>

#include "tensorflow/abi.h"
#include "tensorflow/ticket.h"

namespace slipstream::tensorflow {

// Registers both; the table stays where it is.
void add_waiting(const Api& tf, const Outcome& outcome);

// A tensor that has the ticket's number. The ticket is known by it as long as the tensor lives.
Tensor* number_of(const Api& tf, std::shared_ptr<Ticket> ticket);

}  // namespace slipstream::tensorflow
