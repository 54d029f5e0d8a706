// All that is fuzzed, as two functions of bytes.
#pragma once

#include "tests/fuzz_engine.h"
#include "tests/fuzz_frames.h"
#include "tests/fuzz_handshake.h"
#include "tests/fuzz_inbox.h"
#include "tests/fuzz_link.h"
#include "tests/fuzz_records.h"
#include "tests/fuzz_shm.h"

namespace slipstream::fuzz {

// What `fuzz_frames` does with an input; its first byte chooses.
enum class Parser : uint8_t { reader, control, bulk, inbox, link, engine, error, shm, records };
inline constexpr uint8_t kParsers = 9;

// Whoever has proved that he is a rank of the job may still send anything.
inline void fuzz_frames(std::span<const std::byte> bytes) {
  Input input(bytes);
  switch (static_cast<Parser>(input.below(kParsers))) {
    case Parser::reader: {
      const size_t step = input.byte();
      return rig::fuzz_reader(input.rest(), step);
    }
    case Parser::control:
      return rig::FuzzedLink().feed(input.rest(), false);
    case Parser::bulk:
      return rig::FuzzedLink().feed(input.rest(), true);
    case Parser::inbox:
      return fuzz_inbox(input);
    case Parser::link:
      return fuzz_link(input);
    case Parser::engine:
      return fuzz_engine(input);
    case Parser::error:
      return fuzz_error(input);
    case Parser::shm:
      return fuzz_shm(input);
    case Parser::records:
      return fuzz_records(input);
  }
}

}  // namespace slipstream::fuzz
