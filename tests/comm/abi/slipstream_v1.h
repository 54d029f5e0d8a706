/* slipstream's C interface, version 1: collectives of a running job, for code that is not Python.
 *
 * The package has the table of functions; nothing is linked. Get it in one of two ways:
 *   - Python gives it: the capsule `slipstream._core.c_api()`, whose name is SLIPSTREAM_API_CAPSULE;
 *   - dlopen() of the file `slipstream._core.__file__`, then dlsym("slipstream_get_api").
 * Then ask slipstream_api_problem() whether this header and the table fit together.
 *
 * The job is joined, and left, in Python (slipstream.init, slipstream.shutdown).
 *
 * Threads: every function may be called by any thread, with or without Python's lock (GIL). The table enters Python,
 * with the lock, only when it meets a kind of call for the first time, and in the few cases in which a rank must look
 * at each call (tuning, copies of results that are still to be made).
 *
 * Order: the n-th call on a group belongs to the n-th call on that group on all other ranks, from C and Python
 * together. So all ranks must make the calls of a group in one order. The calls of one thread have the order of its
 * program. Calls of several threads on one group have the order in which they enter submit(), begin() or run(), which
 * the program has to make the same on all ranks: by a lock, or by a group for each thread. Sends and receives are
 * numbered for each pair of ranks and each tag. Ranks that differ in what they call get SLIPSTREAM_MISMATCH.
 *
 * Memory: src and dst stay valid, and are left alone, until the operation is done. An operation waits until earlier
 * ones of its group on the same memory are done. counts and name are copied.
 *
 * Time: no call waits for ever. An operation ends with SLIPSTREAM_TIMEOUT_ERROR after `timeout` seconds, or after the
 * job's own limit (SLIPSTREAM_TIMEOUT in the environment).
 */
#ifndef SLIPSTREAM_H
#define SLIPSTREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the table. A later version of the package may append functions to it, and fields to slipstream_call; it never
 * changes what is here. If that should ever be necessary, the number changes, and this one goes on to be served. */
#define SLIPSTREAM_API_VERSION 1
#define SLIPSTREAM_API_CAPSULE "slipstream.c_api.v1"

/* What functions return, and done() gets. All errors but SLIPSTREAM_INVALID are the job's: it has failed, and later
 * calls return them as well. */
enum {
  SLIPSTREAM_OK = 0,
  SLIPSTREAM_PEER_LOST = 1, /* a rank has died, or has fallen silent */
  SLIPSTREAM_MISMATCH = 2,  /* ranks disagree about an operation */
  SLIPSTREAM_TIMEOUT_ERROR = 3,
  SLIPSTREAM_REFUSED = 4,
  SLIPSTREAM_ABORTED = 5,  /* a rank has ended the job's operations, or has left */
  SLIPSTREAM_INVALID = 6,  /* wrong arguments, or no job: nothing has been called */
  SLIPSTREAM_INTERNAL = 7, /* a bug, or no memory */
  SLIPSTREAM_PENDING = 8   /* of wait(): not done yet. No error */
};

enum {
  SLIPSTREAM_ALL_REDUCE = 1,
  SLIPSTREAM_REDUCE_SCATTER = 2,
  SLIPSTREAM_ALL_GATHER = 3,
  SLIPSTREAM_BROADCAST = 4,
  SLIPSTREAM_REDUCE = 5,
  SLIPSTREAM_GATHER = 6,
  SLIPSTREAM_SCATTER = 7,
  SLIPSTREAM_ALL_TO_ALL = 8,
  SLIPSTREAM_SEND = 9,
  SLIPSTREAM_RECV = 10,
  SLIPSTREAM_BARRIER = 11
};

