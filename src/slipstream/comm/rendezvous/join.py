"""How the ranks of a job find each other: which rank this is, where the store is, and what proves membership.

`join` takes the rank from the first source that knows it (`rank_sources`) and the store from the first of

    a torch.distributed store     rank 0 serves ours and publishes its address there
    SLIPSTREAM_STORE              the launcher serves it
    SLIPSTREAM_RENDEZVOUS         rank 0 serves ours and writes its address to that file
    MASTER_ADDR, MASTER_PORT      rank 0 serves ours there, or publishes it in the store torchrun already
    serves Open MPI on one host          as a file, in a directory of the user's own
    Slurm                         rank 0 serves ours on the first host of the step

A store that rank 0 serves lives until the process ends, so that init and shutdown can be repeated: every
join is an epoch, and its keys begin with ``epoch/<name>/``. Through a torch store any group of processes can
meet, and several may at a time; so there rank 0 names the epoch. Elsewhere all ranks of the job join together,
and count.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from slipstream.base.errors import Mismatch, PeerLost, Refused, SlipstreamError, Timeout
from slipstream.base.settings import PREFIX, Settings
from slipstream.base.spans import format_spans
from slipstream.comm.rendezvous import machines
from slipstream.comm.rendezvous.discovery import (
    advertised_addresses,
    bind_addresses,
    host_id,
    reachable_addresses,
)
from slipstream.comm.rendezvous.rank_sources import Placement, expand_nodelist, find_placement, slurm_port
from slipstream.comm.rendezvous.secret import find_secret, private_directory, write_private
from slipstream.comm.rendezvous.start_identity import start_identity
from slipstream.comm.rendezvous.store import (
    LONGER,
    Called,
    Store,
    connect_any,
    own_entry,
)
from slipstream.comm.rendezvous.waiting import says_who_is_late

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.comm.rendezvous.store_server import StoreServer

__all__ = ["Layout", "Membership", "exchange", "given_up", "join", "local_layout", "when_in_doubt"]

_epoch = 0  # joins of this process without a torch store so far; every rank of a job counts alike
_last = ""  # the name of the latest of these
_identity: dict[str, str] = {}  # what this process's launcher calls its start
_names: set[str] = set()  # of the starts that this process came to through torch stores
_servers: dict[tuple[tuple[str, ...], int, str, bytes, bool], StoreServer] = {}
_own_stores: weakref.WeakSet[Store] = weakref.WeakSet()  # this process's connections to its own servers
_files: set[Path] = set()
_MOST_ADDRESSES = 64  # that are tried: who wrote them has not proved that it knows the secret
_LOOK = 0.5  # seconds to look whether there is a store already
_LOOK_EARLIER = 3.0  # seconds to look whether an earlier start's store is still there
_LINGER = 5.0  # seconds a process that serves a store waits at its end for the others to hang up


class Layout(NamedTuple):
    """Where a rank stands: among the ranks of its host, and among those with its local rank elsewhere."""

    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclass
class Membership:
    """What a process knows once it has joined: its place, the secret (raw key), the store (None if alone)."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    secret: bytes = field(repr=False)
    job: str
    store: Store | None
    epoch: str
    start_timeout: float
    host_ids: list[str] = field(repr=False)
    exchanges: int = 0

    def key(self, name: str) -> str:
        """``name`` as a store key of this epoch."""
        return f"epoch/{self.epoch}/{name}"

    def close(self, why: str = "") -> None:
        """Hangs up; a store served by this process keeps running for the next join.

        ``why``: this rank gives up; ranks that still wait for others of the start get PeerLost with these words.
        """
        if self.store is not None:
            self.store.leave(why)


def exchange(membership: Membership, payload: bytes, lacking: str = "") -> list[bytes]:
    """All-gathers up to 16 MiB per rank through the store; all ranks call it in the same order.

    Returns every rank's payload, by rank. Raises Timeout naming the ranks that did not come; ``lacking``: what it says
    that they have not done.
    """
    if membership.store is None:
        return [payload]
    membership.exchanges += 1
    prefix = membership.key(f"exchange/{membership.exchanges}")
    membership.store.set(f"{prefix}/{membership.rank}", payload)
    limit = membership.start_timeout
    late = says_who_is_late(membership.rank, membership.size, limit, lacking) if lacking else None
    return membership.store.gather(prefix, membership.size, limit, lacking, late=late)


