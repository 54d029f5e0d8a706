// The functions of slipstream.h, and what becomes of exceptions: C has none.
#include "capi/table.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <string>

#include "capi/calls.h"
#include "capi/handle.h"
#include "kernels/kernels.h"

namespace slipstream::capi {

namespace {

struct LastError {
  std::string text;
  int32_t rank = -1;
};

LastError& last() {
  thread_local LastError error;
  return error;
}

int32_t failed(const Error& error) noexcept {
  try {
    last() = {error.text, error.rank};
  } catch (...) {  // no memory for a text
    last().text.clear();
    last().rank = -1;
  }
  return static_cast<int32_t>(error.code == Code::ok ? Code::internal : error.code);
}

int32_t failed(Code code, const char* text) noexcept {
  try {
    return failed(Error{code, -1, {}, text});
  } catch (...) {
    return static_cast<int32_t>(code);
  }
}

template <class F>
int32_t guarded(F f) noexcept {
  try {
    f();
    return SLIPSTREAM_OK;
  } catch (const Failure& failure) {
    return failed(failure.error());
  } catch (const std::bad_alloc&) {
    return failed(Code::internal, "out of memory");
  } catch (const std::exception& error) {
    return failed(Code::internal, error.what());
  }
}

template <class T>
T& given(T* pointer, const char* what) {
  if (pointer == nullptr) throw Failure(Code::invalid, std::string(what) + " is NULL");
  return *pointer;
}

int32_t group_world(slipstream_group** group) {
  return guarded([&] { given(group, "group") = find_group(0); });
}
int32_t group_by_id(uint64_t id, slipstream_group** group) {
  return guarded([&] { given(group, "group") = find_group(id); });
}
int32_t group_make(const int32_t* ranks, uint32_t n, slipstream_group** group) {
  return guarded([&] {
    given(ranks, "ranks");
    given(group, "group") = make_group(ranks, n);
  });
}
void group_retain(slipstream_group* group) { retain(group); }
void group_release(slipstream_group* group) { release(group); }
uint64_t group_id(const slipstream_group* group) { return group->group->id; }
int32_t group_rank(const slipstream_group* group) { return group->group->rank; }
int32_t group_size(const slipstream_group* group) { return static_cast<int32_t>(group->group->ranks.size()); }
int32_t group_ranks(const slipstream_group* group, int32_t* ranks) {
  return guarded([&] {
    int32_t* place = &given(ranks, "ranks");
    for (const int rank : given(group, "group").group->ranks) *place++ = rank;
  });
}

int32_t table_submit(slipstream_group* group, const slipstream_call* call, slipstream_done done, void* user) {
  return guarded([&] { submit(given(group, "group"), given(call, "call"), done, user); });
}
int32_t table_begin(slipstream_group* group, const slipstream_call* call, slipstream_work** work) {
  return guarded([&] { given(work, "work") = begin(given(group, "group"), given(call, "call")); });
}
int32_t table_run(slipstream_group* group, const slipstream_call* call) {
  return guarded([&] { run(given(group, "group"), given(call, "call")); });
}

int32_t work_wait(slipstream_work* work, double limit) {
  bool pending = false;
  const int32_t status = guarded([&] {
    Work& one = *given(work, "work").work;
    const Time until = limit < 0 ? Time::max() : now() + seconds(std::min(limit, 1e9));
    if (!one.done() && (limit == 0 || !work->session->wait(one, until))) {
      pending = !one.done();
      if (pending) return;
    }
    if (one.error()) throw Failure(one.error());
  });
  return pending ? SLIPSTREAM_PENDING : status;
}
int32_t work_test(slipstream_work* work) { return work_wait(work, 0); }
void work_free(slipstream_work* work) { delete work; }

const char* last_error() { return last().text.c_str(); }
int32_t last_error_rank() { return last().rank; }

int32_t abort_job(slipstream_group* group, const char* reason) {
  return guarded([&] { given(group, "group").session->abort(&given(reason, "reason")); });
}
size_t dtype_bytes(int32_t dtype) { return dtype < 0 || dtype >= kDTypes ? 0 : size_of(static_cast<DType>(dtype)); }
int32_t reduces(int32_t dtype, int32_t op) {
  if (dtype < 0 || dtype >= kDTypes || op < 0 || op >= kOps) return 0;
  return reduce_fn(static_cast<DType>(dtype), static_cast<Op>(op)) != nullptr ? 1 : 0;
}

constexpr slipstream_api kTable = {
    SLIPSTREAM_API_VERSION,
    sizeof(slipstream_api),
    group_world,
    group_by_id,
    group_make,
    group_retain,
    group_release,
    group_id,
    group_rank,
    group_size,
    group_ranks,
    table_submit,
    table_begin,
    table_run,
    work_wait,
    work_test,
    work_free,
    last_error,
    last_error_rank,
    abort_job,
    dtype_bytes,
    reduces,
};

// The codes are the engine's, so that nothing has to be translated.
static_assert(SLIPSTREAM_PEER_LOST == static_cast<int>(Code::peer_lost));
static_assert(SLIPSTREAM_TIMEOUT_ERROR == static_cast<int>(Code::timeout));
static_assert(SLIPSTREAM_INTERNAL == static_cast<int>(Code::internal));
static_assert(SLIPSTREAM_Q8 == static_cast<int>(DType::q8) && SLIPSTREAM_Q8 + 1 == kDTypes);
static_assert(SLIPSTREAM_BXOR == static_cast<int>(Op::bxor) && SLIPSTREAM_BXOR + 1 == kOps);
static_assert(SLIPSTREAM_WIRE_INT8 == static_cast<int>(WireType::int8) && SLIPSTREAM_WIRE_INT8 + 1 == kWireTypes);
static_assert(SLIPSTREAM_BARRIER == static_cast<int>(CollectiveKind::barrier));

}  // namespace

const slipstream_api* table(uint32_t version) { return version == SLIPSTREAM_API_VERSION ? &kTable : nullptr; }

}  // namespace slipstream::capi
