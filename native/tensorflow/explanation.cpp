#include "tensorflow/explanation.h"

#include <array>
#include <cstring>

#include "base/error.h"
#include "lines/form.h"
#include "lines/mismatch.h"

namespace slipstream::tensorflow {

namespace {

template <size_t kSize>
std::string text_of(const std::array<char, kSize>& text) {
  return {text.data(), ::strnlen(text.data(), text.size())};
}

constexpr const char* kCure = "all ranks must run the same slipstream, on sound memory";

// Of a block with a form of so many bytes. `before`: what comes before the form.
size_t bytes_of(size_t before, size_t form_bytes) {
  if (form_bytes > Explanation::kMostForm)
    throw Failure(Code::invalid, "to tell the other ranks what it is takes " + std::to_string(form_bytes) +
                                     " bytes, and the most is " + std::to_string(Explanation::kMostForm) +
                                     ": give an operation fewer tensors. If none has many, " + kCure);
  return (before + form_bytes + 7) / 8 * 8;
}

}  // namespace

// What a block begins with; the form follows.
struct Explanation::Told {
  uint64_t digest, form_bytes, function, title_digest;
  int64_t called;
  std::array<char, 16> kind;
  std::array<char, 112> what;
  std::array<char, 256> label;
  std::array<char, 480> title;
};

Explanation::Explanation(size_t ranks, size_t form_bytes)
    : ranks_(ranks), bytes_(bytes_of(sizeof(Told), form_bytes)), memory_(ranks * bytes_) {}

const Explanation::Told& Explanation::told(size_t rank) const {
  return *reinterpret_cast<const Told*>(memory_.data() + rank * bytes_);
}

void Explanation::write(size_t rank, const Ticket& ticket) {
  if (ticket.form.size() > bytes_ - sizeof(Told))
    throw Failure(Code::internal, ticket.label + " takes " + std::to_string(ticket.form.size()) +
                                      " bytes to tell of, where the ranks have told of at most " +
                                      std::to_string(bytes_ - sizeof(Told)) + ": " + kCure);
  Told& own = *reinterpret_cast<Told*>(of(rank));
  own.digest = ticket.digest();
  own.form_bytes = ticket.form.size();
  own.function = ticket.function;
  own.title_digest = lines::digest_of(ticket.title);
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

std::string_view Explanation::form(size_t rank) const {
  const auto* const begin = reinterpret_cast<const char*>(&told(rank)) + sizeof(Told);
  return {begin, told(rank).form_bytes};
}

std::string_view Explanation::form() const { return form(first()); }

bool Explanation::has_functions() const {
  for (size_t rank = 0; rank < ranks_; ++rank)
    if (told(rank).called != 0 && told(rank).function != told(first()).function) return true;
  return false;
}

std::string Explanation::label() const { return text_of(told(first()).label); }

// What a rank tells is not what it has written.
std::string Explanation::damage(size_t rank, int32_t number) const {
  const Told& one = told(rank);
  const size_t room = bytes_ - sizeof(Told);
  const std::string who = "rank " + std::to_string(number) + " tells of an operation ";
  if (one.form_bytes > room)
    return who + "in " + std::to_string(one.form_bytes) + " bytes, where none takes more than " + std::to_string(room) +
           ": " + kCure;
  if (one.digest != Ticket::digest_with(form(rank), one.title_digest))
    return who + "with a digest that is not the operation's: " + kCure;
  return "";
}

std::string Explanation::problem(const std::vector<int32_t>& ranks) const {
  const Told& known = told(first());
  std::vector<lines::Called> called;
  for (size_t rank = 0; rank < ranks_; ++rank) {
    const Told& one = told(rank);
    if (one.called == 0) continue;
    if (std::string found = damage(rank, ranks[rank]); !found.empty()) return found;
    const std::string kind = one.kind == known.kind ? "" : text_of(one.kind) + " of ";
    called.push_back({ranks[rank], one.digest, kind + text_of(one.title)});
  }
  const std::string what = text_of(known.what);
  const std::string differing =
      lines::mismatch(text_of(known.kind) + " in TensorFlow graphs" + (what.empty() ? "" : " (" + what + ")"), called);
  if (!differing.empty()) return differing;
  try {
    lines::operands_in(form());
    return without_root(ranks);
  } catch (const Failure& failure) {
    return label() + ": " + failure.what();
  }
}

// A rank has joined that the operation needs.
std::string Explanation::without_root(const std::vector<int32_t>& ranks) const {
  const int64_t root = lines::root_of(form());
  if (root < 0 || static_cast<size_t>(root) >= ranks_ || told(static_cast<size_t>(root)).called != 0) return "";
  return label() + " cannot do without rank " + std::to_string(ranks[static_cast<size_t>(root)]) +
         ", which has joined (no more batches)";
}

}  // namespace slipstream::tensorflow
