// Errors travel as bytes, with texts of bounded length.
#include "engine/abort_frame.h"

#include "tests/check.h"

namespace {

using namespace slipstream;

Error travelled(const Error& error) {
  const auto found = decode_error(encode_error(error));
  CHECK(found.has_value());
  return *found;
}

TEST(an_error_survives) {
  const Error found = travelled({Code::peer_lost, 3, "g\xC3\xA4nse", "rank 3 is gone"});
  CHECK(found.code == Code::peer_lost && found.rank == 3);
  CHECK(found.host == "g\xC3\xA4nse" && found.text == "rank 3 is gone");
}

TEST(no_character_of_a_long_text_is_cut) {
  const std::string whole(kMostErrorText - 1, 'a');
  CHECK(travelled({Code::aborted, 0, {}, whole + "\xC3\xA4"}).text == whole);
}

}  // namespace
