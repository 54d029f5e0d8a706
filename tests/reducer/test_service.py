"""`slipstream reducer` itself: who is let in, what is refused, how it ends, what it says of itself."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from comm import ranks
from reducer import service
from reducer.service import SECRET, wait_for
from slipstream import _core
from slipstream.base.errors import Refused, SlipstreamError
from slipstream.cli.main import main
from slipstream.comm.reducers import client
from slipstream.comm.reducers.client import JOB, Reply, Request, register
from slipstream.comm.rendezvous import admission, requests
from slipstream.comm.rendezvous.store import Store
from slipstream.launch.torch_rendezvous import master_port
from slipstream.observe import metrics_http
from slipstream.reducer import server
from slipstream.reducer.metrics import render, serve_metrics
from slipstream.reducer.server import Limits, Reducer

RANK = Path(__file__).with_name("job_rank.py")
ROGUE = Path(__file__).with_name("rogue.py")
HOSTILE = [
    b"\0",
    b"{}",
    b"null",
    b"[1, 2]",
    b"[" * 4000,
    b'{"job": "x", "workers": 2, "lanes": 1e400, "hosts": []}',
    b'{"job": "x", "workers": 2, "lanes": ' + b"9" * 4000 + b', "hosts": []}',
    b'{"job": "x", "workers": true, "lanes": 2, "hosts": []}',
    b'{"job": "x", "workers": 1, "lanes": 2, "hosts": []}',
    b'{"job": "x", "workers": -2, "lanes": 2, "hosts": []}',
    b'{"job": "x", "workers": 65536, "lanes": 2, "hosts": []}',
    b'{"job": "x", "workers": 2, "lanes": 65, "hosts": []}',
    b'{"job": "", "workers": 2, "lanes": 2, "hosts": []}',
    b'{"job": "a\\nb", "workers": 2, "lanes": 2, "hosts": []}',
    b'{"job": "\\ud800", "workers": 2, "lanes": 2, "hosts": []}',
    b'{"job": "' + b"x" * 1001 + b'", "workers": 2, "lanes": 2, "hosts": []}',
    b'{"job": "x", "workers": 2, "lanes": 2, "hosts": [], "more": 1}',
    b'{"job": "x", "workers": 2, "lanes": 2, "hosts": []}' + b"\xff" * 10,
    b'{"job": "x", "workers": 2, "lanes": 2}',
    b'{"job": "x", "workers": 2, "lanes": 2, "hosts": null}',
    b'{"job": "x", "workers": 2, "lanes": 2, "hosts": [0]}',
    b'{"job": "x", "workers": 2, "lanes": 2, "hosts": [0, 2]}',
    b'{"job": "x", "workers": 2, "lanes": 2, "hosts": [0, -1]}',
    b'{"job": "x", "workers": 2, "lanes": 2, "hosts": [0, true]}',
    b'{"job": "x", "workers": 1025, "lanes": 2, "hosts": [' + b"0, " * 1024 + b"0]}",
]


@pytest.fixture
def reducer() -> Iterator[Reducer]:
    """One in this process, which gives up on missing workers soon."""
    one = Reducer("127.0.0.1", 0, SECRET, Limits(idle=0.1, jobs=4))
    yield one
    one.close()


def ask(port: int, question: bytes) -> Reply:
    store = Store("127.0.0.1", port, SECRET, JOB, service.LIMIT)
    try:
        return Reply.decode(store.ask(question, service.LIMIT))
    finally:
        store.close()


# ---- who is let in


def test_limits_refuse_with_a_reason(tmp_path: Path) -> None:
    with service.started(tmp_path, "--jobs", "2", "--memory", "600M") as one:
        assert one.page("readyz") == (200, "ready\n")
        assert one.register() != 0
        with pytest.raises(
            SlipstreamError, match=r"4 workers may need 432 MiB, and 328 MiB are left \(--memory\)"
        ):
            one.register(workers=4)
        with service.calling_from("127.0.0.2"):
            assert one.register() != 0
        with pytest.raises(SlipstreamError, match=r"it has 2 jobs already \(--jobs\)"):
            one.register()
        assert one.page("readyz") == (503, "it has 2 jobs already (--jobs)\n")
        assert one.page("healthz") == (200, "alive\n")
        found = one.metrics()
        assert (found["jobs"], found["registered_total"], found["refused_total"]) == (2, 2, 2)
        assert found["memory_bytes"] == 2 * (272 << 20)
        assert found["memory_limit_bytes"] == 600 << 20
        log = [json.loads(line) for line in one.log.read_text().splitlines()]
        refused = [line["message"] for line in log if line["level"] == "warning"]
        assert len(refused) == 2
        assert all("refused a job of 127.0.0.1" in text for text in refused)


def test_another_secret_is_refused(tmp_path: Path) -> None:
    with service.started(tmp_path) as one:
        with pytest.raises(
            Refused, match=rf"^reducer 127.0.0.1:{one.port} refused .*SLIPSTREAM_REDUCER_SECRET"
        ):
            one.register(secret=bytes(32))
        assert one.metrics()["registered_total"] == 0


class Lost:
    """A worker's client whose reducer is lost."""

    def __init__(self) -> None:
        self.asked = 0

    def states(self) -> list[dict[str, Any]]:
        self.asked += 1
        return [{"used": False}]


