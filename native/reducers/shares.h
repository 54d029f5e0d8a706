// How the bytes of an all-reduce are split between reducers and the workers' own ring. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace slipstream {

// The fractions of the ring (first) and of each reducer, in 1/65536, that let all be done at the same time.
//
// `rates`: of each reducer's link, relative to a worker's; 0 for one that is not there. With n workers, S the sum of
// the rates, t the time relative to M/B: each reducer takes t rate / n of the bytes, and
//
//     t = 2 n (n - 1) / (n^2 + n S - 2 S)    for S < n; else 1, and nothing is left for the ring
//
// which for equal rates is BytePS's optimum (docs/reducers.md).
std::vector<uint32_t> shares_of(int workers, std::span<const double> rates);

}  // namespace slipstream
