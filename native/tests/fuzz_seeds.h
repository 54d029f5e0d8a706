// Inputs to begin with: what honest ranks say, and the scripts that lead far into a harness.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/fuzz_targets.h"

namespace slipstream::fuzz {

using Seed = std::pair<std::string, Bytes>;

template <class T>
void add(Bytes& to, const T& value) {
  const auto bytes = std::as_bytes(std::span(&value, 1));
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// One frame of every type, with the longest payload it may have and with none.
inline std::vector<Seed> frame_seeds() {
  std::vector<Seed> seeds;
  for (uint8_t type = 1; type <= kLastFrameType; ++type)
    for (const uint32_t length : {0u, type == 1 ? kEagerBytes : kMaxText}) {
      Frame frame;
      frame.type = static_cast<FrameType>(type);
      frame.length = type >= static_cast<uint8_t>(FrameType::taken) ? 0 : length;
      Bytes whole{std::byte{static_cast<uint8_t>(Parser::control)}};
      Bytes cut{std::byte{static_cast<uint8_t>(Parser::reader)}, std::byte{7}};
      for (Bytes* seed : {&whole, &cut}) {
        for (int twice = 0; twice < 2; ++twice) {
          add(*seed, frame);
          seed->resize(seed->size() + frame.length);
        }
      }
      const std::string name = std::to_string(type) + "-" + std::to_string(length);
      seeds.emplace_back("control-" + name, std::move(whole));
      seeds.emplace_back("reader-" + name, std::move(cut));
    }
  // A bulk message in two halves, the second one first.
  Bytes bulk{std::byte{static_cast<uint8_t>(Parser::bulk)}};
  Frame frame;
  frame.length = 32 << 10;
  for (const uint32_t offset : {16u << 10, 0u, 0u}) {
    add(bulk, SegmentHeader{frame, 1, offset, 16 << 10});
    bulk.resize(bulk.size() + (16 << 10));
  }
  seeds.emplace_back("bulk-halves", std::move(bulk));
  Bytes error{std::byte{static_cast<uint8_t>(Parser::error)}};
  const auto encoded = encode_error({Code::peer_lost, 3, "host", "rank 3 is gone"});
  error.insert(error.end(), encoded.begin(), encoded.end());
  seeds.emplace_back("error", std::move(error));
  return seeds;
}

// Choices for a harness, at random but always the same: a few hundred of them get everywhere now and then.
inline std::vector<Seed> script_seeds(const std::string& name, uint8_t choice, int count, size_t size) {
  std::vector<Seed> seeds;
  std::mt19937 random(choice + 1u);
  for (int i = 0; i < count; ++i) {
    Bytes seed{std::byte{choice}};
    for (size_t n = 1 + random() % size; n > 0; --n) seed.push_back(static_cast<std::byte>(random()));
    seeds.emplace_back(name + "-" + std::to_string(i), std::move(seed));
  }
  return seeds;
}

inline void append(std::vector<Seed>& to, std::vector<Seed> more) {
  std::move(more.begin(), more.end(), std::back_inserter(to));
}

// What fuzzers and readers have found, kept.
inline std::vector<Seed> found_seeds() {
  std::vector<Seed> seeds;
  // `ready` in the ring that names a region nobody has announced, and then the peer's end.
  Bytes unknown{std::byte{static_cast<uint8_t>(Parser::shm)}};
  for (const int choice : {0, 0, 0, 0, 0, 0, 1, 2, 0}) unknown.push_back(static_cast<std::byte>(choice));
  for (const uint64_t place : {9, 0, 8}) add(unknown, place);
  for (const int choice : {7, 3}) unknown.push_back(static_cast<std::byte>(choice));
  seeds.emplace_back("found-unknown-region", std::move(unknown));
  // A ring's first partial sum that is said to be in our memory already, and has no bytes.
  Bytes placed{std::byte{static_cast<uint8_t>(Parser::engine)}};
  for (const int choice : {0, 2, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0, 0, 0}) placed.push_back(static_cast<std::byte>(choice));
  seeds.emplace_back("found-placed-sum", std::move(placed));
  // The same of a ring's result that travels as bf16: nobody can have written what is to be decoded.
  Bytes encoded{std::byte{static_cast<uint8_t>(Parser::engine)}};
  for (const int choice : {0, 3, 1, 0, 5, 1, 5, 0, 0, 0, 2, 0, 3, 0, 0})
    encoded.push_back(static_cast<std::byte>(choice));
  seeds.emplace_back("found-placed-encoded", std::move(encoded));
  return seeds;
}

inline std::vector<Seed> seeds_for_frames() {
  std::vector<Seed> seeds = frame_seeds();
  append(seeds, found_seeds());
  const std::pair<const char*, Parser> scripts[] = {{"inbox", Parser::inbox},
                                                    {"link", Parser::link},
                                                    {"engine", Parser::engine},
                                                    {"shm", Parser::shm},
                                                    {"records", Parser::records}};
  for (const auto& [name, parser] : scripts) append(seeds, script_seeds(name, static_cast<uint8_t>(parser), 40, 600));
  return seeds;
}

inline std::vector<Seed> seeds_for_handshake() {
  std::vector<Seed> seeds;
  const char* const names[] = {"server", "server-again", "client", "door-shm", "door-tcp", "between"};
  for (uint8_t choice = 0; choice < 6; ++choice) append(seeds, script_seeds(names[choice], choice, 20, 300));
  Bytes hello{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{sizeof(Hello)}};  // all of it at once
  Hello good;
  good.target = 1;
  add(hello, good);
  seeds.emplace_back("hello", std::move(hello));
  // Two honest ends, and somebody who passes everything on: (from, to, pass on, all of it, unchanged).
  Bytes honest{std::byte{5}, std::byte{0}};
  for (int round = 0; round < 4; ++round)
    for (const auto& [from, to] : {std::pair{0, 2}, {2, 0}, {1, 3}, {3, 1}})
      for (const int choice : {from, to, 0, 0, 0}) honest.push_back(static_cast<std::byte>(choice));
  seeds.emplace_back("honest", std::move(honest));
  return seeds;
}

}  // namespace slipstream::fuzz