def test_a_reducer_that_comes_back_with_another_secret_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_AGAIN_SECONDS", 0.01)
    lost: Any = Lost()
    with service.started(tmp_path) as one:
        keeper = client.Keeper([("127.0.0.1", one.port)], bytes(32), Request("job", 2, 2))
        keeper.watch(lost)
        wait_for(lambda: lost.asked > 5, "another question")
        keeper.stop()
        said = (
            f"reducer 127.0.0.1:{one.port} refused this process: the secrets differ; the job needs the secret"
        )
        assert [text.startswith(said) for text in caplog.messages] == [True], caplog.text
        assert "SLIPSTREAM_REDUCER_SECRET" in caplog.text


def test_a_reducer_that_refuses_for_another_reason_is_named_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_AGAIN_SECONDS", 0.01)
    reasons = iter(["it is busy", "it is busy", "the secrets differ"])

    def refuse(*_: object, **__: object) -> int:
        raise Refused(next(reasons, "the secrets differ"))

    monkeypatch.setattr(client, "register", refuse)
    lost: Any = Lost()
    keeper = client.Keeper([("127.0.0.1", 1)], bytes(32), Request("job", 2, 2))
    keeper.watch(lost)
    wait_for(lambda: lost.asked > 5, "more questions")
    keeper.stop()
    assert caplog.messages == [
        "it is busy; the job goes on without it",
        "the secrets differ; the job goes on without it",
    ]


def test_nobody_there_is_said() -> None:
    port = master_port(local=True)  # free, and not for whoever asks for any
    said = rf"^cannot reach reducer 127.0.0.1:{port}: .*refused: `slipstream reducer` has to run there, "
    with pytest.raises(SlipstreamError, match=said):
        register("127.0.0.1", port, SECRET, Request("job", 2, 2), timeout=0.1)


def test_hostile_requests_are_refused_and_harm_nobody(reducer: Reducer) -> None:
    port = reducer.address[1]
    for question in HOSTILE:
        reply = ask(port, question)
        assert reply.incarnation == 0, question
        assert reply.refusal, question
    store = Store("127.0.0.1", port, SECRET, JOB, service.LIMIT)
    with pytest.raises(SlipstreamError):
        store.set("request/1", b"x")  # it is no store
    with pytest.raises(SlipstreamError):
        store._request(requests.ASK, bytes(requests.MAX_QUESTION + 1), 1.0)
    store.close()
    assert reducer.status()["refused"] == len(HOSTILE)
    assert ask(port, Request("job", 2, 2).encode()).incarnation


