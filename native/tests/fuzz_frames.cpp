// The frame parsers under a fuzzer. With clang: -fsanitize=fuzzer -DSLIPSTREAM_LIBFUZZER. Without it, a program that
// runs each file named on its command line through the parsers, to repeat what a fuzzer has found.
#include "tests/fuzz_frames.h"

#include <cstdio>
#include <fstream>
#include <iterator>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  slipstream::rig::fuzz_one(std::as_bytes(std::span(data, size)));
  return 0;
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
