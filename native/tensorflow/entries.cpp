#include "tensorflow/entries.h"

namespace slipstream::tensorflow {

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
  } else {
    asked[kind == Kind::joined ? kJoined : kFlushing] = 1;
  }
  if (ticket != nullptr || kind == Kind::mark) {
    asked[kPlace] = place;
    asked[kInversePlace] = ~place;
  }
  if (kind == Kind::mark) asked[kFailed] = rank + 1;
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
      behind.push_back(std::make_shared<Entry>(kind, entry->place, ticket));
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
