#include "engine/stall_questions.h"

#include <algorithm>
#include <span>

#include "engine/texts.h"

namespace slipstream {

namespace {

constexpr int kAnswersPerSecond = 32;  // to one rank
constexpr double kPassOnSeconds = 1;   // news of one rank are passed on this often
constexpr double kAgeSeconds = 0.1;    // a unit of the age of an answer that is passed on
constexpr size_t kMostAnswerText = 500;
constexpr const char* kBothSend =
    "; a send and its recv need the same tag, and where both send first, one must receive first, or send with "
    "async_op=True, and wait for it after its receive";
constexpr const char* kBothReceive =
    "; a send and its recv need the same tag, and where both receive first, one must send first";
constexpr size_t kMostDescription = 1000;
constexpr uint8_t kTakesPart = 1;                      // flag of a status
constexpr uint8_t kAskOnly = 1;                        // flag of a description: do not compare
constexpr uint8_t kLeaves = 2;                         // flag of a description: the sender leaves, and needs no answer
constexpr uint64_t kPointToPoint = uint64_t{1} << 63;  // set in the channels of sends and receives

}  // namespace

void StallQuestions::describe(const WorkKey& work, const Signature& signature, int peer, uint8_t flags) {
  const std::string text = cut(signature.describe(), kMostDescription);
  WorkHeader frame;
  frame.type = MessageType::describe;
  frame.flags = flags;
  frame.channel = work.channel;
  frame.seq = work.seq;
  frame.signature = signature.hash();
  frame.length = static_cast<uint32_t>(text.size());
  fabric_.send(peer, frame, std::as_bytes(std::span(text.data(), text.size())));
}

void StallQuestions::ask(const WorkKey& work, const Signature& signature, int peer) {
  describe(work, signature, peer, kAskOnly);
}

void StallQuestions::describe_latest(const std::vector<ShortMessages::Past>& messages) {
  for (const auto& [key, peers] : messages) {
    const Channels::Past* const past = channels_.past(key.channel, key.seq);
    if (past == nullptr) continue;
    for (const int peer : peers)
      if (fabric_.up(peer) != nullptr) describe(key, past->signature, peer, kLeaves);
  }
  for (const Ledger::Entry& entry : ledger_.latest()) {
    const Request& request = entry.work->request;
    if (!entry.numbered) continue;
    for (const Plan::Peer& peer : request.plan->peers()) {
      const int rank = request.group->ranks[static_cast<size_t>(peer.rank)];
      if (fabric_.up(rank) != nullptr) describe({request.channel, entry.seq}, request.signature, rank, kLeaves);
    }
  }
}

Error StallQuestions::described(int peer, const WorkHeader& frame, const std::string& theirs) {
  const Signature* ours = nullptr;
  if (const Execution* execution = executions_.find({frame.channel, frame.seq}))
    ours = &execution->work()->request.signature;
  else if (const Channels::Past* past = channels_.past(frame.channel, frame.seq))
    ours = &past->signature;
  const bool differ = ours != nullptr && ours->hash() != frame.signature;
  if (differ && (frame.flags & kAskOnly) == 0) return mismatch(frame.seq, *ours, peer, theirs);
  if ((frame.flags & kLeaves) == 0)
    answer(peer, frame);
  else if (ours == nullptr)
    last_words_.keep({frame.channel, frame.seq}, {peer, frame.signature, cut(theirs, kMostDescription)});
  return {};
}

Error StallQuestions::compare_last_words(const Work& work) {
  const Request& ours = work.request;
  for (const LastWord& word : last_words_.take({ours.channel, ours.seq}))
    if (word.signature != ours.signature_hash) return mismatch(ours.seq, ours.signature, word.peer, word.description);
  return {};
}

Error StallQuestions::differs(Execution& execution, int peer) {
  const Request& ours = execution.work()->request;
  if (fabric_.gone(peer)) return unlike(ours.seq, ours.signature, peer);
  note(ours.seq, ours.signature, peer);
  describe({ours.channel, ours.seq}, ours.signature, peer);
  return {};
}

void StallQuestions::differs(const WorkKey& key, const Channels::Past& past, int peer, bool counts) {
  if (counts) note(key.seq, past.signature, peer);
  describe(key, past.signature, peer);
}

// A peer that is far ahead no longer knows what it called, and one that has left cannot say it.
void StallQuestions::note(uint32_t seq, const Signature& ours, int peer) {
  if (!unexplained_.contains(peer)) unexplained_.emplace(peer, Unexplained{now(), unlike(seq, ours, peer)});
}

Error StallQuestions::unexplained(Time now) const {
  for (const auto& [peer, one] : unexplained_)
    if (now >= one.at + seconds(kExplainSeconds)) return one.error;
  return {};
}

Time StallQuestions::explained_by() const {
  Time first = Time::max();
  for (const auto& [peer, one] : unexplained_) first = std::min(first, one.at + seconds(kExplainSeconds));
  return first;
}

const Error* StallQuestions::unexplained_by(int peer) const {
  const auto found = unexplained_.find(peer);
  return found == unexplained_.end() ? nullptr : &found->second.error;
}

Error StallQuestions::unlike(uint32_t seq, const Signature& ours, int peer) const {
  return mismatch(seq, ours, peer, "another one, and has not said which");
}

namespace {

std::string cure_of(const Signature& ours) {
  if (ours.side != Side::none) return "the receiver must take as many elements of the same dtype as are sent";
  return std::string("all ranks of a group must call the same operations, in the same order, with the same ") +
         (ours.name.empty() ? "" : "name, ") + "shape, dtype and op";
}

}  // namespace

Error StallQuestions::mismatch(uint32_t seq, const Signature& ours, int peer, const std::string& theirs) const {
  return Error{Code::mismatch,
               peer,
               {},
               "operation #" + std::to_string(seq) + " differs between ranks: " + fabric_.who(peer) + " called " +
                   theirs + ", " + fabric_.who(rank_) + " called " + ours.describe() + "; " + cure_of(ours)};
}

void StallQuestions::answer(int peer, const WorkHeader& asked) {
  const Time t = now();
  if (!may_answer(peer, t)) return;
  Execution* execution = executions_.find({asked.channel, asked.seq});
  if (execution == nullptr) {
    if (const std::string text = absence(peer, asked, t); !text.empty()) send_answer(peer, asked, rank_, false, text);
    return;
  }
  Stall& stall = execution->stall;
  stall.askers.insert(peer);
  send_answer(peer, asked, rank_, true, "is in it, and waits for " + report_.who(execution->waiting_on()));
  for (const auto& [rank, said] : stall.answers)
    if (!said.takes_part && rank != peer) send_answer(peer, asked, rank, false, said.text, t - said.said_at);
}

bool StallQuestions::may_answer(int peer, Time now) { return answers_[peer].take(now, 1, kAnswersPerSecond); }

void StallQuestions::send_answer(int to, const WorkHeader& asked, int subject, bool takes_part, const std::string& text,
                                 Clock::duration age) {
  const std::string bounded = cut(text, kMostAnswerText);
  WorkHeader frame;
  frame.type = MessageType::status;
  frame.flags = takes_part ? kTakesPart : 0;
  frame.channel = asked.channel;
  frame.seq = asked.seq;
  frame.chunk = static_cast<uint32_t>(subject);
  frame.piece = static_cast<uint16_t>(std::clamp(Seconds(age).count() / kAgeSeconds, 0.0, 65535.0));
  frame.length = static_cast<uint32_t>(bounded.size());
  fabric_.send(to, frame, std::as_bytes(std::span(bounded.data(), bounded.size())));
}

// Who waits in the work that an answer is about, if its group has the rank `subject`.
Stall* StallQuestions::stall_of(const WorkHeader& frame, int subject) {
  const auto member = [subject](const Work& work) {
    const auto& ranks = work.request.group->ranks;
    return std::find(ranks.begin(), ranks.end(), subject) != ranks.end();
  };
  if (Execution* execution = executions_.find({frame.channel, frame.seq}))
    return member(*execution->work()) ? &execution->stall : nullptr;
  Stall* stands_for = nullptr;
  for (Execution* execution : executions_.in_order()) {
    const Request& request = execution->work()->request;
    if (request.stands_for != frame.channel || request.seq != frame.seq || !member(*execution->work())) continue;
    if (stands_for == nullptr || execution->peer_index(subject) >= 0) stands_for = &execution->stall;
  }
  if (stands_for != nullptr) return stands_for;
  Receives::Receive* first = receives_.first(frame.channel);
  return first != nullptr && member(*first->work) ? &first->stall : nullptr;
}

void StallQuestions::answered(int peer, const WorkHeader& frame, const std::string& text) {
  const auto subject = static_cast<int>(std::min<uint32_t>(frame.chunk, INT32_MAX));
  Stall* stall = stall_of(frame, subject);
  if (stall == nullptr || subject == rank_) return;
  const Time t = now();
  const bool takes_part = (frame.flags & kTakesPart) != 0;
  Answer& known = stall->answers[subject];
  const bool fresh = !known.text.empty() && t - known.heard_at < seconds(kPassOnSeconds);
  const Time said_at = t - (peer == subject ? Clock::duration{} : seconds(frame.piece * kAgeSeconds));
  if (peer != subject && (fresh || said_at < known.said_at)) return;
  const bool passed_on = fresh && !known.takes_part;
  known = {said_at, t, takes_part, cut(text, kMostAnswerText)};
  if (takes_part || passed_on) return;
  for (const int asker : stall->askers)
    if (asker != peer && asker != subject && may_answer(asker, t))
      send_answer(asker, frame, subject, false, known.text, t - said_at);
}

// What a rank says that has done later works than the one it is asked for; empty if it has not.
std::string StallQuestions::beyond(const WorkHeader& asked, const Channels::Past* past, const Channels::Past* board,
                                   Time now) const {
  const Channels::Past* const last = past == nullptr || (board != nullptr && board->seq > past->seq) ? board : past;
  if (last == nullptr || last->seq <= asked.seq) return {};
  const bool direct = (asked.channel & kPointToPoint) != 0;
  return "is beyond #" + std::to_string(asked.seq) + (direct ? " of these sends and receives" : " of this group") +
         ": its last one there is " + numbered(last->signature, last->seq) + ", done " + seconds_text(now - last->at) +
         " ago" + kNowIt + report_.occupation(now);
}

// Why this rank is not in the work it is asked for; empty if it may be about to begin it.
std::string StallQuestions::absence(int asker, const WorkHeader& asked, Time now) const {
  const bool direct = (asked.channel & kPointToPoint) != 0;
  const auto board = boards_ == nullptr ? std::nullopt : boards_->latest_on_board(asked.channel);
  const Channels::Past* const past = channels_.latest(asked.channel);
  if (!ledger_.is_ahead(asked.channel, asked.seq) || (board && asked.seq <= board->seq))
    return beyond(asked, past, board ? &*board : nullptr, now);
  std::string last;
  uint32_t last_seq = 0;
  if (past != nullptr) {
    last_seq = past->seq;
    last = numbered(past->signature, past->seq) + ", done " + seconds_text(now - past->at) + " ago";
  }
  for (const Execution* execution : executions_.in_order()) {
    const Request& request = execution->work()->request;
    if (request.channel != asked.channel || (!last.empty() && request.seq < last_seq)) continue;
    last_seq = request.seq;
    last = numbered(request.signature, request.seq) + ", not done yet";
  }
  if (board && (last.empty() || board->seq > last_seq))
    last = numbered(board->signature, board->seq) + ", done " + seconds_text(now - board->at) + " ago";
  const std::string what = direct ? "has not called its side of #" : "has not called #";
  std::string text = what + std::to_string(asked.seq) + (direct ? " of these sends and receives" : " of this group");
  text += last.empty() ? ", and none before it" : ": its last one there is " + last;
  return text + kNowIt + report_.occupation(now) + (direct ? cure_with(asker) : "");
}

const char* StallQuestions::cure_with(int rank) const {
  if (waits_for(rank, Side::sender)) return kBothSend;
  return waits_for(rank, Side::receiver) ? kBothReceive : "";
}

bool StallQuestions::waits_for(int rank, Side side) const {
  if (side == Side::receiver && receives_.may_come_from(rank)) return true;
  return std::ranges::any_of(executions_.in_order(), [=](const Execution* execution) {
    const Signature& signature = execution->work()->request.signature;
    return signature.side == side && signature.other_side == rank;
  });
}

}  // namespace slipstream
