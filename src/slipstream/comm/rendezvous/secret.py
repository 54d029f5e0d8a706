"""Where the job's secret comes from: the environment, a 0600 file, or a file of the user's own."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from slipstream.base.errors import Refused
from slipstream.base.settings import Settings, parse_secret

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find_secret", "private_directory", "read_secret", "reducer_secret", "write_private"]


def find_secret(settings: Settings) -> bytes:
    """The raw key of the job: SLIPSTREAM_SECRET, SLIPSTREAM_SECRET_FILE, else the user's own file.

    The last is ``~/.config/slipstream/secret``, made on first use; jobs over several hosts without a
    launcher need it to be the same there (a shared home directory is enough). Raises Refused with a cure
    when a file is not safe to use.
    """
    if settings.secret is not None:
        return settings.secret
    from pathlib import Path  # ranks of a launcher do not need it

    if settings.secret_file is not None:
        return read_secret(Path(settings.secret_file), "SLIPSTREAM_SECRET_FILE")
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    path = Path(base) / "slipstream" / "secret"
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, os.urandom(32).hex().encode() + b"\n", replace=False)
    except OSError as error:
        cure = "set SLIPSTREAM_SECRET to 32 or more hexadecimal digits, the same on all ranks (openssl rand -hex 16)"
        raise Refused(f"cannot make the secret {path}: {error.strerror}; {cure}") from None
    return read_secret(path, "the user's secret")


def reducer_secret(settings: Settings, job_secret: bytes | None = None) -> bytes:
    """What proves to reducers that we may use them: SLIPSTREAM_REDUCER_SECRET(_FILE), else the job's secret.

    Without ``job_secret`` that is `find_secret`'s. Raises Refused like it.
    """
    if settings.reducer_secret is not None:
        return settings.reducer_secret
    if settings.reducer_secret_file is not None:
        from pathlib import Path

        return read_secret(Path(settings.reducer_secret_file), "SLIPSTREAM_REDUCER_SECRET_FILE")
    return find_secret(settings) if job_secret is None else job_secret


def read_secret(path: Path, what: str) -> bytes:
    """Reads a secret from a file that only this user may read; raises Refused when others may."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(2048)
    except OSError as error:
        raise Refused(f"{what}: cannot read {path}: {error.strerror}") from None
    if status.st_uid != os.geteuid():
        raise Refused(f"{what}: {path} belongs to another user (uid {status.st_uid})")
    if not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o077:
        raise Refused(f"{what}: others can read {path}; run: chmod 600 {path}")
    try:
        return parse_secret(text.decode("ascii", errors="replace").strip())
    except ValueError as error:
        raise Refused(f"{what}: {path}: {error}") from None


def write_private(path: Path, data: bytes, *, replace: bool, sync: bool = True) -> None:
    """Writes a 0600 file that appears whole or not at all; keeps an existing one unless ``replace``.

    ``sync``: it outlives the machine, too.
    """
    scratch = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())
        if replace:
            os.rename(scratch, path)
        else:
            with contextlib.suppress(FileExistsError):  # another process was first: its file is as good
                os.link(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def private_directory(path: Path) -> Path:
    """Makes a directory of mode 0700, or checks that it is one of ours; raises Refused when it is not."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if (
        not stat.S_ISDIR(status.st_mode)
        or status.st_uid != os.geteuid()
        or stat.S_IMODE(status.st_mode) & 0o077
    ):
        raise Refused(f"{path} is not a directory that only this user can open; remove it")
    return path
