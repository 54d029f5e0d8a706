"""How commands get to the hosts of a lab: a stand-in for ssh, or real ssh with a server on each host."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from slipstream.lab.errors import LabError
from slipstream.lab.namespaces import ProcessIdentity, enter
from slipstream.lab.spec import Spec

__all__ = ["start_ssh", "write_stand_in"]

_START_SECONDS = 20.0


def write_stand_in(folder: Path, spec: Spec, holders: Mapping[str, ProcessIdentity]) -> str:
    """Writes a script that is called like ssh and enters the host's namespaces; returns the command."""
    cases = "\n".join(
        f'  {name}|{spec.address(name)}) exec {shlex.join(enter(holder))} sh -c "$*" ;;'
        for name, holder in holders.items()
    )
    path = folder / "shell"
    path.write_text(
        "#!/bin/sh\n# Stands in for ssh: runs a command on a host of the lab.\n"
        'while :; do case "$1" in\n'
        "  --) shift; break ;; -[bcDEeFIiJLlmOopQRSWw]) shift 2 ;; -*) shift ;; *) break ;;\nesac; done\n"
        'host=${1##*@}; shift\ncase "$host" in\n'
        f'{cases}\nesac\necho "the lab has no host $host" >&2\nexit 255\n',
        encoding="utf-8",
    )
    path.chmod(0o700)
    return str(path)


def start_ssh(
    folder: Path, spec: Spec, holders: Mapping[str, ProcessIdentity], started: list[subprocess.Popen[bytes]]
) -> str:
    """Starts an ssh server on each host, with keys of its own; returns the client's command. LabError without one.

    The servers are appended to ``started``. They end with the lab.
    """
    server = shutil.which("sshd", path=os.environ.get("PATH", os.defpath) + ":/usr/sbin:/usr/local/sbin")
    if server is None or shutil.which("ssh-keygen") is None or shutil.which("ssh") is None:
        raise LabError(
            "ssh to the hosts needs openssh-server and openssh-client (Debian's names); or leave --ssh out"
        )
    for key in ("host", "user"):
        command = [
            "ssh-keygen",
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-C",
            "lab",
            "-f",
            str(folder / f"{key}_key"),
        ]
        subprocess.run(command, check=True, capture_output=True)
    public = (folder / "host_key.pub").read_text(encoding="utf-8")
    names = [(host.name, spec.address(host.name)) for host in spec.hosts]
    known = folder / "known_hosts"
    known.write_text("".join(f"{name},{address} {public}" for name, address in names), encoding="utf-8")
    client = folder / "ssh_config"
    client.write_text(
        f"Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  UserKnownHostsFile {known}\n  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n  LogLevel ERROR\n",
        encoding="utf-8",
    )
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # the server's privilege separation wants it
    for name, address in names:
        started.append(_start_server(server, folder, name, address, holders[name]))
    deadline = time.monotonic() + _START_SECONDS
    for (name, _), process in zip(names, started[-len(names) :], strict=True):
        _await_server(process, folder / f"sshd.{name}.log", name, deadline)
    return f"ssh -F {client}"


def _start_server(
    server: str, folder: Path, name: str, address: str, holder: ProcessIdentity
) -> subprocess.Popen[bytes]:
    config = folder / f"sshd_config.{name}"
    at = f"[{address}]" if ":" in address else address
    config.write_text(
        f"ListenAddress {at}:22\nHostKey {folder}/host_key\nPidFile none\nUsePAM no\nPermitRootLogin yes\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        "StrictModes no\nMaxStartups 1000\nMaxSessions 1000\n",
        encoding="utf-8",
    )
    with (folder / f"sshd.{name}.log").open("wb") as file:
        return subprocess.Popen(
            [*enter(holder), server, "-D", "-e", "-f", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            cwd="/",
            start_new_session=True,
        )


def _await_server(process: subprocess.Popen[bytes], log: Path, name: str, deadline: float) -> None:
    while "Server listening" not in (text := log.read_text(errors="replace")):
        if process.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"the ssh server of host {name} does not start: {text.strip()}")
        time.sleep(0.005)
