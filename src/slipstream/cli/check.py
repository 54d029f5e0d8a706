"""``slipstream check``: what this machine offers, and what to fix."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from slipstream.base.protocol import PROTOCOL, package_version
from slipstream.base.settings import Settings
from slipstream.comm.rendezvous.discovery import advertised_addresses, interfaces

__all__ = ["Finding", "inspect", "installed_version", "works"]

_FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "jax", "mxnet", "numpy")
_FEATURES = ("avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512_bf16", "avx512_fp16", "asimd", "sve")
_VECTOR_AES = {"avx512f", "avx512vl", "vaes", "vpclmulqdq"}
_VECTOR_AES_FROM = (3, 1)  # of OpenSSL


@dataclass(frozen=True)
class Finding:
    """One line: ``state`` is ok, warn or fail, ``cure`` says what to do about it ("" when nothing)."""

    name: str
    state: str
    text: str
    cure: str = ""

    def as_dict(self) -> dict[str, str]:
        """This line for JSON."""
        return asdict(self)


def installed_version() -> str:
    """The version of the installed distribution and that of its protocol."""
    return f"{package_version()} (protocol version {PROTOCOL})"


def works(findings: list[Finding]) -> bool:
    """Whether nothing found keeps slipstream from working."""
    return all(finding.state != "fail" for finding in findings)


def inspect() -> list[Finding]:
    """Looks at everything; never raises for what it finds."""
    python = f"{platform.python_version()} ({sys.executable})"
    settings, well_formed = _settings()
    return [
        Finding("slipstream", "ok", installed_version()),
        Finding("python", "ok" if sys.version_info >= (3, 10) else "fail", python),
        Finding(
            "system", "ok" if sys.platform == "linux" else "fail", f"{platform.system()} {platform.release()}"
        ),
        _engine(),
        _cpu(),
        well_formed,
        *_network(),
        _frameworks(),
        *_limits(),
        _shared_memory(),
        _congestion(settings),
        _encryption(settings),
    ]


def _engine() -> Finding:
    try:
        core = importlib.import_module("slipstream._core")
    except ImportError as error:
        return Finding("engine", "fail", f"cannot be loaded: {error}", "install slipstream: pip install .")
    level = getattr(core, "cpu_level", None)
    return Finding("engine", "ok", f"loaded, kernels for {level()}" if callable(level) else "loaded")


def _cpu_info(*names: str) -> str:
    """What the kernel says of the first processor under one of these names; "" if it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def _cpu_flags() -> set[str]:
    return set(_cpu_info("flags", "Features").split())


def _cpu() -> Finding:
    cores, flags = len(os.sched_getaffinity(0)), _cpu_flags()
    found = " ".join(flag for flag in _FEATURES if flag in flags) or "no vector extensions we use"
    return Finding("cpu", "ok", f"{cores} cores, {_cpu_info('model name') or platform.machine()}: {found}")


def _settings() -> tuple[Settings | None, Finding]:
    """What the environment sets; None if a variable is wrong, which the finding alone says."""
    try:
        settings = Settings.from_environment()
    except ValueError as error:
        return None, Finding("settings", "fail", str(error), "correct or unset that variable")
    return settings, Finding("settings", "ok", "the SLIPSTREAM_* variables are well formed")


def _network() -> list[Finding]:
    found = []
    for one in interfaces():
        addresses = ", ".join(one.ipv4 + one.ipv6)
        if one.up and addresses:
            found.append(
                Finding("interface", "ok", f"{one.name}: {addresses}{' (loopback)' if one.loopback else ''}")
            )
    usable = advertised_addresses()
    if not usable:
        return [*found, Finding("network", "fail", "no interface has an address", "bring up at least lo")]
    if all(address.startswith("127.") or address == "::1" for address in usable):
        cure = "jobs on this host work; to join others, bring an interface up"
        return [*found, Finding("network", "warn", "only loopback is up", cure)]
    return [*found, Finding("network", "ok", f"other ranks connect to this host at {', '.join(usable)}")]