enum {
  SLIPSTREAM_F64 = 0,
  SLIPSTREAM_F32 = 1,
  SLIPSTREAM_F16 = 2,
  SLIPSTREAM_BF16 = 3,
  SLIPSTREAM_F8E4M3 = 4, /* the "fn" kind, without infinities */
  SLIPSTREAM_F8E5M2 = 5,
  SLIPSTREAM_I8 = 6,
  SLIPSTREAM_I16 = 7,
  SLIPSTREAM_I32 = 8,
  SLIPSTREAM_I64 = 9,
  SLIPSTREAM_U8 = 10,
  SLIPSTREAM_U16 = 11,
  SLIPSTREAM_U32 = 12,
  SLIPSTREAM_U64 = 13,
  SLIPSTREAM_BOOL = 14, /* a byte, 0 or 1 */
  SLIPSTREAM_C64 = 15,
  SLIPSTREAM_C128 = 16,
  SLIPSTREAM_Q8 = 17 /* block-int8: an f32 scale and 64 int8 */
};

/* AVG divides the sum by the size of the group; integers truncate toward zero. */
enum {
  SLIPSTREAM_SUM = 0,
  SLIPSTREAM_PROD = 1,
  SLIPSTREAM_MIN = 2,
  SLIPSTREAM_MAX = 3,
  SLIPSTREAM_AVG = 4,
  SLIPSTREAM_BAND = 5,
  SLIPSTREAM_BOR = 6,
  SLIPSTREAM_BXOR = 7
};

/* As what f32 data travels between hosts. */
enum {
  SLIPSTREAM_WIRE_EXACT = 0,
  SLIPSTREAM_WIRE_BF16 = 1,
  SLIPSTREAM_WIRE_F16 = 2,
  SLIPSTREAM_WIRE_F8 = 3,
  SLIPSTREAM_WIRE_INT8 = 4
};

/* Ranks that communicate. Counted references. */
typedef struct slipstream_group slipstream_group;
/* An operation that begin() has begun. */
typedef struct slipstream_work slipstream_work;

/* One operation. Set all of it to 0 first, then what is not 0: use slipstream_call_init().
 *
 *   collective     reads at src             writes at dst            count
 *   ALL_REDUCE     count                    count                    of each rank
 *   REDUCE_SCATTER count * ranks            count                    of the block that a rank gets
 *   ALL_GATHER     count                    count * ranks            of the block that a rank gives
 *   BROADCAST      count, on the root       count                    of all
 *   REDUCE         count                    count; scratch but on    of each rank
 *                                           the root
 *   GATHER         count                    count * ranks on the     of the block that a rank gives
 *                                           root
 *   SCATTER        count * ranks on the     count                    of the block that a rank gets
 *                                           root
 *   ALL_TO_ALL     count * ranks            count * ranks            of the block for one rank
 *   SEND           count                    -                        of the message
 *   RECV           -                        count                    of the message
 *   BARRIER        -                        -                        -
 *
 * With `counts`, which has one number for each rank, the blocks of REDUCE_SCATTER, ALL_GATHER, GATHER, SCATTER and
 * ALL_TO_ALL are of different lengths, and count is not read. ALL_TO_ALL also needs recv_counts: counts[r] elements go
 * to rank r, and recv_counts[r] come from it. src == dst is in place, where both have the same length; ALL_GATHER and
 * GATHER may read this rank's block in its place in dst, and SCATTER may write it in its place in src. Any other
 * overlap is SLIPSTREAM_INVALID.
 */
typedef struct slipstream_call {
  uint32_t struct_bytes; /* sizeof(slipstream_call) */
  int32_t collective;
  const void* src;
  void* dst;
  uint64_t count; /* elements */
  const uint64_t* counts;
  const uint64_t* recv_counts;
  int32_t dtype;
  int32_t op;       /* of ALL_REDUCE, REDUCE_SCATTER and REDUCE */
  int32_t root;     /* of BROADCAST, REDUCE, GATHER and SCATTER; the other rank of SEND and RECV */
  int32_t tag;      /* of SEND and RECV */
  int32_t wire;     /* of f32 in ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER and ALL_TO_ALL */
  int32_t urgency;  /* of ALL_REDUCE: those with more go before those with less */
  double prescale;  /* factor of every rank's input, of ALL_REDUCE, REDUCE_SCATTER and REDUCE */
  double postscale; /* factor of the result */
  double timeout;   /* seconds; 0: the job's */
  const char* name; /* what errors and the timeline call it, the same on all ranks; NULL: nothing */
} slipstream_call;

