// From which size on it is cheaper to lend memory to the kernel than to have it copied. Pinning pages and hearing when
// they are free again costs about the same each time, copying costs by the byte; where the two meet depends on the
// machine, its network device and what else it does. So both are timed, by size, while there is traffic. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace slipstream {

class LendThreshold {
 public:
  static constexpr size_t kLeast = 8 << 10;  // nothing smaller is lent
  static constexpr size_t kClasses = 8;      // of sizes: 8 to 16 KiB, ... 512 KiB to 1 MiB, from 1 MiB on
  // Until there is something to compare: clearly more than the 10 KiB from which lending pays according to the kernel's
  // documentation (networking/msg_zerocopy.rst).
  static constexpr size_t kFirst = 32 << 10;
  static constexpr size_t kNothing = SIZE_MAX;  // is large enough

  // Always `bytes`, without measurements. 0: measure.
  void fix(size_t bytes) { fixed_ = bytes; }
  bool measures() const { return fixed_ == 0; }
  // Begins from kFirst again.
  void forget() { classes_ = {}, threshold_ = kFirst, in_vain_ = 0; }

  // Whether to lend a segment of this size now. One segment in 64 goes the other way, to keep the measurements current.
  bool lends(size_t bytes);
  size_t bytes() const { return fixed_ != 0 ? fixed_ : threshold_; }
  // Lending has been tried often enough, and was never cheaper.
  bool never() const { return measures() && in_vain_ >= kMostInVain && !may_pay(); }

  // What a byte cost, in seconds, in a segment of `bytes` that was lent or copied.
  void lent(size_t bytes, double seconds);
  void copied(size_t bytes, double seconds);

 private:
  // An interrupted call takes longer, and no call takes less than its own cost. So the lowest measurements count.
  class Costs {
   public:
    void add(double seconds);
    bool enough() const { return count_ >= kEnough; }
    bool any() const { return count_ > 0; }
    double low() const;

   private:
    static constexpr size_t kEnough = 8;
    std::array<double, 16> last_{};  // a ring
    size_t count_ = 0;
  };
  enum class Cheaper : uint8_t { unknown, lending, copying };
  struct Class {
    Costs lent;
    Costs copied;
    Cheaper cheaper = Cheaper::unknown;
    uint32_t turn = 0;
  };

  static constexpr uint32_t kTryEvery = 8;    // while it is not known which is cheaper
  static constexpr uint32_t kLookEvery = 64;  // then
  static constexpr double kMargin = 0.95;     // of the cost of copying: lending begins below it and ends above 1
  static constexpr int kMostInVain = 32;

  static size_t class_of(size_t bytes);
  bool may_pay() const;  // somewhere, as far as is known
  void compare(Class& one);

  std::array<Class, kClasses> classes_;
  size_t fixed_ = 0;
  size_t threshold_ = kFirst;
  int in_vain_ = 0;  // segments lent where copying is known to be cheaper, while lending is cheaper nowhere
};

}  // namespace slipstream
