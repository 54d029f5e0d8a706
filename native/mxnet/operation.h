// One collective that MXNet's engine runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lines/planned.h"
#include "mxnet/abi.h"
#include "mxnet/line.h"
#include "mxnet/pushes.h"

namespace slipstream::mxnet {

class Operation final : public Ticket {
 public:
  // Null if one of the arrays cannot be pushed.
  static std::shared_ptr<Operation> make(const Api& mx, const std::shared_ptr<PushLine>& line, const Pushed& pushed);
  Operation(const Api& mx, std::shared_ptr<PushLine> line, const Pushed& pushed);
  ~Operation() override;

  // Gives it to the engine. The line has it already.
  void push();

 private:
  bool take(uintptr_t input, uintptr_t result);
  NDArray* copy_of(uintptr_t array);
  bool known(const Chunk* chunk) const;

  static void run(void* engine, void* done, void* param);
  static void forget(void* param);
  void arrived(const Done& done);
  void left_out(const char* why);
  void find_memory();
  void* memory_of(NDArray* array) const;
  void told() override;

  const Api& mx_;
  const std::shared_ptr<PushLine> line_;
  const lines::Asked asked_;
  std::vector<lines::Operand> operands_;
  // Copies of the handles: the program may drop its own. Of each operand the input, and the result if it is another.
  std::vector<NDArray*> arrays_;
  bool in_place_ = true;
  bool arrived_ = false;
  Done done_{};
};

}  // namespace slipstream::mxnet
