// Parts of error messages and warnings.
#pragma once

#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/cut.h"
#include "base/error.h"
#include "engine/work.h"

namespace slipstream {

inline std::string seconds_text(Clock::duration d) {
  const double s = Seconds(d).count();
  char text[32];
  std::snprintf(text, sizeof(text), s >= 9.95 ? "%.0f s" : "%.2g s", s < 0.001 ? 0.0 : s);
  return text;
}

// "all_reduce(float32, 10 elements, op=sum) #17"
inline std::string numbered(const Signature& signature, uint32_t seq) {
  return cut(signature.describe(), 400) + " #" + std::to_string(seq);
}

// What people know a work as that has the number `seq`.
inline std::string title_of(const Work& work, uint32_t seq) {
  const std::string* title = work.title();
  return title != nullptr ? cut(*title, 400) : numbered(work.request.signature, seq);
}

// Why a data frame of such a work is refused.
inline std::string twice_text(const std::string& who, const Signature& signature) {
  return who + " sent a chunk of " + signature.describe() + " twice, or long before its turn";
}

// Why the rank `who` may not call a work that needs memory of one in another channel.
inline std::string overlap_text(const std::string& who, const Work& work, const Work& other) {
  return who + " called " + work.request.signature.describe() + " on memory that " +
         other.request.signature.describe() +
         " of another group, or with another rank or tag, still works on, and one of them writes it: wait for the "
         "first before the second is called";
}

inline constexpr const char* kNowIt = "; now it ";
inline constexpr const char* kStillWaits = " still waits in ";
inline constexpr const char* kHasCalled = " has called ";

// The text without its full stop, for more to follow.
inline std::string unstopped(std::string text) {
  if (text.ends_with('.') && !text.ends_with("..")) text.pop_back();
  return text;
}

// What the rank `name`, which waits in such a work, says of a rank that is gone.
inline Error gone_error(const Error& error, const std::string& name, const Work& work) {
  Error e = error;
  e.text = unstopped(e.text) + "; " + name + kStillWaits + title_of(work, work.request.seq);
  return e;
}

// The error of a work that fails because of another rank: it names the work, unless it names one already.
inline Error named_error(const Error& error, const std::string& name, const char* does, const Work& work) {
  const auto says = [&error](const char* words) { return error.text.find(words) != std::string::npos; };
  if (error.code != Code::peer_lost || says(kStillWaits) || says(kHasCalled)) return error;
  const bool has_number = work.request.candidates.empty();
  Error e = error;
  e.text = unstopped(e.text) + "; " + name + does +
           (has_number ? title_of(work, work.request.seq) : work.request.signature.describe());
  return e;
}

}  // namespace slipstream