def local_layout(host_ids: Sequence[str], rank: int) -> Layout:
    """Places ``rank`` by every rank's host id, in order of rank: on its host, and across hosts."""
    mine = [r for r, host in enumerate(host_ids) if host == host_ids[rank]]
    local_rank = mine.index(rank)
    return Layout(local_rank, len(mine), *_across(_local_ranks(host_ids), rank))


def _local_ranks(host_ids: Sequence[str]) -> list[int]:
    seen: dict[str, int] = {}
    local_ranks = []
    for host in host_ids:
        local_ranks.append(seen.get(host, 0))
        seen[host] = local_ranks[-1] + 1
    return local_ranks


def _across(local_ranks: Sequence[int], rank: int) -> tuple[int, int]:
    same = [r for r, local_rank in enumerate(local_ranks) if local_rank == local_ranks[rank]]
    return same.index(rank), len(same)


def join(
    settings: Settings,
    *,
    rank: int | None = None,
    size: int | None = None,
    torch_store: Any = None,
    environ: Mapping[str, str] | None = None,
) -> Membership:
    """Finds the other ranks and waits for all of them.

    ``torch_store`` is a ``torch.distributed`` store every rank shares. Raises ValueError for a malformed or
    incomplete environment, Timeout naming ranks that did not come within ``settings.start_timeout`` seconds,
    Refused when the secret or job differs, Mismatch when ranks disagree about the size.
    """
    global _epoch, _identity, _last
    environ = os.environ if environ is None else environ
    placement = find_placement(settings, environ, rank, size)
    _identity = start_identity(placement, environ)
    if torch_store is not None and placement.size > 1:
        secret = find_secret(settings)
        store, name = _by_torch(settings, placement, torch_store, "", secret)
        return _meet_or_close(settings, placement, store, secret, name)
    epoch = _epoch + 1
    if placement.size == 1 and settings.store is None:
        membership = _alone(settings, str(epoch))
    else:
        store, secret, name = _open_store(settings, placement, environ, epoch)
        membership = _meet_or_close(settings, placement, store, secret, name)
        if placement.rank == 0 and _last:  # all ranks are here, so none needs the epoch before
            store.delete_prefix(f"epoch/{_last}/")
        _last = membership.epoch
    _epoch = epoch
    return membership


def _meet_or_close(
    settings: Settings, placement: Placement, store: Store, secret: bytes, epoch: str
) -> Membership:
    if (store.host, store.port) != settings.store:
        store.server = "rank 0"
    try:
        nonce = store.enter(epoch, placement.rank, settings.host_name, _identity)
        return _meet(settings, placement, store, secret, f"{epoch}.{nonce}")
    except BaseException as error:
        store.leave(given_up(error, store))
        raise


def when_in_doubt(member: Membership, tell: Callable[[str], None]) -> Callable[[], None]:
    """Has ``tell`` called, on any thread, if another process claims a rank of ``member``'s start soon after it has met.

    Only the rank that serves the store knows, so call it on all. Returns what ends that.
    """
    for server in _servers.values():
        server.claims.watch(member.epoch, tell)

    def end() -> None:
        for server in _servers.values():
            server.claims.unwatch(member.epoch)

    return end


def given_up(error: BaseException, store: Store | None = None) -> str:
    """What the other ranks are told of a rank whose start failed. Nothing if they will see the same themselves.

    A rank that serves the ``store`` tells that it has waited long enough: its process may end with the store.
    """
    if isinstance(error, Timeout) and store not in _own_stores:
        return ""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _alone(settings: Settings, epoch: str) -> Membership:
    secret = settings.secret or os.urandom(32)
    ids = [host_id(settings.host_id)]
    return Membership(0, 1, 0, 1, 0, 1, secret, settings.job, None, epoch, settings.start_timeout, ids)


