"""Jobs whose all-reduces go through real reducers, on loopback: right values, whatever becomes of a reducer."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from comm import ranks
from reducer import service
from reducer.service import Service, wait_for
from slipstream.base.errors import Refused

RANK = Path(__file__).with_name("job_rank.py")
GROUPS = Path(__file__).with_name("groups_rank.py")
OVERLAP = Path(__file__).parents[1] / "comm" / "overlap_rank.py"


@contextmanager
def reducers(folder: Path, count: int, *arguments: str) -> Iterator[list[Service]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(service.started(folder, *arguments)) for _ in range(count)]


def environment(services: list[Service]) -> dict[str, str]:
    names = ",".join(f"127.0.0.1:{one.port}" for one in services)
    return {"SLIPSTREAM_REDUCERS": names, "SLIPSTREAM_REDUCER_SECRET": service.SECRET.hex()}


@pytest.mark.parametrize(("n", "k"), [(2, 1), (2, 3), (3, 2), (4, 1), (4, 3)])
def test_values(tmp_path: Path, n: int, k: int) -> None:
    with reducers(tmp_path, k) as services:
        texts = ranks.run(RANK, n, transport="tcp", args=["values"], env=environment(services))
        assert texts == [""] * n
        for one in services:
            wait_for(lambda one=one: one.metrics()["jobs"] == 0, "the end of the job")
            found = one.metrics()
            assert found["works_total"] > 100
            assert found["received_bytes_total"] == found["sent_bytes_total"] > n << 20


@pytest.mark.parametrize(("n", "k"), [(2, 1), (3, 2)])
def test_fewer_bits(tmp_path: Path, n: int, k: int) -> None:
    with reducers(tmp_path, k) as services:
        ranks.run(RANK, n, transport="tcp", args=["wires"], env=environment(services))


@pytest.mark.parametrize("insists", [True, False])
def test_an_encrypted_job(tmp_path: Path, insists: bool) -> None:
    """A reducer does what its job wants, unless it insists itself."""
    with service.started(tmp_path, encrypt=insists) as one:
        env = environment([one]) | {"SLIPSTREAM_ENCRYPT": "1"}
        ranks.run(RANK, 2, transport="tcp", args=["asynchronous"], env=env, encrypt=True)
        assert one.metrics()["works_total"] > 0
        if insists:
            with pytest.raises(Refused, match="SLIPSTREAM_ENCRYPT must be the same"):
                one.register(encrypt=False)


@pytest.mark.parametrize(("n", "k"), [(2, 2), (4, 1)])
def test_several_operations_at_once(tmp_path: Path, n: int, k: int) -> None:
    with reducers(tmp_path, k) as services:
        ranks.run(RANK, n, transport="tcp", args=["asynchronous"], env=environment(services))


@pytest.mark.parametrize(("n", "k", "lanes"), [(2, 1, "1"), (3, 2, "3")])
def test_connections_are_reset(tmp_path: Path, n: int, k: int, lanes: str) -> None:
    with reducers(tmp_path, k) as services:
        env = environment(services) | {"SLIPSTREAM_LANES": lanes}
        ranks.run(RANK, n, transport="tcp", args=["resets"], env=env)


@pytest.mark.parametrize(("mode", "n"), [("orders", 2), ("orders", 3), ("orders", 4), ("threads", 2)])
def test_groups_of_all_ranks(tmp_path: Path, mode: str, n: int) -> None:
    """In any order of the ranks, and several at once: the reducers serve the one, the others do without."""
    with reducers(tmp_path, 2) as services:
        env = environment(services) | {"SLIPSTREAM_TIMEOUT": "60"}
        texts = ranks.run(GROUPS, n, transport="tcp", args=[mode], env=env)
        assert all(int(text) > 100_000 for text in texts)


def test_the_bandwidth_of_each_job_is_limited(tmp_path: Path) -> None:
    with reducers(tmp_path, 1, "--job-bandwidth", "200mbit") as services:
        env = environment(services)
        rate = services[0].metrics()["job_bandwidth_limit_bytes"]
        assert rate == 25e6
        with ranks.started(RANK, 2, transport="tcp", args=["endless"], env=env) as other:
            wait_for(lambda: all("running" in rank.text() for rank in other), "work of the other job")
            ranks.run(RANK, 2, transport="tcp", args=["limited", str(rate)], env=env)
            before = services[0].metrics()["works_total"]
            wait_for(lambda: services[0].metrics()["works_total"] > before, "further work")
            assert all(rank.process.poll() is None for rank in other)


def again(stack: contextlib.ExitStack, folder: Path, port: int) -> None:
    """Starts a reducer on a port that had one. Whoever connects somewhere may hold it for a moment."""

    def works() -> bool:
        try:
            stack.enter_context(service.started(folder, port=port))
        except service.PortInUse:
            return False
        return True

    wait_for(works, f"a reducer on port {port}")


def lose_one(
    folder: Path,
    script: Path,
    arguments: list[str],
    n: int,
    k: int,
    lost: int,
    how: str,
    transport: str = "tcp",
    envs: Mapping[int, Mapping[str, str]] | None = None,
) -> None:
    """Runs ``script`` as ``n`` ranks beside ``k`` reducers, kills or stops one, brings it back, and waits for the end.

    The ranks print "used", "lost" and "back".
    """
    with contextlib.ExitStack() as stack:
        services = [stack.enter_context(service.started(folder)) for _ in range(k)]
        env = environment(services) | {"SLIPSTREAM_REDUCER_HEARTBEAT": "0.5"}
        job = stack.enter_context(
            ranks.started(script, n, transport=transport, args=arguments, env=env, envs=envs)
        )

        def all_say(word: str) -> bool:
            for rank in job:
                assert rank.process.poll() in (None, 0), rank.text()
            return all(word in rank.text().splitlines() for rank in job)

        wait_for(lambda: all_say("used"), "work with all reducers")
        victim = services[lost]
        victim.process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
        wait_for(lambda: all_say("lost"), "the loss")
        # Of this one; on a busy machine another one may seem lost before.
        warning = f"reducer 127.0.0.1:{victim.port} is lost"
        wait_for(lambda: all(warning in rank.text() for rank in job), "the warning")
        said = "\n".join(rank.text() for rank in job)
        assert f"reducer {lost} at 127.0.0.1:{victim.port} " in said
        assert f"rank {n} " not in said
        assert "(SLIPSTREAM_HEARTBEAT" not in said
        if how == "kill":
            victim.process.wait()
            again(stack, folder, victim.port)
        else:
            victim.process.send_signal(signal.SIGCONT)
        wait_for(lambda: all_say("back"), "the return")
        for rank in job:
            assert rank.process.wait(service.LIMIT) == 0, rank.text()


@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize(
    ("n", "k", "pace"), [pytest.param(2, 1, "", marks=pytest.mark.slow), (2, 1, "--staggered"), (3, 2, "")]
)
def test_a_reducer_is_lost_and_comes_back(tmp_path: Path, n: int, k: int, pace: str, how: str) -> None:
    lose_one(tmp_path, RANK, ["loss", *pace.split()], n, k, 0, how)


def test_a_job_starts_without_a_reducer_that_is_not_there(tmp_path: Path) -> None:
    with reducers(tmp_path, 2) as services:
        gone = services[1]
        gone.process.terminate()
        assert gone.process.wait(service.LIMIT) == 0
        texts = ranks.run(RANK, 2, transport="tcp", args=["asynchronous"], env=environment(services[:1]))
        assert texts == ["", ""]
        with ranks.started(RANK, 2, transport="tcp", args=["endless"], env=environment(services)) as job:
            wait_for(lambda: all("running" in rank.text() for rank in job), "work with the other one")
            assert f"127.0.0.1:{gone.port}" in job[0].text()
            assert "the job starts without it" in job[0].text()


def test_two_jobs_share_a_reducer(tmp_path: Path) -> None:
    with reducers(tmp_path, 1) as services:
        env = environment(services)
        with ranks.started(RANK, 2, transport="tcp", args=["endless"], env=env) as other:
            wait_for(lambda: all("running" in rank.text() for rank in other), "work of the other job")
            ranks.run(RANK, 2, transport="tcp", args=["asynchronous"], env=env)
            assert all(rank.process.poll() is None for rank in other)
            assert services[0].metrics()["registered_total"] == 2


@pytest.mark.parametrize("case", ["flight", "mixed", "late", "groups"])
def test_works_in_flight_on_the_same_memory(tmp_path: Path, case: str) -> None:
    with reducers(tmp_path, 2) as services:
        ranks.run(OVERLAP, 3, transport="tcp", args=[case], env=environment(services))


def test_a_timeline_shows_the_parts_of_reducers(tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    with reducers(tmp_path, 2) as services:
        env = environment(services) | {"SLIPSTREAM_TIMELINE": str(file)}
        ranks.run(RANK, 2, transport="tcp", args=["asynchronous"], env=env)
        names = {f"reducer 127.0.0.1:{one.port}" for one in services}
    events = json.loads(file.read_text())
    rows = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["name"] == "thread_name"
    }
    parts = [event for event in events if event.get("cat") == "reducer"]
    assert {rows[part["pid"], part["tid"]].partition(" (")[0] for part in parts} == names
    assert all(part["ph"] == "X" and part["args"]["bytes"] > 0 for part in parts)
