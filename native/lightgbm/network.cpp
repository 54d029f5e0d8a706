#include "lightgbm/network.h"

#include <cstring>
#include <exception>
#include <utility>

#include "capi/handle.h"

namespace slipstream::lightgbm {

namespace {

slipstream_call call_of(int32_t collective, const char* name, const void* src, void* dst) {
  slipstream_call call;
  slipstream_call_init(&call, collective);
  call.dtype = SLIPSTREAM_U8;
  call.name = name;
  call.src = src;
  call.dst = dst;
  return call;
}

}  // namespace

Network::Network(slipstream_group* group, capi::Pause pause) : group_(group), pause_(std::move(pause)) {}
Network::~Network() { capi::release(group_); }

size_t Network::rank() const { return static_cast<size_t>(group_->group->rank); }

// Each rank gets all ranks' versions of its block, and adds them in the order of the ranks. So the result is the same
// in every run, whatever LightGBM's elements are; and a rank sends what it would in any other reduce-scatter: all
// blocks but its own.
bool Network::reduce_scatter(const char* input, int type_size, const Layout& blocks, char* output, Reducer add) {
  return guarded([&] {
    take(blocks);
    const size_t ranks = sizes_.size(), mine = sizes_[rank()];
    if (room_.size() < mine * ranks) room_.resize(mine * ranks);
    same_.assign(ranks, mine);
    slipstream_call call = call_of(SLIPSTREAM_ALL_TO_ALL, "LightGBM: reduce-scatter", input, room_.data());
    call.counts = sizes_.data();
    call.recv_counts = same_.data();
    capi::run(*group_, call, pause_);
    if (mine == 0) return;
    auto* const first = reinterpret_cast<char*>(room_.data());
    for (size_t other = 1; other < ranks; ++other)
      add(first + other * mine, first, type_size, static_cast<int32_t>(mine));
    std::memcpy(output, first, mine);
  });
}

bool Network::all_gather(const char* input, const Layout& blocks, char* output) {
  return guarded([&] {
    take(blocks);
    // In its place in the result the block needs no other copy.
    char* place = output + blocks.starts[rank()];
    std::memmove(place, input, sizes_[rank()]);
    slipstream_call call = call_of(SLIPSTREAM_ALL_GATHER, "LightGBM: all-gather", place, output);
    call.counts = sizes_.data();
    capi::run(*group_, call, pause_);
  });
}

void Network::end(const std::string& why) {
  group_->session->abort("rank " + std::to_string(group_->session->options().rank) +
                         " aborted the job: its training by LightGBM ended: " + why);
}

// A failure of the job is known to all ranks already.
template <class F>
bool Network::guarded(F operation) {
  used_ = true;
  if (failure_) return false;
  try {
    operation();
    return true;
  } catch (const Failure& failure) {
    failure_ = failure.error();
  } catch (const std::exception& error) {
    failure_ = {Code::internal, -1, {}, error.what()};
  }
  try {
    if (failure_.code == Code::invalid || failure_.code == Code::internal) end(failure_.text);
  } catch (const Failure&) {  // this process is a forked child: it is no rank
  }
  return false;
}

// Keeps the sizes of the blocks, which follow each other: LightGBM makes no others.
void Network::take(const Layout& blocks) {
  if (static_cast<size_t>(blocks.count) != group_->group->ranks.size())
    throw Failure(Code::invalid, "LightGBM asked for " + std::to_string(blocks.count) +
                                     " blocks in a group of another number of ranks");
  sizes_.clear();
  int64_t begin = 0;
  for (int i = 0; i < blocks.count; ++i) {
    if (blocks.starts[i] != begin || blocks.lengths[i] < 0)
      throw Failure(Code::invalid, "slipstream cannot take LightGBM's blocks: one begins at " +
                                       std::to_string(blocks.starts[i]) + ", not " + std::to_string(begin));
    sizes_.push_back(static_cast<uint64_t>(blocks.lengths[i]));
    begin += blocks.lengths[i];
  }
}

}  // namespace slipstream::lightgbm