def _frameworks() -> Finding:
    # A framework may come in a distribution of another name, such as tensorflow-cpu.
    distributions = importlib.metadata.packages_distributions()
    known = [(name, distributions[name][0]) for name in _FRAMEWORKS if name in distributions]
    found = [f"{name} {importlib.metadata.version(distribution)}" for name, distribution in known]
    if not any(name.startswith("numpy") for name in found):
        return Finding("frameworks", "fail", "numpy is missing", "pip install numpy")
    return Finding("frameworks", "ok", ", ".join(found))


def _limits() -> list[Finding]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    memory = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    findings = []
    if files == resource.RLIM_INFINITY or files >= 1024:
        findings.append(Finding("open files", "ok", _count(files)))
    else:
        state = "warn" if files >= 128 else "fail"
        findings.append(Finding("open files", state, _count(files), "ulimit -n 4096"))
    cure = (
        ""
        if memory == resource.RLIM_INFINITY or memory >= 64 << 20
        else "ulimit -l unlimited, if you use GPUs"
    )
    findings.append(Finding("locked memory", "warn" if cure else "ok", _bytes(memory), cure))
    return findings


def _count(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _bytes(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit / (1 << 20):.0f} MiB"


def _shared_memory() -> Finding:
    try:
        status = os.statvfs("/dev/shm")
    except OSError as error:
        return Finding("shared memory", "warn", f"/dev/shm: {error.strerror}", "mount a tmpfs on /dev/shm")
    free = status.f_bavail * status.f_frsize
    text = f"/dev/shm: {_bytes(status.f_blocks * status.f_frsize)}, {_bytes(free)} free"
    if free < 64 << 20:
        return Finding("shared memory", "warn", text, "data loaders need more: docker run --shm-size=1g")
    return Finding("shared memory", "ok", text)


def _congestion(settings: Settings | None) -> Finding:
    base = Path("/proc/sys/net/ipv4")
    try:
        available = (base / "tcp_available_congestion_control").read_text(encoding="ascii").split()
        current = (base / "tcp_congestion_control").read_text(encoding="ascii").strip()
    except OSError:
        return Finding("congestion", "warn", "the TCP congestion controls cannot be read", "mount /proc/sys")
    text = f"the kernel's is {current}, available: {' '.join(available)}"
    if settings is None:
        return Finding("congestion", "ok", text)
    try:
        used = importlib.import_module("slipstream._core").congestion(settings.congestion)
    except ImportError:
        return Finding("congestion", "ok", text)
    except ValueError as error:
        return Finding("congestion", "fail", str(error), "correct or unset SLIPSTREAM_CONGESTION")
    return Finding("congestion", "ok", f"slipstream's connections use {used}; {text}")


def _encryption(settings: Settings | None) -> Finding:
    """Whether connections are encrypted, as this environment says, and by what they are or could be."""
    on = settings is not None and settings.encrypt
    if settings is None:
        text = "SLIPSTREAM_ENCRYPT is read once the settings are corrected; if on"
    elif on:
        text = "on (SLIPSTREAM_ENCRYPT=1), for TCP"
    else:
        text = "off; `slipstream run --encrypt` turns it on, for TCP"
    try:
        version: str = importlib.import_module("slipstream._core").crypto_version()
    except ImportError:
        return Finding("encryption", "ok", text)
    flags = _cpu_flags()
    text += f": AES-128-GCM by OpenSSL {version}, {_aes(version, flags)}"
    return Finding("encryption", "warn" if on and "aes" not in flags else "ok", text)


def _aes(version: str, flags: set[str]) -> str:
    """What libcrypto of this version makes of the processor."""
    if "aes" not in flags:
        return "without AES instructions of the processor, so it is slow"
    series = tuple(int(part) for part in version.split(".")[:2])
    if flags >= _VECTOR_AES and series < _VECTOR_AES_FROM:
        return (
            "by the processor's AES instructions; built with OpenSSL 3.1 or newer it would use the vector ones, which "
            "take about a third of the time (docs/dependencies.md)"
        )
    return "by the processor's AES instructions"