def _meet(settings: Settings, placement: Placement, store: Store, secret: bytes, epoch: str) -> Membership:
    own = {
        "size": placement.size,
        "host": host_id(settings.host_id),
        "local": placement.local_rank,
        "hostname": settings.host_name or socket.gethostname(),
        "machine": machines.mark(),
        "process": os.getpid(),
    }
    member = Membership(
        placement.rank,
        placement.size,
        0,
        1,
        0,
        1,
        secret,
        settings.job,
        store,
        epoch,
        settings.start_timeout,
        [],
    )
    come = "every rank must start and call slipstream.init (or init_process_group)"
    if store.server and placement.rank == 0:
        come += ", with the same SLIPSTREAM_JOB"
    everyone = [json.loads(text) for text in exchange(member, json.dumps(own).encode(), come)]
    if store.server:
        store.server = f"rank 0 (process {everyone[0]['process']} on host {everyone[0]['hostname']})"
    _check_sizes([one["size"] for one in everyone])
    member.host_ids = [one["host"] for one in everyone]
    if machines.doubtful(member.host_ids, [one["machine"] for one in everyone]):
        member.host_ids = machines.told_apart(
            member.host_ids,
            member.rank,
            lambda text: exchange(member, text, "not all ranks have looked for those with their host id"),
        )
    layout = local_layout(member.host_ids, placement.rank)
    if placement.local_rank is not None and placement.local_size is not None:
        given = [one["local"] for one in everyone]
        across = layout.cross_rank, layout.cross_size
        if None not in given:
            across = _across(given, placement.rank)
        if placement.cross_rank is not None and placement.cross_size is not None:
            across = placement.cross_rank, placement.cross_size
        layout = Layout(placement.local_rank, placement.local_size, *across)
    member.local_rank, member.local_size = layout.local_rank, layout.local_size
    member.cross_rank, member.cross_size = layout.cross_rank, layout.cross_size
    return member


def _check_sizes(sizes: Sequence[int]) -> None:
    """``sizes``: what each rank was told."""
    if len(set(sizes)) == 1:
        return
    told = []
    for size in sorted(set(sizes)):
        ranks = [rank for rank, its in enumerate(sizes) if its == size]
        told.append(f"{size} on rank{'s' if len(ranks) > 1 else ''} {format_spans(ranks)}")
    raise Mismatch(
        f"the ranks were started with different sizes: {'; '.join(told)}: SLIPSTREAM_SIZE, or what the launcher sets "
        "in its place (WORLD_SIZE), must be the same on all ranks"
    )


# ---- finding the store ----


def _open_store(
    settings: Settings, placement: Placement, environ: Mapping[str, str], epoch: int
) -> tuple[Store, bytes, str]:
    """The store, the secret it asks for, and the name of the epoch."""
    if settings.store is None and settings.rendezvous is None and "MASTER_ADDR" in environ:
        secret = find_secret(settings)
        store, name = _by_master(settings, placement, environ, secret, epoch)
        return store, secret, name
    return *_open_own_store(settings, placement, environ), str(epoch)


def _open_own_store(
    settings: Settings, placement: Placement, environ: Mapping[str, str]
) -> tuple[Store, bytes]:
    rank, one_host = placement.rank, placement.local_size == placement.size
    if settings.store is not None:
        if settings.secret is None and settings.secret_file is None:
            raise Refused(f"{PREFIX}STORE is set, but neither {PREFIX}SECRET nor {PREFIX}SECRET_FILE")
        host, port = settings.store
        secret = find_secret(settings)
        return Store(
            host, port, secret, settings.job, settings.start_timeout, rank=rank, encrypt=settings.encrypt
        ), secret
    secret = find_secret(settings)
    if settings.rendezvous is not None:
        from pathlib import Path  # ranks of a launcher do not need it

        return _by_file(settings, Path(settings.rendezvous), rank, one_host, secret), secret
    if placement.source == "openmpi" and one_host:
        return _by_file(settings, _openmpi_file(environ), rank, one_host, secret), secret
    if placement.source == "slurm":
        host = expand_nodelist(environ["SLURM_STEP_NODELIST"])[0]
        port = settings.port or slurm_port(environ)
        return _by_port(settings, host, port, rank, secret, f"SLURM_STEP_NODELIST and {PREFIX}PORT"), secret
    raise ValueError(
        f"rank {rank} of {placement.size} ({placement.source}) does not know the address of the store: set "
        f"MASTER_ADDR and MASTER_PORT, or {PREFIX}RENDEZVOUS=file:///a/shared/path, or use slipstream run"
    )


def _serve(settings: Settings, bind: list[str], port: int, secret: bytes) -> StoreServer:
    """The store this process serves at that place, started at the first join."""
    key = (tuple(bind), port, settings.job, secret, settings.encrypt)
    if key not in _servers:
        from slipstream.comm.rendezvous.store_server import StoreServer  # one rank serves, at most

        owner = own_entry("", 0, settings.host_name, _identity)
        _servers[key] = StoreServer(bind, secret, settings.job, port, encrypt=settings.encrypt, owner=owner)
    return _servers[key]


@atexit.register
def _close_servers() -> None:
    """Rank 0 is often the first to end: the others may still be reading what they met for."""
    for store in _own_stores:
        store.close()
    for server in _servers.values():
        server.close(_LINGER)
    for path in _files:
        path.unlink(missing_ok=True)


