// How the bytes of an all-reduce are split between reducers and the workers' own ring. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace slipstream {

// How long an all-reduce of M bytes takes beside reducers, relative to M/B. B: the rate of a worker's link; `rate`: of
// all reducers' links together, relative to B. With n workers, and S for `rate`:
//
//     t = 2 n (n - 1) / (n^2 + n S - 2 S)    for S < n; else 1
double relative_time(int workers, double rate);

// The parts of the bytes that let all be done at the same time, 1 in all: the ring's (first), and each reducer's, which
// is t rate / n. For S >= n nothing is left for the ring. For equal rates this is BytePS's optimum (docs/reducers.md).
// `rates`: of each reducer's link, relative to a worker's; 0 for one that is not there.
std::vector<double> fractions_of(int workers, std::span<const double> rates);

// The same in 1/65536.
std::vector<uint32_t> shares_of(int workers, std::span<const double> rates);

}  // namespace slipstream
