// Connects to one of several addresses of a rank and proves who we are. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/handshake.h"
#include "transport/tcp_core.h"

namespace slipstream {

class Dial final : private Handler, private Timed {
 public:
  using Target = TcpTarget;
  struct Result {
    Fd fd;                // empty on failure
    std::string address;  // the one that answered
    Error error;
  };
  // Called once, never from the constructor; may delete the Dial.
  using Done = std::function<void(Result)>;
  // Seconds that a silent address gets while there are others that have not been tried.
  static constexpr double kImpatience = 1;

  // All of it takes at most `limit` seconds; 0: as options.connect_seconds says.
  Dial(std::shared_ptr<TcpCore> core, Target target, Purpose purpose, uint32_t lane, uint64_t token, Done done,
       double limit = 0);
  ~Dial() override;

 private:
  enum class Phase { pause, connecting, greeting };

  void ready(uint32_t events) override;
  void due(Time now) override;
  void try_next();
  void connected();
  void greet();
  void attempt_failed(Code code, const std::string& how);
  void finish(Result result);
  void let_go();
  bool impatient() const;
  Time attempt_deadline(Time now) const;
  std::string who() const;

  std::shared_ptr<TcpCore> core_;
  Target target_;
  Purpose purpose_;
  uint32_t lane_;
  uint64_t token_;
  Done done_;
  Time deadline_;
  Phase phase_ = Phase::pause;
  size_t index_ = 0;  // the address that is being tried
  int rounds_left_;
  bool again_ = false;  // this round had a connection that was dropped, which may be bad luck
  Fd fd_;
  Handshake handshake_;
  Error error_;  // the most telling one so far
};

}  // namespace slipstream
