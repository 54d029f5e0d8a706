// What the engine tells people who ask why nothing moves.
#include "engine/engine.h"
#include "engine/texts.h"

namespace slipstream {

namespace {

std::string state_of(const Ledger::Entry& entry, Time now) {
  const Work& work = *entry.work;
  const std::string age = seconds_text(now - work.submitted);
  if (!work.done()) {
    if (!entry.numbered) return "waits for a sender, called " + age + " ago";
    return (work.begun.load() ? "running, called " : "waits for its turn, called ") + age + " ago";
  }
  const std::string taken = seconds_text(work.finished - work.submitted);
  return (work.error() ? "failed after " : "done after ") + taken + ", " + seconds_text(now - work.finished) + " ago";
}

}  // namespace

std::string Engine::report() {
  const Time t = now();
  const std::string us = fabric_.who(rank_);
  std::string text;
  const auto add = [&](const Stall& stall, const std::string& wait, const Group& group) {
    text += "\n  waits: " + wait + " (group of " + members(group) + ")";
    for (const auto& [rank, said] : stall.answers)
      text += "\n    " + fabric_.who(rank) + " " + said.text + " (so it said " + seconds_text(t - said.at) + " ago)";
  };
  size_t shown = 0;
  for (const Execution* execution : running_)
    if (!failed_ && !execution->finished() && ++shown <= Ledger::kRemembered)
      add(execution->stall, describe_wait(*execution, t), *execution->work()->request.group);
  for (const auto& pending : receives_.all())
    if (++shown <= Ledger::kRemembered) add(pending.stall, describe_wait(pending, t), *pending.work->request.group);
  const auto latest = ledger_.latest();
  text += "\n  last " + std::to_string(latest.size()) + " operations, newest first:";
  for (const Ledger::Entry& entry : latest)
    text += "\n    " +
            (entry.numbered ? numbered(entry.work->request.signature, entry.seq)
                            : entry.work->request.signature.describe()) +
            " of " + members(*entry.work->request.group) + ": " + state_of(entry, t);
  const std::string head = shown == 0 ? " waits for no operation" : ": operations under way: " + std::to_string(shown);
  return us + head + (failed_ ? "; the session has failed: " + failure().text : "") + text;
}

}  // namespace slipstream
