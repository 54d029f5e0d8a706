// Tensors of one dtype that travel as one message: of small ones the messages are what costs.
#pragma once

#include <cstddef>
#include <vector>

namespace slipstream::lines {

// Their copies lie side by side.
struct Pack {
  struct Part {
    const void* from;
    void* to;
    size_t bytes;
  };
  std::vector<Part> parts;
  std::vector<std::byte> memory;

  void fill();
  void empty() const;
};

}  // namespace slipstream::lines
