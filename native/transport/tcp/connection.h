// An authenticated connection, and what seals and opens what it carries, if it is encrypted.
#pragma once

#include <memory>
#include <utility>

#include "base/fd.h"
#include "transport/records.h"

namespace slipstream {

struct Connection {
  Connection() = default;
  Connection(Fd f, std::unique_ptr<Records> r) : fd(std::move(f)), records(std::move(r)) {}

  Fd fd;
  std::unique_ptr<Records> records;  // null: it is plain
};

}  // namespace slipstream
