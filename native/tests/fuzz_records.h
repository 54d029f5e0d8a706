// What comes over an encrypted connection: records of an honest peer, and whatever somebody between the two makes of
// them.
#pragma once

#include <memory>
#include <vector>

#include "tests/fuzz_input.h"
#include "transport/records.h"

namespace slipstream::fuzz {

inline Records records_side(bool client) {
  constexpr std::byte kSame[80] = {};
  return {ByteView(kSame, 16), kSame, ByteView(kSame, 32), ByteView(kSame, 32), client, 3};
}

inline void fuzz_records(Input input) {
  Records ours = records_side(true);
  Records theirs = records_side(false);
  std::vector<std::byte> said, heard, wire;
  while (!input.empty()) {
    switch (input.below(8)) {
      case 0:
      case 1:
      case 2: {  // a text, whole or in two parts
        const auto text = input.bytes(input.byte());
        const size_t half = text.size() / 2;
        auto* const data = const_cast<std::byte*>(text.data());
        const iovec parts[] = {{data, half}, {data + half, text.size() - half}};
        require(ours.out.seal(parts) == text.size(), "a small text is sealed as a whole");
        said.insert(said.end(), text.begin(), text.end());
        const auto sealed = ours.out.waiting();
        wire.insert(wire.end(), sealed.begin(), sealed.end());
        ours.out.went(sealed.size());
        break;
      }
      case 3:  // bytes of somebody else's
        for (const std::byte b : input.bytes(input.byte())) wire.push_back(b);
        break;
      case 4:
        if (!wire.empty()) wire[input.value<uint16_t>() % wire.size()] ^= static_cast<std::byte>(input.byte());
        break;
      case 5:  // some of it is lost
        wire.resize(wire.size() - std::min<size_t>(wire.size(), input.byte()));
        break;
      default: {  // some of it arrives, and is read
        size_t left = std::min<size_t>(wire.size(), input.value<uint16_t>());
        while (left > 0 && !theirs.in.damaged()) {
          const auto space = theirs.in.space();
          require(!space.empty(), "there is space once all has been taken");
          const size_t n = std::min(left, space.size());
          std::copy_n(wire.begin(), n, space.begin());
          wire.erase(wire.begin(), wire.begin() + static_cast<ptrdiff_t>(n));
          theirs.in.filled(n);
          left -= n;
          std::byte part[100];
          const iovec into[] = {{part, 1 + input.below(60)}, {nullptr, 0}, {part + 60, 40}};
          const size_t first = into[0].iov_len;
          const bool alone = input.below(2) == 1;
          while (const size_t got = theirs.in.take(into, 0, alone)) {
            heard.insert(heard.end(), part, part + std::min(got, first));
            heard.insert(heard.end(), part + 60, part + 60 + (got - std::min(got, first)));
          }
          require(theirs.in.ready() == theirs.in.damaged(), "what is ready has been taken");
        }
      }
    }
    require(heard.size() <= said.size() && std::equal(heard.begin(), heard.end(), said.begin()),
            "nothing is believed but what was said, in its order");
  }
}

}  // namespace slipstream::fuzz
