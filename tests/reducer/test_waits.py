"""What a wait says that ends early, of an operation in which reducers take part."""

from __future__ import annotations

from pathlib import Path

from comm import ranks
from reducer.test_job import environment, reducers

RANK = Path(__file__).with_name("wait_rank.py")


def wait_text(folder: Path, services: int, count: int) -> tuple[list[int], str]:
    """How often each reducer is named, and what a wait says of an operation that rank 1 has not called."""
    with reducers(folder, services) as started:
        (text, _) = ranks.run(RANK, 2, transport="tcp", args=[str(count)], env=environment(started))
        operation = f"all_reduce(float64, {count} elements, op=sum)"
        assert text.count(operation) == 1, text
        assert f"{operation} of the group of ranks 0, 1, called " in text
        return [text.count(f"reducer 127.0.0.1:{one.port}") for one in started], text


def test_a_wait_for_a_small_operation_names_the_reducers_that_it_takes_and_the_workers(
    tmp_path: Path,
) -> None:
    named, text = wait_text(tmp_path, 2, 100)
    assert named == [1, 0], text  # it is too small for two
    assert ", or the workers that have not called it" in text, text


def test_a_wait_for_a_large_operation_names_the_reducer_and_the_rank_once(tmp_path: Path) -> None:
    named, text = wait_text(tmp_path, 1, 400_000)
    assert named == [1], text
    # If the workers were slow in the operation before, the reducer has got all of this one.
    awaited = text.count("rank 1 (host ") + text.count(", or the workers that have not called it")
    assert awaited == 1, text
