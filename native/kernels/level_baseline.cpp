// What every processor of the architecture has: SSE2 on x86-64, NEON on aarch64.
#define SLIPSTREAM_TABLE kBaselineTable
#include "kernels/level.inl"
