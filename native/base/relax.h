// What a loop that waits for another processor's write does between two looks.
#pragma once

namespace slipstream {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace slipstream
