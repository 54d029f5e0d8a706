// The beginning of a text for people, which may have names in any script.
#pragma once

#include <string>
#include <string_view>

namespace slipstream {

// At most so many bytes of a text in UTF-8, whole characters.
inline std::string cut(std::string_view text, size_t most) {
  if (text.size() > most)
    while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return std::string(text.substr(0, most));
}

}  // namespace slipstream
