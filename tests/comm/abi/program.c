/* What a third party compiles: against slipstream.h as it was when version 1 was new. Nothing is linked. */
#include HEADER

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #field " has moved")

/* Of x86-64 and AArch64: what programs that are compiled already take for granted. */
AT(slipstream_call, struct_bytes, 0);
AT(slipstream_call, collective, 4);
AT(slipstream_call, src, 8);
AT(slipstream_call, dst, 16);
AT(slipstream_call, count, 24);
AT(slipstream_call, counts, 32);
AT(slipstream_call, recv_counts, 40);
AT(slipstream_call, dtype, 48);
AT(slipstream_call, op, 52);
AT(slipstream_call, root, 56);
AT(slipstream_call, tag, 60);
AT(slipstream_call, wire, 64);
AT(slipstream_call, urgency, 68);
AT(slipstream_call, prescale, 72);
AT(slipstream_call, postscale, 80);
AT(slipstream_call, timeout, 88);
AT(slipstream_call, name, 96);
_Static_assert(sizeof(slipstream_call) == 104, "slipstream_call has another size");
AT(slipstream_api, version, 0);
AT(slipstream_api, bytes, 4);
AT(slipstream_api, group_world, 8);
AT(slipstream_api, group_by_id, 16);
AT(slipstream_api, group_make, 24);
AT(slipstream_api, group_retain, 32);
AT(slipstream_api, group_release, 40);
AT(slipstream_api, group_id, 48);
AT(slipstream_api, group_rank, 56);
AT(slipstream_api, group_size, 64);
AT(slipstream_api, group_ranks, 72);
AT(slipstream_api, submit, 80);
AT(slipstream_api, begin, 88);
AT(slipstream_api, run, 96);
AT(slipstream_api, work_wait, 104);
AT(slipstream_api, work_test, 112);
AT(slipstream_api, work_free, 120);
AT(slipstream_api, last_error, 128);
AT(slipstream_api, last_error_rank, 136);
AT(slipstream_api, abort, 144);
AT(slipstream_api, dtype_bytes, 152);
AT(slipstream_api, reduces, 160);
_Static_assert(sizeof(slipstream_api) >= 168, "slipstream_api has lost functions");

/* NULL, or why the table cannot be used. */
const char* problem(const slipstream_api* api) { return slipstream_api_problem(api); }

/* The sum of what all ranks give, or -1. */
double sum_over_ranks(const slipstream_api* api, double mine) {
  slipstream_group* world = NULL;
  slipstream_work* work = NULL;
  slipstream_call call;
  double total = -1;
  if (slipstream_api_problem(api) != NULL || api->group_world(&world) != SLIPSTREAM_OK) return -1;
  slipstream_call_init(&call, SLIPSTREAM_ALL_REDUCE);
  call.src = &mine;
  call.dst = &total;
  call.count = 1;
  call.dtype = SLIPSTREAM_F64;
  if (api->begin(world, &call, &work) != SLIPSTREAM_OK || api->work_wait(work, -1) != SLIPSTREAM_OK) total = -1;
  api->work_free(work);
  api->group_release(world);
  return total;
}
