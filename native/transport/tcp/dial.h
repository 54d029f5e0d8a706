// Connects to one of several addresses of a rank and proves who we are. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "transport/handshake.h"
#include "transport/tcp/connection.h"
#include "transport/tcp/core.h"

namespace slipstream {

struct DialTerms {
  double limit = 0;                 // seconds that all of it takes at most; 0: as options.connect_seconds says
  double delay = 0;                 // seconds before the first attempt
  int segment = 0;                  // as for connect_tcp()
  std::vector<std::string> proven;  // addresses at which the peer has been met
};

class Dial final : private Handler, private Timed {
 public:
  using Target = TcpTarget;
  struct Result {
    Connection connection;  // empty on failure
    std::string address;    // the one that answered
    Error error;
    bool gone = false;     // nobody listens there any more, or somebody else does
    bool lacking = false;  // the peer listens, and has no such link any more
  };
  // Called once, never from the constructor; may delete the Dial.
  using Done = std::function<void(Result)>;
  // Seconds that a silent address gets while there are others that have not been tried.
  static constexpr double kImpatience = 1;

  // For a link, and to knock, it goes on until the limit unless the peer's machine says that nobody listens there: a
  // route that is missing, or an address that is silent, may come back. Bulk lanes have other paths. They go on only
  // while there is silence.
  //
  // Where the peer has been met, and does not answer, a request follows another one in a quarter of a second: TCP alone
  // repeats its request after 1, 3 and 7 s, too late for a network that comes back at the end of the heartbeat. Earlier
  // requests may still be answered, for round trips are longer than that where queues are long.
  Dial(std::shared_ptr<TcpCore> core, Target target, Purpose purpose, uint32_t lane, uint64_t token, Done done,
       DialTerms terms = {});
  ~Dial() override;

  // Why the last attempt failed; empty before that.
  const std::string& trouble() const { return error_.text; }
  int segment() const { return segment_; }

 private:
  enum class Phase { pause, connecting, greeting };

  // A request for a connection that is not the latest one.
  struct Request {
    Fd fd;
    size_t index;  // of its address
    Time until;
  };

  void ready(uint32_t events) override;
  void due(Time now) override;
  void try_next();
  void keep_request(Time now);
  void look_at_earlier();
  void forget_earlier(Time before = Time::max());
  void connected();
  void begin_greeting();
  void greet();
  enum class Why { transient, silent, dropped, nobody, stranger, ours, lacking };
  void refused_by_handshake();
  void unreachable(int error);
  void attempt_failed(Why why, const std::string& how);
  bool round_failed();
  void start_round();
  void finish(Result result);
  void let_go();
  bool impatient() const;
  bool met() const { return purpose_ == Purpose::lane || !proven_.empty(); }
  bool hurries() const { return lasting_ && met(); }
  bool proven(size_t index) const;
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
  size_t index_ = 0;     // the address that is being tried
  int rounds_ = 0;       // before this one
  int strange_ = 0;      // handshakes that failed although the stream did not end
  int silences_ = 0;     // handshakes that got no answer
  bool silent_ = false;  // the last attempt ended without an answer
  bool again_ = false;   // this round had a connection that was dropped, which may be bad luck
  bool hope_ = false;    // this round had an address that may answer later
  bool gone_ = false;    // an address at which the peer has been met says that nobody listens there
  const bool lasting_;
  const std::vector<std::string> proven_;
  const int segment_;
  Fd fd_;
  std::vector<Request> earlier_;
  Time greet_until_{};
  Handshake handshake_;
  Error error_;  // the most telling one so far
};

}  // namespace slipstream
