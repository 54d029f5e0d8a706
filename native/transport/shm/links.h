// The shared-memory links of a rank, and which of them a turn looks at. Private to this folder.
//
// With few ranks on the host, it looks at all. With many, it looks at the links of those that have left a mark at the
// bell (see there), at those that hold more than it took in the last turn, and at those that have just come up.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "transport/bell.h"

namespace slipstream {

class ShmLink;

class ShmLinks {
 public:
  explicit ShmLinks(Bell& bell) : bell_(bell) {}

  // `ranks` of this host, this one too. Before the first link, and before anybody gets the bell.
  void expect(size_t ranks);
  void add(ShmLink* link);
  void remove(ShmLink* link);
  // It has come up: its peer may have left a mark before, which is gone.
  void look_at(const ShmLink& link);
  // To be told when something of the link's may wait for room: a turn tries again until nothing does.
  void wait_for_room(ShmLink& link);

  // One turn; true if anything moved. A link may close meanwhile, and others may be added.
  bool poll();
  bool pending() const;
  bool congested() const;
  const std::vector<ShmLink*>& all() const { return all_; }

 private:
  bool poll_marked();
  bool poll_mark(size_t mark);

  Bell& bell_;
  std::vector<ShmLink*> all_;
  std::vector<ShmLink*> blocked_;  // that wait for room
  // If ranks leave marks: by mark, the links to look at once it is there. Else empty.
  std::vector<std::vector<ShmLink*>> of_mark_;
  std::array<uint64_t, Bell::kMarkWords> due_{};  // marks of links to look at although no mark may be there
};

}  // namespace slipstream
