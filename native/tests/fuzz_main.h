// The entry of a fuzz target: SLIPSTREAM_FUZZ_TARGET(function of bytes). libFuzzer brings the main program; without it
// the program runs each file named on its command line, to repeat what a fuzzer has found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#define SLIPSTREAM_FUZZ_TARGET(function)                         \
  int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) { \
    function(std::as_bytes(std::span(data, size)));              \
    return 0;                                                    \
  }

#ifndef SLIPSTREAM_LIBFUZZER
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "cannot read %s\n", argv[i]);
      return 1;
    }
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    (void)LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  }
  return 0;
}
#endif
