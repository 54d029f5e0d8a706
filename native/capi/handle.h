// What C holds of a group.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "capi/kept.h"
#include "capi/prepared.h"
#include "session/session.h"

// The names of the header are C's.
struct slipstream_group {
  slipstream_group(std::shared_ptr<slipstream::Session> of, std::shared_ptr<const slipstream::Group> members,
                   std::unique_ptr<slipstream::capi::Maker> from)
      : session(std::move(of)), group(std::move(members)), maker(std::move(from)) {}

  const std::shared_ptr<slipstream::Session> session;
  const std::shared_ptr<const slipstream::Group> group;
  const std::unique_ptr<slipstream::capi::Maker> maker;
  slipstream::capi::Kept kept;
  std::byte token{};  // what a barrier reduces, of this group alone
  // From a work's number to its submission: the engine gets the works of a channel in their order. Nothing enters
  // Python meanwhile, as whoever holds its lock may wait for this one.
  std::mutex order;
  std::atomic<uint32_t> references{1};
};

struct slipstream_work {
  std::shared_ptr<slipstream::Session> session;
  slipstream::WorkPtr work;
};

namespace slipstream::capi {

// Groups by their ids, and the world. Any thread.
//
// A finder makes the handle of a group that is not known; id 0: the world of the process's job. It returns a new
// reference, or throws Failure.
using Finder = slipstream_group* (*)(uint64_t id);
// A group of these ranks of the world, which all of them make now.
using GroupMaker = slipstream_group* (*)(const int32_t* ranks, uint32_t n);
void set_finders(Finder finder, GroupMaker group_maker);

// The handle of the group: the one that is there, or one with what `make` returns. A new reference.
slipstream_group* handle_of(const std::shared_ptr<Session>& session, const std::shared_ptr<const Group>& group,
                            std::unique_ptr<Maker> maker);
slipstream_group* find_group(uint64_t id);
slipstream_group* make_group(const int32_t* ranks, uint32_t n);
void retain(slipstream_group* group);
void release(slipstream_group* group);
// The group's plans have changed. Harmless if nobody has its handle.
void forget_kept(uint64_t id);
// The process has left this group's job: it is the world no more.
void forget_world(uint64_t id);

}  // namespace slipstream::capi
