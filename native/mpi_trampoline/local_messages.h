// Messages between members of a communicator that are devices of one process: copied from memory to memory when both
// ends are there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <tuple>

namespace slipstream::mpi {

// One end of a message.
struct LocalMessage {
  bool is_sent;
  void* data;
  size_t bytes;
  bool matched = false;  // the other end has come, and may be copying
  bool done = false;
};

class LocalMessages {
 public:
  // `rank`: this process's, for errors.
  explicit LocalMessages(int rank) : rank_(rank) {}

  // From one place to another.
  struct Key {
    int from;
    int to;
    int tag;
    auto operator<=>(const Key&) const = default;
  };

  // An end is there. What is wrong, if something is.
  std::string post(const Key& key, const std::shared_ptr<LocalMessage>& message);

  // Until the message has been copied, for so many seconds; less than 0: as long as an operation may take. *done:
  // whether it has, or never will. What is wrong, if something is: the message is given up then.
  std::string wait(const Key& key, const std::shared_ptr<LocalMessage>& message, double seconds, bool* done);

 private:
  std::string named(const Key& key) const;

  const int rank_;
  // Ends that wait for the other one; those of a key are all of one kind. Under the mutex of local waits.
  std::map<Key, std::deque<std::shared_ptr<LocalMessage>>> posted_;
};

}  // namespace slipstream::mpi
