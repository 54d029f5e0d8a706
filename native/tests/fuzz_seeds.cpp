// fuzz_seeds frames|handshake FOLDER: writes the inputs that the fuzz target begins with.
#include "tests/fuzz_seeds.h"

#include <cstdio>
#include <filesystem>
#include <fstream>

int main(int argc, char** argv) {
  const std::string target = argc == 3 ? argv[1] : "";
  if (target != "frames" && target != "handshake") {
    std::fprintf(stderr, "usage: fuzz_seeds frames|handshake FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = argv[2];
  std::filesystem::create_directories(folder);
  const auto seeds =
      target == "frames" ? slipstream::fuzz::seeds_for_frames() : slipstream::fuzz::seeds_for_handshake();
  for (const auto& [name, bytes] : seeds) {
    std::ofstream file(folder / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) {
      std::fprintf(stderr, "cannot write %s\n", name.c_str());
      return 1;
    }
  }
  return 0;
}
