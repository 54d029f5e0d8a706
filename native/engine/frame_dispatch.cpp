#include "engine/frame_dispatch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/abort_frame.h"
#include "engine/texts.h"

namespace slipstream {

namespace {

std::string text_of(const Payload& payload) { return {reinterpret_cast<const char*>(payload.data), payload.size}; }

Error broken_rules(int peer, std::string text) { return Error{Code::internal, peer, {}, std::move(text)}; }

}  // namespace

Events::Landing FrameDispatch::land(const Link& link, const Frame& f) const {
  const WorkHeader frame = WorkHeader::of(f);
  Execution* execution = executions_.find({frame.channel, frame.seq});
  if (execution == nullptr) return {};
  const int index = execution->peer_index(link.peer());
  if (index < 0 || frame.signature != execution->work()->request.signature_hash) return {};
  return execution->land(index, frame);
}

// True if a reducer's worker sends more control frames that no work needs than a sound worker does: it could go on for
// ever.
bool FrameDispatch::floods(int peer, MessageType type) {
  switch (type) {
    case MessageType::ping:
    case MessageType::pong:
    case MessageType::describe:
    case MessageType::status:
    case MessageType::announce:
      break;
    default:
      return false;
  }
  return !unneeded_[peer].take(coarse_now(), 1, kUnneededPerSecond);
}

Error FrameDispatch::arrived(Link& link, const Frame& f, const Payload& payload) {
  const WorkHeader frame = WorkHeader::of(f);
  const int peer = link.peer();
  if (offers_ != nullptr && floods(peer, frame.type)) {
    link.release(payload);
    return broken_rules(peer, fabric_.who(peer) + " sends more than " + std::to_string(kUnneededPerSecond) +
                                  " control frames a second that no work needs");
  }
  switch (frame.type) {
    case MessageType::ping: {
      WorkHeader pong;
      pong.type = MessageType::pong;
      link.send(pong, nullptr, 0);
      return {};
    }
    case MessageType::credit:
      fabric_.credit(peer).repaid(frame.chunk);
      for (Execution* execution : executions_.in_order())
        if (const int index = execution->peer_index(peer); index >= 0) execution->credit_came(index);
      return {};
    case MessageType::abort:
      if (auto error = decode_error({payload.data, payload.size})) {
        error->told_by = peer;
        return std::move(*error);
      }
      return broken_rules(peer, fabric_.who(peer) + " aborted with an unreadable reason");
    case MessageType::describe:
      return questions_.described(peer, frame, text_of(payload));
    case MessageType::status:
      questions_.answered(peer, frame, text_of(payload));
      return {};
    case MessageType::offer:
      if (offers_ == nullptr) return broken_rules(peer, fabric_.who(peer) + " takes this rank for a reducer");
      return offers_->offered(peer, frame, {payload.data, payload.size});
    case MessageType::board:
      if (boards_ == nullptr) return broken_rules(peer, fabric_.who(peer) + " sent memory for a board");
      return boards_->offered_board(link, frame, {payload.data, payload.size});
    case MessageType::announce:  // only of use to a receive that has no number yet
      if (!ledger_.is_ahead(frame.channel, frame.seq)) return {};
      return for_work(link, frame, payload);
    case MessageType::data:
    case MessageType::ready:
    case MessageType::request:
      return for_work(link, frame, payload);
    case MessageType::pong:
    case MessageType::goodbye:
    default:  // of the transport's own types
      break;
  }
  return {};
}

Error FrameDispatch::for_work(Link& link, const WorkHeader& frame, const Payload& payload) {
  if (messages_.take(link, frame, payload)) return {};
  if (Execution* execution = executions_.find({frame.channel, frame.seq}))
    return for_execution(*execution, link, frame, payload);
  if (const Channels::Past* past = channels_.past(frame.channel, frame.seq))
    return for_past(*past, link, frame, payload);
  if (is_needless(frame)) {
    link.release(payload);
    return {};
  }
  return keep_early(link, frame, payload);
}

// This rank is done with the work or message; at best the peer still wants an answer.
Error FrameDispatch::for_past(const Channels::Past& past, Link& link, const WorkHeader& frame, const Payload& payload) {
  link.release(payload);
  if (past.hash != frame.signature) {
    questions_.differs({frame.channel, frame.seq}, past, link.peer(), offers_ == nullptr);
    return {};
  }
  if (offers_ == nullptr || frame.type != MessageType::data) return {};
  return broken_rules(link.peer(), twice_text(fabric_.who(link.peer()), past.signature));  // it could send for ever
}

// Leave to send what this rank has sent so long ago that it has forgotten the work: nobody would ever take it. A work
// that was on a board is in the ledger before it is decided there.
bool FrameDispatch::is_needless(const WorkHeader& frame) const {
  if (frame.type != MessageType::ready || offers_ != nullptr || ledger_.is_ahead(frame.channel, frame.seq))
    return false;
  if (boards_ != nullptr && boards_->undecided_on_board(frame.channel, frame.seq)) return false;
  return !ledger_.is_pending(frame.channel, frame.seq);
}

Error FrameDispatch::keep_early(Link& link, const WorkHeader& frame, const Payload& payload) {
  const int peer = link.peer();
  std::vector<std::byte> copied;
  if (payload.remote == 0) {
    copied.assign(payload.data, payload.data + payload.size);
    if (!link.intact(payload)) return {};
    link.release(payload);
  }
  // Whoever takes part in a work that is offered offers it first.
  if (offers_ != nullptr && ledger_.is_ahead(frame.channel, frame.seq))
    return broken_rules(peer, fabric_.who(peer) + " sent a frame of a work that it has not offered");
  switch (early_.keep(peer, frame, std::move(copied), payload.remote == 0 ? Payload{} : payload)) {
    case EarlyFrames::Limit::works:
      return broken_rules(peer, fabric_.who(peer) + " is over a million operations ahead");
    case EarlyFrames::Limit::bytes:
      return broken_rules(peer, fabric_.who(peer) + " sent more than " + std::to_string(early_.most_bytes() >> 10) +
                                    " KiB for works that have not begun");
    case EarlyFrames::Limit::none:
      break;
  }
  return {};
}

Error FrameDispatch::deliver_early(Execution& execution) {
  const Request& request = execution.work()->request;
  for (const EarlyFrame& early : early_.take({request.channel, request.seq})) {
    Link* link = fabric_.up(early.peer);
    if (link == nullptr && early.is_lent()) continue;
    if (link == nullptr) link = &fabric_.past(early.peer);
    const Payload payload = early.is_lent() ? early.lent : Payload{early.payload.data(), early.frame.length, true, 0};
    execution.lateness.was_early(execution.peer_index(early.peer));
    if (Error error = for_execution(execution, *link, early.frame, payload)) return error;
  }
  return {};
}

Error FrameDispatch::for_execution(Execution& execution, Link& link, const WorkHeader& frame, const Payload& payload) {
  const Request& request = execution.work()->request;
  if (frame.signature != request.signature_hash) {
    link.release(payload);
    return questions_.differs(execution, link.peer());
  }
  const int index = execution.peer_index(link.peer());
  if (index < 0) {
    link.release(payload);
    return broken_rules(link.peer(), fabric_.who(link.peer()) + " sent a frame for " + request.signature.describe() +
                                         ", in which it has no part");
  }
  switch (frame.type) {
    case MessageType::data:
      execution.lateness.sent(index, frame.stream);
      return execution.arrived(index, link, frame, payload);
    case MessageType::ready:
      execution.lateness.ready(index);
      execution.peer_ready(index, link, {payload.data, payload.size});
      return {};
    case MessageType::announce:
      return {};
    default: {  // request
      WorkHeader ready = frame;
      ready.type = MessageType::ready;
      ready.length = 0;
      link.send(ready, nullptr, 0);
      return {};
    }
  }
}

}  // namespace slipstream
