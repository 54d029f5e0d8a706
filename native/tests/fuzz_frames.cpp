// What ranks say to each other once they are let in, under a fuzzer.
#include "tests/fuzz_main.h"
#include "tests/fuzz_targets.h"

SLIPSTREAM_FUZZ_TARGET(slipstream::fuzz::fuzz_frames)
