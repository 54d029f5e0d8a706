// Whether the session has ended, and which ranks still have to be told why. Driver's thread only.
//
// A closed connection proves no failure yet: the rank at its other end may have died, or may have closed it because of
// an error of another rank. In that case the abort of that rank arrives soon.
#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "engine/fabric.h"

namespace slipstream {

class FailureState {
 public:
  // `spreads`: ranks without a link to this one are told, too.
  FailureState(int rank, Fabric& fabric, bool spreads) : rank_(rank), spreads_(spreads), fabric_(fabric) {}

  bool ended() const { return ended_; }

  // The session fails with `error` at `due`, unless it ends for another reason before. The first suspicion stays.
  void suspect(const Error& error, Time due);
  bool suspects() const { return static_cast<bool>(suspicion_); }
  const Error& suspicion() const { return suspicion_; }
  Time suspicion_due() const { return suspicion_due_; }

  // Ends the session: tells every linked rank, and notes which of `concerned`, the ranks that run or will run one of
  // the failed works, have to be told later.
  void fail(const Error& error, const std::set<int>& concerned);
  // Ends the session in good order: says goodbye to every linked rank, and tells them the `reason`.
  void leave(const std::string& reason);

  // True while a rank still has to be told.
  bool must_tell() const { return !reason_.empty() && (fabric_.connecting() || !untold_.empty()); }
  // After the end: a link has come up. Tells the rank, and closes the link.
  void tell(Link& link);
  // After the end: the rank asks for a link.
  void dial_back(int rank);
  // The rank cannot be told, or knows.
  void forget(int rank) { untold_.erase(rank); }

 private:
  Error as_told(Error error) const;
  // The last frame of a link, with reason_ or goodbye_.
  WorkHeader last_frame() const;
  void spread(const Error& error);

  int rank_;
  bool spreads_;
  Fabric& fabric_;
  bool ended_ = false;
  Error suspicion_;
  Time suspicion_due_{};
  std::vector<std::byte> reason_;  // encoded, for links that come up after the failure
  std::string goodbye_;            // what is said to those that come up after the rank has left in good order
  std::set<int> untold_;           // ranks that have had no link to this one since before the failure
};

}  // namespace slipstream
