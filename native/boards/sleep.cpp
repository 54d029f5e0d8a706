#include "boards/sleep.h"

#include <utility>
#include <vector>

namespace slipstream {

// Knows the receive it listens to, which owns it.
class BoardSleep::Woken final : public Listener {
 public:
  Woken(std::shared_ptr<BoardSleep> sleep, const Work& receive) : sleep_(std::move(sleep)), receive_(receive) {}
  void work_done() override { sleep_->woken(static_cast<bool>(receive_.error())); }

 private:
  const std::shared_ptr<BoardSleep> sleep_;
  const Work& receive_;
};

BoardSleep::BoardSleep(BoardHost& host, std::shared_ptr<Board> board, BoardForm form, WorkPtr work, uint64_t number)
    : host_(host),
      board_(std::move(board)),
      work_(std::move(work)),
      call_{work_->request,
            form,
            work_->request.spaces[0].data,
            work_->request.spaces[1].data,
            work_->request.signature.count,
            work_->request.signature.name,
            work_->request.timeout_seconds},
      number_(number) {}

void BoardSleep::begin() {
  std::vector<WorkPtr> receives;
  {
    const std::lock_guard lock(mutex_);
    work_->begun.store(true, std::memory_order_relaxed);  // for reports
    for (const int rank : board_->rows_->missing()) {
      if (!board_->rows_->claim(rank, number_, work_->request.signature_hash)) continue;
      receives.push_back(host_.wake_from(rank, *work_, number_, &places_[static_cast<size_t>(rank)]));
      receives.back()->listen(std::make_unique<Woken>(shared_from_this(), *receives.back()));
    }
  }
  for (const WorkPtr& receive : receives) host_.submit(receive);  // which ends it at once if the session has failed
  const std::lock_guard lock(mutex_);
  look();
}

void BoardSleep::woken(bool failed) {
  const std::lock_guard lock(mutex_);
  board_->rows_->woken();
  look();  // whoever has gone without its message may have posted before
  if (failed && !std::exchange(decided_, true)) decide(work_);  // it fails as all works of the engine do
}

void BoardSleep::look() {
  if (decided_) return;
  const BoardRows::Look found = board_->rows_->look();
  if (found == BoardRows::Look::waits) return;
  decided_ = true;
  if (found == BoardRows::Look::messages) return decide(work_);
  board_->conclude(call_, number_);
  decide(nullptr);
  host_.complete(*work_);
}

void BoardSleep::decide(const WorkPtr& by_messages) {
  work_->begun.store(false, std::memory_order_relaxed);
  board_->settle(call_, number_, by_messages);
}

}  // namespace slipstream