def _forget_after_fork() -> None:
    """A forked child has no server thread, and its parent's files are not its own."""
    for server in _servers.values():
        server.forget()
    _servers.clear()
    _files.clear()
    _names.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


def _publish(settings: Settings, secret: bytes, one_host: bool) -> tuple[StoreServer, bytes]:
    """Serves a store on any port and returns it with the text that tells other ranks where it is."""
    bind = bind_addresses(settings.interface, one_host=one_host)
    server = _serve(settings, bind, settings.port or 0, secret)
    hosts = bind
    if settings.address and not one_host:
        hosts = reachable_addresses(settings.address, settings.interface)
    elif {"0.0.0.0", "::"} & set(bind):
        hosts = advertised_addresses(settings.interface, one_host=True)
    return server, json.dumps({"hosts": hosts, "port": server.address[1], "job": settings.job}).encode()


def _read_published(text: bytes) -> list[tuple[str, int]]:
    try:
        found = json.loads(text)
        return [(str(host), int(found["port"])) for host in found["hosts"][:_MOST_ADDRESSES]]
    except (ValueError, KeyError, TypeError):
        return []


def _own_store(settings: Settings, server: StoreServer, secret: bytes) -> Store:
    host, port = server.address
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    store = Store(host, port, secret, settings.job, settings.start_timeout, rank=0, encrypt=settings.encrypt)
    _own_stores.add(store)
    return store


def _by_file(settings: Settings, path: Path, rank: int, one_host: bool, secret: bytes) -> Store:
    if rank == 0:
        _check_free(settings, path, secret)
        server, text = _publish(settings, secret, one_host)
        try:
            write_private(path, text, replace=True)
        except OSError as error:
            raise ValueError(f"{PREFIX}RENDEZVOUS: cannot write {path}: {error.strerror}") from None
        _files.add(path)
        return _own_store(settings, server, secret)

    def addresses() -> list[tuple[str, int]]:
        try:
            return _read_published(path.read_bytes())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ValueError(f"{PREFIX}RENDEZVOUS: cannot read {path}: {error.strerror}") from None

    where = f"rank 0 has not written its address to {path}"
    try:
        return connect_any(
            addresses, secret, settings.job, settings.start_timeout, rank, where, encrypt=settings.encrypt
        )
    except Refused:
        _check_job(settings, path, rank)
        raise


