#include "tensorflow/explanation.h"

#include <array>
#include <cstring>

#include "lines/form.h"
#include "lines/mismatch.h"

namespace slipstream::tensorflow {

namespace {

template <size_t kSize>
std::string text_of(const std::array<char, kSize>& text) {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

}  // namespace

// What a block begins with; the form follows.
struct Explanation::Told {
  uint64_t digest, form_bytes, function;
  int64_t root;
  int64_t called;
  std::array<char, 16> kind;
  std::array<char, 112> what;
  std::array<char, 256> label;
  std::array<char, 480> title;
};

Explanation::Explanation(size_t ranks, size_t form_bytes)
    : ranks_(ranks), bytes_((sizeof(Told) + form_bytes + 7) / 8 * 8), memory_(ranks * bytes_) {}

const Explanation::Told& Explanation::told(size_t rank) const {
  return *reinterpret_cast<const Told*>(memory_.data() + rank * bytes_);
}

void Explanation::write(size_t rank, const Ticket& ticket) {
  Told& own = *reinterpret_cast<Told*>(of(rank));
  own.digest = ticket.digest();
  own.form_bytes = ticket.form.size();
  own.function = ticket.function;
  own.root = lines::root_of(ticket.form);
  own.called = 1;
  ticket.kind.copy(own.kind.data(), own.kind.size());
  ticket.what.copy(own.what.data(), own.what.size());
  ticket.label.copy(own.label.data(), own.label.size());
  ticket.title.copy(own.title.data(), own.title.size());
  std::memcpy(of(rank) + sizeof(Told), ticket.form.data(), ticket.form.size());
}

size_t Explanation::first() const {
  size_t rank = 0;
  while (rank + 1 < ranks_ && told(rank).called == 0) ++rank;
  return rank;
}

std::string_view Explanation::form() const {
  const auto* const begin = reinterpret_cast<const char*>(&told(first())) + sizeof(Told);
  return {begin, told(first()).form_bytes};
}

bool Explanation::has_functions() const {
  for (size_t rank = 0; rank < ranks_; ++rank)
    if (told(rank).called != 0 && told(rank).function != told(first()).function) return true;
  return false;
}

std::string Explanation::label() const { return text_of(told(first()).label); }

std::string Explanation::problem(const std::vector<int32_t>& ranks) const {
  const Told& known = told(first());
  const size_t room = bytes_ - sizeof(Told);
  std::vector<lines::Called> called;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const Told& one = told(rank);
    if (one.called == 0) continue;
    if (one.form_bytes > room)
      return "rank " + std::to_string(ranks[rank]) + " tells of an operation in " + std::to_string(one.form_bytes) +
             " bytes, where none takes more than " + std::to_string(room) +
             ": all ranks must run the same slipstream, on sound memory";
    const std::string kind = one.kind == known.kind ? "" : text_of(one.kind) + " of ";
    called.push_back({ranks[rank], one.digest, kind + text_of(one.title)});
  }
  const std::string what = text_of(known.what);
  const std::string differing =
      lines::mismatch(text_of(known.kind) + " in TensorFlow graphs" + (what.empty() ? "" : " (" + what + ")"), called);
  if (!differing.empty()) return differing;
  const int64_t root = known.root;
  if (root < 0 || static_cast<size_t>(root) >= ranks_ || told(static_cast<size_t>(root)).called != 0) return "";
  return label() + " cannot do without rank " + std::to_string(ranks[static_cast<size_t>(root)]) +
         ", which has joined (no more batches)";
}

}  // namespace slipstream::tensorflow
