"""What is done with the metrics of a job that this process enters: counted, answered, served, and summed up at last."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from slipstream.base.log import Log
from slipstream.base.outputs import CannotWrite, objection, summary_file
from slipstream.base.settings import Settings
from slipstream.comm.membership.job import Job
from slipstream.observe.metrics import Recorder, Snapshot

if TYPE_CHECKING:
    from slipstream.observe.metrics_exchange import Answers

__all__ = ["follow"]

_LAST_WORDS = 0.5  # seconds in which a rank that leaves tells rank 0 its numbers
_TOGETHER = 1.0  # seconds in which ranks leave that have ended together

_log = Log("slipstream")


def follow(job: Job, settings: Settings) -> None:
    """Begins what the settings ask for. Nothing that goes wrong with metrics later ends a training.

    Raises CannotWrite, an OSError, if this rank is to write the summary into a file, and cannot. In a job that goes on
    after a `shrink`, that is a warning: `_show` then prints the summary.
    """
    file = summary_file(settings.summary, job.rank)
    why = objection(file) if file else ""
    if why:
        if not job.former_ranks:
            raise CannotWrite(f"rank {job.rank} cannot write its summary {file}: {why}")
        _log.warning("the summary will be printed at the end, it cannot be written to %s: %s", file, why)
    recorder = Recorder(job)
    if settings.metrics_port is not None:
        from slipstream.observe import metrics_port

        metrics_port.serve(settings, job.membership.local_rank)
        job.when_left(
            metrics_port.close
        )  # the last of these to be called: it looks whether there are other jobs
    job.when_left(recorder.close)
    sums_up = settings.summary != "0"
    answers = None
    if job.questions is not None and (settings.top or sums_up):
        from slipstream.observe.metrics_exchange import Answers

        answers = Answers(job, recorder.snapshot)
        job.when_left(answers.close)
    if settings.top and answers is not None and job.membership.local_rank == 0:
        from slipstream.observe import metrics_jobs

        path = metrics_jobs.announce(job)
        if path is not None:
            job.when_left(lambda: path.unlink(missing_ok=True))
    if sums_up:
        job.before_leaving(lambda: _sum_up(job, recorder, answers))


def _sum_up(job: Job, recorder: Recorder, answers: Answers | None) -> None:
    from slipstream.observe.metrics_exchange import ask, key_of, name_of
    from slipstream.observe.summary import report

    try:
        if job.rank == 0:
            _show(report(_everyone(job, recorder, answers), job.membership.job), job.settings.summary)
        elif answers is not None and job.questions is not None and not answers.asked_last.is_set():
            place = job.questions.places[0]
            encrypt = job.settings.encrypt
            ask(
                place,
                key_of(job),
                name_of(job),
                encrypt=encrypt,
                tell=recorder.snapshot(),
                seconds=_LAST_WORDS,
            )
    except Exception as error:  # a full disk must not end a training
        _log.warning("there is no summary: %s", error)


def _show(found: dict[str, Any], setting: str) -> None:
    """Writes the summary where the setting says; on standard error if the file cannot be written any more."""
    import json
    from pathlib import Path

    from slipstream.observe.summary import text

    file = summary_file(setting, 0)
    if file:
        try:
            Path(file).write_text(json.dumps(found, indent=2) + "\n")
            return
        except OSError as error:
            _log.warning("the summary cannot be written to %s: %s", file, error.strerror)
    sys.stderr.write(text(found) + "\n")


def _everyone(job: Job, recorder: Recorder, answers: Answers | None) -> list[Snapshot | None]:
    """What each rank has told as it left, else what it says now."""
    if answers is None or job.questions is None:
        return [recorder.snapshot()]
    from slipstream.observe.metrics_exchange import ask_all, key_of, name_of

    told: dict[int, Snapshot] = answers.last(job.size - 1, _TOGETHER) | {job.rank: recorder.snapshot()}
    places = [None if rank in told else place for rank, place in enumerate(job.questions.places)]
    asked = ask_all(places, key_of(job), name_of(job), encrypt=job.settings.encrypt, last=True)
    late = answers.last()
    return [told.get(rank) or one or late.get(rank) for rank, one in enumerate(asked)]
