// How this thread computes with floating-point numbers.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace slipstream {

// While it lives, the thread computes as every thread of a program does at first: round to nearest, subnormal numbers
// as they are, nothing trapped. A caller may have changed that for its thread, and threads that it starts inherit it
// (frameworks "flush denormals"); yet the same operation must give the same bits on all ranks, whichever thread
// computes. Costs a few cycles where nothing had been changed.
class DefaultFloatState {
 public:
  DefaultFloatState() : before_(read()) {
    if (changed()) write(kDefault);
  }
  ~DefaultFloatState() {
    if (changed()) write(before_);
  }
  DefaultFloatState(const DefaultFloatState&) = delete;

#if defined(__x86_64__)
  using Word = uint32_t;  // MXCSR
  static constexpr Word kDefault = 0x1f80;
  static constexpr Word kStatus = 0x3f;  // flags that operations leave behind
  static Word read() { return _mm_getcsr(); }
  static void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
  using Word = uint64_t;  // FPCR
  static constexpr Word kDefault = 0;
  static constexpr Word kStatus = 0;
  static Word read() {
    Word word;
    asm volatile("mrs %0, fpcr" : "=r"(word));
    return word;
  }
  static void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
#else
  using Word = uint32_t;
  static constexpr Word kDefault = 0;
  static constexpr Word kStatus = 0;
  static Word read() { return 0; }
  static void write(Word) {}
#endif

 private:
  bool changed() const { return (before_ & ~kStatus) != kDefault; }

  Word before_;
};

}  // namespace slipstream