def test_who_asks_nothing_is_hung_up_on(reducer: Reducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SECONDS", 0.2)
    store = Store("127.0.0.1", reducer.address[1], SECRET, JOB, service.LIMIT)
    assert store._sock is not None
    store._sock.settimeout(service.LIMIT)
    assert store._sock.sock.recv(1) == b""
    store.close()


def test_endless_refusals_do_not_fill_the_log(reducer: Reducer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "slipstream.reducer"):
        for _ in range(60):
            ask(reducer.address[1], b"{}")
    assert reducer.status()["refused"] == 60
    assert 20 <= len(caplog.records) < 60


# ---- jobs that end


def test_a_session_nobody_comes_to_ends(reducer: Reducer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "slipstream.reducer"):
        assert ask(reducer.address[1], Request("lonely", 3, 2).encode()).incarnation
        assert reducer.status()["memory"] == Limits().needed(3)
        wait_for(lambda: not reducer.status()["jobs"], "the end of the session")
    assert reducer.status()["memory"] == 0
    texts = [record.getMessage() for record in caplog.records]
    assert any(
        text.startswith("job lonely of 127.0.0.1") and "3 of 3 workers have been" in text for text in texts
    )


def test_a_job_that_nobody_saw_leaves_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers come, have all their works done and leave between two looks at the job."""
    monkeypatch.setattr(server, "_LOOK_SECONDS", service.LIMIT)
    reducer = Reducer("127.0.0.1", 0, SECRET)
    try:
        name = f"127.0.0.1:{reducer.address[1]}"
        env = {"SLIPSTREAM_REDUCERS": name, "SLIPSTREAM_REDUCER_SECRET": SECRET.hex()}
        ranks.run(RANK, 2, transport="tcp", args=["asynchronous"], env=env)
        (job,) = reducer._jobs
        wait_for(lambda: job.server.served()["links"] == 0, "the end of the links")
        assert reducer._look(job) == "its workers have left"
    finally:
        reducer.close()


def test_an_error_ends_one_job_alone(reducer: Reducer, monkeypatch: pytest.MonkeyPatch) -> None:
    real = _core.ReducerServer.served
    bad: list[Any] = []

    def served(server: Any) -> dict[str, Any]:
        if not bad or server is bad[0]:
            bad[:] = [server]
            raise OSError("broken")
        return real(server)

    port = reducer.address[1]
    monkeypatch.setattr(_core.ReducerServer, "served", served)
    assert ask(port, Request("bad", 2, 2).encode()).incarnation
    wait_for(lambda: not reducer.status()["jobs"], "the end of the session")
    assert ask(port, Request("good", 2, 2).encode()).incarnation
    assert reducer.status()["registered"] == 2


@pytest.mark.parametrize(
    ("own", "breach", "wait"), [(True, False, False), (False, True, True), (False, False, True)]
)
def test_a_host_does_not_wait_for_the_reducers_own_failures(
    reducer: Reducer, monkeypatch: pytest.MonkeyPatch, own: bool, breach: bool, wait: bool
) -> None:
    real = _core.ReducerServer.served
    broken = {"works": 1, "failure": "it failed", "own": own, "breach": breach}
    monkeypatch.setattr(_core.ReducerServer, "served", lambda server: real(server) | broken)
    port = reducer.address[1]
    assert ask(port, Request("bad", 2, 2).encode()).incarnation
    wait_for(lambda: not reducer.status()["jobs"], "the end of the session")
    assert ("has to wait" in ask(port, Request("next", 2, 2).encode()).refusal) == wait


def test_a_session_that_cannot_begin_leaves_nothing(
    reducer: Reducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(*_: Any, **__: Any) -> None:
        raise RuntimeError("no more threads")

    with monkeypatch.context() as patch:
        patch.setattr("slipstream._core.ReducerServer", serve)
        assert "its log says why" in ask(reducer.address[1], Request("job", 2, 2).encode()).refusal
    assert reducer.status()["memory"] == 0
    assert ask(reducer.address[1], Request("job", 2, 2).encode()).incarnation


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_job_frees_its_memory(tmp_path: Path, number: signal.Signals) -> None:
    with service.started(tmp_path) as one:
        env = {
            "SLIPSTREAM_REDUCERS": f"127.0.0.1:{one.port}",
            "SLIPSTREAM_REDUCER_SECRET": SECRET.hex(),
        }
        with ranks.started(RANK, 3, transport="tcp", args=["endless"], env=env) as job:
            wait_for(lambda: all("running" in rank.text() for rank in job), "work")
            wait_for(lambda: one.metrics()["workers"] == 3, "workers that count")
            assert one.metrics()["memory_bytes"] == Limits().needed(3)
            for rank in job:
                rank.process.send_signal(number)
            wait_for(lambda: one.metrics()["jobs"] == 0, "the end of the job")
        found = one.metrics()
        assert found["memory_bytes"] == 0
        assert found["works_total"] > 0
        assert one.register() != 0


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("data", "sent a chunk of all_reduce.* twice, or long before its turn"),
        ("leave", "its workers left without one finished work"),
        ("early", "sent a frame of a work that it has not offered"),
        ("offers", "offers a work twice"),
        ("twice", "opened a second link"),
        ("pings", "sends more than 1000 control frames a second that no work needs"),
    ],
)
def test_a_host_whose_job_broke_the_rules_has_to_wait(tmp_path: Path, mode: str, why: str) -> None:
    with service.started(tmp_path) as one, (tmp_path / "rogue").open("wb") as out:
        command = [sys.executable, str(ROGUE), mode, "127.0.0.1", str(one.port)]
        env = os.environ | {"SLIPSTREAM_REDUCER_SECRET": SECRET.hex(), "PYTHONPATH": str(service.SOURCE)}
        with subprocess.Popen(command, env=env, stdout=out, stderr=out) as rogue:
            try:  # the first time it is a second, which the rogue itself waits for
                wait_for(lambda: "127.0.0.1 has to wait 2 s" in one.log.read_text(), "a longer wait")
            finally:
                rogue.kill()
        with pytest.raises(SlipstreamError, match=rf"127.0.0.1 has to wait [\d.]+ s for its next job.*{why}"):
            one.register()
        wait_for(lambda: not _refuses(one), "the end of the wait")


def _refuses(one: service.Service) -> bool:
    try:
        return one.register() == 0
    except SlipstreamError:
        return True


# ---- how it ends


def test_sigterm_drains(tmp_path: Path) -> None:
    with service.started(tmp_path, "--drain-seconds", str(service.LIMIT)) as one:
        env = {
            "SLIPSTREAM_REDUCERS": f"127.0.0.1:{one.port}",
            "SLIPSTREAM_REDUCER_SECRET": SECRET.hex(),
        }
        with ranks.started(RANK, 2, transport="tcp", args=["endless"], env=env) as job:
            wait_for(lambda: all("running" in rank.text() for rank in job), "work")
            one.process.terminate()
            wait_for(lambda: one.page("readyz") == (503, "it is shutting down\n"), "the drain")
            assert one.page("healthz") == (200, "alive\n")
            assert one.metrics()["draining"] == 1
            with pytest.raises(SlipstreamError, match="it is shutting down"):
                one.register()
            before = one.metrics()["works_total"]
            wait_for(lambda: one.metrics()["works_total"] > before, "further work")
            assert all(rank.process.poll() is None for rank in job)
        assert one.process.wait(service.LIMIT) == 0


def test_the_drain_has_an_end_and_the_job_goes_on(tmp_path: Path) -> None:
    with service.started(tmp_path, "--drain-seconds", "0.1") as one:
        env = {
            "SLIPSTREAM_REDUCERS": f"127.0.0.1:{one.port}",
            "SLIPSTREAM_REDUCER_SECRET": SECRET.hex(),
        }
        with ranks.started(RANK, 2, transport="tcp", args=["endless"], env=env) as job:
            wait_for(lambda: all("running" in rank.text() for rank in job), "work")
            one.process.send_signal(signal.SIGINT)
            assert one.process.wait(service.LIMIT) == 0
            wait_for(lambda: all("is lost" in rank.text() for rank in job), "the loss")
            assert all(rank.process.poll() is None for rank in job)


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    with service.started(tmp_path, "--drain-seconds", "1000") as one:
        one.register()
        one.process.terminate()
        wait_for(lambda: one.page("readyz")[0] == 503, "the drain")
        one.process.terminate()
        assert one.process.wait(service.LIMIT) == 128 + signal.SIGTERM


# ---- the command


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--memory", "much"], "is not a size"),
        (["--memory", "1M"], "a job of 2 workers may need 272 MiB"),
        (["--job-bandwidth", "much"], "is not a rate"),
        (["--job-bandwidth", "9mbit"], "is less than 10mbit"),
        (["--bind", "nowhere"], "'nowhere' does not appear to be"),
        (["--metrics-bind", "x"], "'x' does not appear to be"),
        (["--bind", "192.0.2.1"], "cannot listen on 192.0.2.1"),
        (["--secret-file", "/nonexistent"], "cannot read /nonexistent"),
        (["--jobs", "0"], "--jobs"),
    ],
)
def test_mistakes_are_explained(arguments: list[str], text: str) -> None:
    env = {"SLIPSTREAM_REDUCER_SECRET": SECRET.hex()}
    result = CliRunner().invoke(main, ["reducer", "--port", "0", *arguments], env=env)
    assert result.exit_code in (1, 2)
    assert text in result.output


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        for option in ("--port", "--metrics-port"):
            given = ["reducer", "--bind", "127.0.0.1", "--port", "0", option, port]
            result = CliRunner().invoke(main, given, env={"SLIPSTREAM_REDUCER_SECRET": SECRET.hex()})
            assert result.exit_code == 1
            assert f"cannot listen on 127.0.0.1 port {port}" in result.output


def test_the_secret_comes_from_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET.hex())
    file.chmod(0o644)
    result = CliRunner().invoke(main, ["reducer", "--port", "0", "--secret-file", str(file)])
    assert result.exit_code == 1
    assert "chmod 600" in result.output
    file.chmod(0o600)
    with service.started(tmp_path, "--secret-file", str(file)) as one:
        assert one.register() != 0


# ---- the metrics port


def test_metrics_are_in_the_text_format(reducer: Reducer) -> None:
    text = render(reducer.status())
    lines = text.splitlines()
    assert text.endswith("\n")
    assert len(lines) % 3 == 0
    for help_line, kind, value in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name = value.split()[0]
        assert help_line.startswith(f"# HELP {name} ")
        assert kind in (f"# TYPE {name} gauge", f"# TYPE {name} counter")
        assert kind.endswith("counter") == name.endswith("_total")
        float(value.split()[1])
    assert "lonely" not in text


def call(address: tuple[str, int], request: bytes) -> bytes:
    with socket.create_connection(address, timeout=service.LIMIT) as sock:
        sock.sendall(request)
        return b"".join(iter(lambda: sock.recv(65536), b""))


def test_the_metrics_port_survives_its_callers(reducer: Reducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "_SECONDS", 0.3)
    with serve_metrics(reducer, "127.0.0.1", 0) as address:
        assert call(address, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nalive\n")
        head = call(address, b"HEAD /metrics HTTP/1.0\r\n\r\n")
        assert b"text/plain; version=0.0.4" in head
        assert head.endswith(b"\r\n\r\n")
        assert b" 404 " in call(address, b"GET /../etc/passwd HTTP/1.0\r\n\r\n")
        assert b" 501 " in call(address, b"POST /metrics HTTP/1.0\r\n\r\n")
        assert b" 414 " in call(address, b"GET /" + b"x" * 65600 + b" HTTP/1.0\r\n\r\n")
        call(address, b"\0\xff\r\n\r\n")
        idle = [socket.create_connection(address, timeout=service.LIMIT) for _ in range(20)]
        try:
            for sock in idle:  # most at once, the others when their time is up
                assert sock.recv(1) == b""
        finally:
            for sock in idle:
                sock.close()
        threads = {thread.name for thread in threading.enumerate()}
        assert "slipstream-metrics" in threads
        assert call(address, b"GET /readyz HTTP/1.0\r\n\r\n").endswith(b"ready\n")


def test_a_flood_of_metrics_leaves_the_health_alone(
    reducer: Reducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = threading.Event()

    def slow(_: dict[str, Any]) -> str:
        hold.wait(service.LIMIT)
        return "slow\n"

    monkeypatch.setattr("slipstream.reducer.metrics.render", slow)
    with serve_metrics(reducer, "127.0.0.1", 0) as address:
        flood = [socket.create_connection(address, timeout=service.LIMIT) for _ in range(20)]
        try:
            for sock in flood:
                sock.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            for _ in range(40):
                assert call(address, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nalive\n")
                assert call(address, b"GET /readyz HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nready\n")
            hold.set()
            texts = [b"".join(iter(lambda s=sock: s.recv(65536), b"")) for sock in flood]  # type: ignore[misc]
        finally:
            hold.set()
            for sock in flood:
                sock.close()
        assert sum(text.endswith(b"slow\n") for text in texts) >= metrics_http._RENDERING
        assert all(b" 200 " in text or b" 503 " in text for text in texts)


def test_callers_that_say_nothing_stop_no_other_one(reducer: Reducer) -> None:
    with serve_metrics(reducer, "127.0.0.1", 0) as address, contextlib.ExitStack() as idle:
        for _ in range(4 * metrics_http._CALLERS):
            idle.enter_context(socket.create_connection(address, timeout=service.LIMIT))
        for _ in range(40):
            assert call(address, b"GET /healthz HTTP/1.0\r\n\r\n").endswith(b"\r\n\r\nalive\n")


def test_a_caller_that_drips_is_hung_up_on(reducer: Reducer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "_SECONDS", 0.2)
    with serve_metrics(reducer, "127.0.0.1", 0) as address, socket.create_connection(address) as sock:

        def hung_up_on() -> bool:
            try:
                sock.sendall(b"x")
            except (ConnectionResetError, BrokenPipeError):
                return True
            return False

        wait_for(hung_up_on, "the end of the connection")


def test_a_congestion_control_that_is_not_there_is_named() -> None:
    env = {"SLIPSTREAM_CONGESTION": "none-such", "SLIPSTREAM_REDUCER_SECRET": "ab" * 32}
    done = CliRunner().invoke(main, ["reducer", "--port", "0", "--bind", "127.0.0.1"], env=env)
    assert done.exit_code == 1
    assert "SLIPSTREAM_CONGESTION=none-such: " in done.output