/* Called once when an operation is done, by one of slipstream's completion threads. There are at least two of them,
 * and none moves data, so that done() may take its time, and may call operations and wait for them. `message`: for
 * people, only during the call; "" if status is SLIPSTREAM_OK. */
typedef void (*slipstream_done)(void* user, int32_t status, const char* message);

typedef struct slipstream_api {
  uint32_t version;
  uint32_t bytes; /* of this table, as the package has it */

  /* Groups. Each gives a new reference, for group_release(). */
  int32_t (*group_world)(slipstream_group** group);              /* all ranks of the job of slipstream.init() */
  int32_t (*group_by_id)(uint64_t id, slipstream_group** group); /* `slipstream.Group.id`; 0: the world */
  /* The group of these ranks of the world, as slipstream.Group makes it: all members call it, no other rank. */
  int32_t (*group_make)(const int32_t* ranks, uint32_t n, slipstream_group** group);
  void (*group_retain)(slipstream_group* group);
  void (*group_release)(slipstream_group* group); /* NULL is allowed */
  uint64_t (*group_id)(const slipstream_group* group);
  int32_t (*group_rank)(const slipstream_group* group); /* of this process, in the group */
  int32_t (*group_size)(const slipstream_group* group);
  int32_t (*group_ranks)(const slipstream_group* group, int32_t* ranks); /* in the world; room for group_size() */

  /* Operations. If one of these returns anything but SLIPSTREAM_OK, nothing was begun, and done() is not called. */
  int32_t (*submit)(slipstream_group* group, const slipstream_call* call, slipstream_done done, void* user);
  int32_t (*begin)(slipstream_group* group, const slipstream_call* call, slipstream_work** work);
  /* Runs it to its end in this thread, which is the quickest way for few bytes. Returns its error. */
  int32_t (*run)(slipstream_group* group, const slipstream_call* call);

  /* The operation's error, or SLIPSTREAM_PENDING after so many seconds; less than 0: waits for its end. */
  int32_t (*work_wait)(slipstream_work* work, double seconds);
  int32_t (*work_test)(slipstream_work* work); /* as work_wait(work, 0) */
  void (*work_free)(slipstream_work* work);    /* the operation goes on. NULL is allowed */

  /* Of the error that a function has returned in this thread most recently: what it says, to be read before the next
   * call; and the rank that it names, -1 if none. */
  const char* (*last_error)(void);
  int32_t (*last_error_rank)(void);

  /* Ends the job's operations on all ranks: they return SLIPSTREAM_ABORTED with this reason. */
  int32_t (*abort)(slipstream_group* group, const char* reason);
  /* Bytes of an element; 0 if there is no such dtype. */
  size_t (*dtype_bytes)(int32_t dtype);
  /* Whether `op` is defined for this dtype. */
  int32_t (*reduces)(int32_t dtype, int32_t op);
} slipstream_api;

/* The table, or NULL if the package does not serve this version. For dlsym(). */
typedef const slipstream_api* (*slipstream_get_api_function)(uint32_t version);
#define SLIPSTREAM_GET_API "slipstream_get_api"

/* NULL if this table has all that is declared here; else why it cannot be used. */
static inline const char* slipstream_api_problem(const slipstream_api* api) {
  if (api == NULL) return "this slipstream does not serve version 1 of the C interface: install another release";
  if (api->version != SLIPSTREAM_API_VERSION)
    return "the table is not of version 1 of slipstream's C interface: compile against the header of this release";
  if (api->bytes < sizeof(slipstream_api))
    return "this slipstream is older than the slipstream.h that the program was compiled with, and lacks functions: "
           "update slipstream";
  return NULL;
}

static inline void slipstream_call_init(slipstream_call* call, int32_t collective) {
  memset(call, 0, sizeof *call);
  call->struct_bytes = (uint32_t)sizeof(slipstream_call);
  call->collective = collective;
  call->prescale = 1.0;
  call->postscale = 1.0;
}

#ifdef __cplusplus
}
#endif

#endif