def _check_job(settings: Settings, path: Path, rank: int) -> None:
    """Refused, with both names, if the file is of a job of another name."""
    try:
        job = str(json.loads(path.read_bytes())["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if job != settings.job:
        raise Refused(
            f"SLIPSTREAM_JOB differs: it is {job!r:.80} on the rank 0 that wrote {path}, and {settings.job!r} on this "
            f"rank {rank}: give all ranks of a job the same, and each job a file of its own"
        )


def _check_free(settings: Settings, path: Path, secret: bytes) -> None:
    """Refused if another rank 0 of a job like this one serves the store that the file names."""
    try:
        addresses = _read_published(path.read_bytes())
    except OSError:
        return
    own = {server.address[1] for server in _servers.values()}
    for host, port in addresses:
        if port not in own:
            _claim_rank_0(settings, host, port, secret)


def _claim_rank_0(settings: Settings, host: str, port: int, secret: bytes) -> None:
    """Refused, naming both, if a store of this job is there already. It tells those who have come to it."""
    if _claim(settings, host, port, secret, str(_epoch + 1), 0, _LOOK):
        raise Refused(f"another process serves the store of this job already, at {host} port {port}")


def _claim(
    settings: Settings, host: str, port: int, secret: bytes, start: str, rank: int, seconds: float
) -> bool:
    """Whether a store of this job is there. Refused, naming both, if another process is the rank in its start."""
    try:
        store = Store(host, port, secret, settings.job, seconds, rank=rank, encrypt=settings.encrypt)
    except SlipstreamError:
        return False  # nobody, or somebody else
    try:
        store.enter(start, rank, settings.host_name, _identity)
        return True
    except PeerLost:
        return False
    finally:
        store.leave("another process claims this rank")


def _by_port(settings: Settings, host: str, port: int, rank: int, secret: bytes, by: str) -> Store:
    """``by``: what says where rank 0 is, for errors."""
    if rank != 0:
        limit = settings.start_timeout
        called = Called(
            absent=f": {by} must name the host of rank 0, and a port that is open between the hosts. Rank {rank} has "
            f"tried for {limit:g} s; SLIPSTREAM_START_TIMEOUT sets another time"
        )
        return Store(
            host, port, secret, settings.job, limit, rank=rank, encrypt=settings.encrypt, called=called
        )
    bind = bind_addresses(settings.interface, one_host=host in ("localhost", "127.0.0.1"))
    if settings.interface is None and host == "::1":
        bind = [host]
    try:
        server = _serve(settings, bind, port, secret)
    except OSError as error:
        try:
            _claim_rank_0(settings, host, port, secret)
        except SlipstreamError as refusal:
            raise refusal from None
        raise SlipstreamError(
            f"rank 0 cannot serve the store: {error}; if another job or program uses that port, set another "
            f"MASTER_PORT on all ranks; if torch.distributed of this job does, set {PREFIX}PORT to a free one on all "
            "ranks, or pass its store to init"
        ) from None
    return _own_store(settings, server, secret)


def _by_master(
    settings: Settings, placement: Placement, environ: Mapping[str, str], secret: bytes, epoch: int
) -> tuple[Store, str]:
    host, text = environ["MASTER_ADDR"], environ.get("MASTER_PORT", "")
    if not (text.isdigit() and 0 < int(text) < 65536):
        raise ValueError(f"MASTER_PORT: expected a port, got {text!r:.80}")
    if environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        by = f"MASTER_ADDR and {'MASTER_PORT' if settings.port is None else f'{PREFIX}PORT'}"
        store = _by_port(settings, host, settings.port or int(text), placement.rank, secret, by)
        return store, str(epoch)
    from datetime import timedelta

    distributed: Any = importlib.import_module("torch.distributed")  # torchrun started us, so torch is there
    limit = timedelta(seconds=settings.start_timeout)
    agent = distributed.TCPStore(host, int(text), None, False, timeout=limit)
    run = "/".join(environ.get(name, "0") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"))
    return _by_torch(settings, placement, agent, run, secret)


def _by_torch(
    settings: Settings, placement: Placement, torch_store: Any, run: str, secret: bytes
) -> tuple[Store, str]:
    """Meets through a torch store, which proves nothing: only an address and a name go through it."""
    from datetime import timedelta

    prefix = f"slipstream/{settings.job}/{run}"
    turn = torch_store.add(f"{prefix}/joins/{placement.rank}", 1)
    key, earlier = f"{prefix}/{turn}", f"{prefix}/{turn - 1}"
    _claim_earlier(settings, placement.rank, torch_store, earlier, secret)
    if placement.rank == 0:
        server, text = _publish(settings, secret, placement.local_size == placement.size)
        name = os.urandom(8).hex()
        _names.add(name)
        torch_store.set(key, json.dumps({**json.loads(text), "epoch": name}))
        return _own_store(settings, server, secret), name
    try:
        torch_store.wait([key], timedelta(seconds=settings.start_timeout))
    except RuntimeError as error:
        _claim_earlier(settings, placement.rank, torch_store, earlier, secret)
        limit = f"{settings.start_timeout:g} s"
        raise Timeout(f"rank 0 published no store within {limit} ({type(error).__name__}){LONGER}") from error
    text = bytes(torch_store.get(key))
    published, name = _read_published(text), _read_epoch(text)
    _names.add(name)
    nothing = "rank 0 published no address"
    store = connect_any(
        lambda: published,
        secret,
        settings.job,
        settings.start_timeout,
        placement.rank,
        nothing,
        encrypt=settings.encrypt,
    )
    return store, name


def _claim_earlier(settings: Settings, rank: int, torch_store: Any, key: str, secret: bytes) -> None:
    """Refused, naming both, if another process was this rank in the start before, and its rank 0 is still there."""
    try:
        text = bytes(torch_store.get(key)) if torch_store.check([key]) else b""
    except RuntimeError:  # the store is gone, or cannot tell
        return
    if (name := _read_epoch(text)) in _names:
        return  # this process was there
    for host, port in _read_published(text):
        if _claim(settings, host, port, secret, name, rank, _LOOK_EARLIER):
            return


def _read_epoch(text: bytes) -> str:
    try:
        return str(json.loads(text)["epoch"])[:64]
    except (ValueError, KeyError, TypeError):
        return ""


def _openmpi_file(environ: Mapping[str, str]) -> Path:
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri")
    job = next((environ[name] for name in names if environ.get(name)), "")
    if not job:
        raise ValueError(f"this Open MPI does not name its job; set {PREFIX}RENDEZVOUS=file:///a/path")
    name = "".join(c if c.isalnum() else "-" for c in job)[:128]
    import tempfile
    from pathlib import Path

    base = Path(environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    return private_directory(base / f"slipstream-{os.getuid()}") / f"openmpi-{name}"
