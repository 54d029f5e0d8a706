// Texts are cut between characters.
#include "base/cut.h"

#include "tests/check.h"

namespace {

using slipstream::cut;

TEST(a_text_that_fits_stays) {
  CHECK(cut("", 0).empty());
  CHECK(cut("abc", 3) == "abc");
  CHECK(cut("\xC3\xA4", 2) == "\xC3\xA4");
}

TEST(no_character_is_cut) {
  CHECK(cut("abc", 2) == "ab");
  CHECK(cut("a\xC3\xA4", 2) == "a");
  CHECK(cut("\xE2\x82\xAC\xE2\x82\xAC", 5) == "\xE2\x82\xAC");
  CHECK(cut("\xF0\x9F\x98\x80", 3).empty());
}

}  // namespace
