#include "tensorflow/entries.h"

namespace slipstream::tensorflow {

namespace {

constexpr const char* kNotOnAll =
    ", and not on all others, before it came to its operations. They are in a condition, or it "
    "could not be traced, so it is not known whether the other ranks have come to them: the ranks may be at different "
    "steps of the program, and the job ends. End the program on all ranks after an error that some of them have alone";

std::string name_of_rank(uint64_t place, const std::vector<int32_t>& ranks) {
  return place < ranks.size() ? "rank " + std::to_string(ranks[place]) : std::string("another rank");
}

}  // namespace

void Entry::fail(int32_t with, std::string why) {
  status = with;
  text = std::move(why);
  // What went wrong may be the question, of which users know nothing.
  if (ticket != nullptr && text.find(ticket->label) == std::string::npos) text = ticket->label + ": " + text;
}

void Entry::fill_in(size_t rank) {
  asked = {};
  if (ticket != nullptr) {
    asked[kDigest] = ticket->digest();
    asked[kInverse] = ~asked[kDigest];
    asked[kFormBytes] = ticket->form.size();
    asked[kDoubtful] = doubtful << kRankBits | rank;
    asked[kLeastDoubtful] = ~doubtful;
  } else {
    asked[kind == Kind::joined ? kJoined : kFlushing] = 1;
  }
  if (ticket != nullptr || kind == Kind::mark) {
    asked[kPlace] = place;
    asked[kInversePlace] = ~place;
  }
  if (kind == Kind::mark) asked[kFailed] = rank + 1;
}

std::string why_marked(const Entry& entry, const std::vector<int32_t>& ranks) {
  return entry.ticket->label + ": " + name_of_rank(entry.asked[kFailed] - 1, ranks) +
         " does not take part, as its step has failed, was interrupted, or had no more data: see what that rank "
         "raised. After an error like this end the program, or have all ranks go on with the next step";
}

std::string why_doubtful(const Entry& entry, const std::vector<int32_t>& ranks) {
  const uint64_t place = entry.asked[kDoubtful] & ((uint64_t{1} << kRankBits) - 1);
  const std::string what = entry.ticket != nullptr ? entry.ticket->label : "an operation in a TensorFlow graph";
  return what + ": a step has failed on " + name_of_rank(place, ranks) + kNotOnAll;
}

void come_together(Entries& entries, const std::string& problem, StartedSteps& steps, std::vector<Ended>& ended) {
  Entries before, behind;
  bool fails = !problem.empty();
  for (const std::shared_ptr<Entry>& entry : entries) {
    const Entry::Kind kind = entry->kind;
    const std::shared_ptr<Ticket> ticket = std::move(entry->ticket);
    if (kind == Entry::Kind::mark && fails) {
      fails = false;
    } else if (ticket != nullptr && fails) {
      steps.end(ticket->step, problem);
      ended.push_back({ticket, kNone, SLIPSTREAM_MISMATCH, problem});
    } else if (kind != Entry::Kind::stale) {
      behind.push_back(std::make_shared<Entry>(kind, entry->place, ticket, entry->doubtful));
    }
    entry->kind = Entry::Kind::stale;
    if (entry->at == Entry::At::asked) before.push_back(entry);
  }
  entries = std::move(before);
  entries.push_back(std::make_shared<Entry>(Entry::Kind::flushing));
  entries.insert(entries.end(), behind.begin(), behind.end());
}

bool have_others(const Entries& entries, int64_t step) {
  for (const std::shared_ptr<Entry>& entry : entries) {
    if (entry->kind == Entry::Kind::mark) return false;
    if (entry->ticket != nullptr && entry->ticket->step != step) return true;
  }
  return false;
}

}  // namespace slipstream::tensorflow
