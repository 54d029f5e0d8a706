// Operations that all ranks start in one order, on a group of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "capi/handle.h"
#include "capi/slipstream.h"
#include "tensorflow/ticket.h"

namespace slipstream::tensorflow {

// The group of a line, of the job as it is now: a new reference. Throws Failure. A line is known by its text, which
// means the same in every process: graphs are saved, and loaded by others.
using Finder = slipstream_group* (*)(const std::string& line);

// Starts tickets in their order. What a form (shapes, dtypes, arguments) is, the ranks compare when it is met for the
// first time: if they differ, all of them fail the operation, and the next ones go on. Later the engine
// compares operations by what they are called, and ends the job if that differs.
class Line {
 public:
  Line(std::string name, Finder find) : name_(std::move(name)), find_(find) {}
  Line(const Line&) = delete;

  // Any thread. Never waits for other ranks.
  void start(std::shared_ptr<Ticket> ticket);
  // The process has left the job.
  void forget();

 private:
  struct Question;
  // What a ticket is to be told once the lock is free: whoever waits for it goes on in this thread, and may start
  // others.
  struct Ended {
    std::shared_ptr<Ticket> ticket;
    size_t call;     // kNone: it was not started
    int32_t status;  // as slipstream.h numbers them
    std::string text;
  };
  static constexpr size_t kNone = SIZE_MAX;

  static void answered(void* user, int32_t status, const char* text);
  void take(Question& question, int32_t status, const char* text);
  void go_on(std::vector<Ended>& ended);
  void renew();
  void ask(const std::shared_ptr<Ticket>& ticket);
  void begin(const std::shared_ptr<Ticket>& ticket, std::vector<Ended>& ended);
  static void tell(const std::vector<Ended>& ended);

  const std::string name_;
  const Finder find_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Ticket>> waiting_;
  bool asking_ = false;  // about the form of the first one
  slipstream_group* group_ = nullptr;
  std::unordered_set<std::string> agreed_;  // forms, of this group
};

// The line of this name; made at the first call.
Line& line_of(const std::string& name, Finder find);
// Harmless if there is none.
void forget_line(const std::string& name);

}  // namespace slipstream::tensorflow
