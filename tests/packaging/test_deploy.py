"""The files of deploy/ are what they say: their syntax, the options they give, and the names they share."""

from __future__ import annotations

import configparser
import itertools
import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipstream.base.settings import REDUCER_PORT, parse_reducers, parse_secret, variables
from slipstream.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = DEPLOY / "Containerfile"
UNIT = DEPLOY / "systemd" / "slipstream-reducer.service"
MANIFESTS = DEPLOY / "kubernetes" / "reducers.yaml"
SLURM = DEPLOY / "slurm" / "train.sh"

# Of `slipstream reducer`.
OPTIONS = {
    *("--bind", "--port", "--memory", "--jobs", "--secret-file"),
    *("--metrics-port", "--metrics-bind", "--drain-seconds"),
}


def instructions(text: str) -> dict[str, str]:
    """The last of each instruction of a container file's last stage, lines joined."""
    last = re.sub(r"\\\n\s*", "", text).rpartition("\nFROM ")[2]
    return dict(re.findall(r"^([A-Z]+) (.*?)$", last, re.MULTILINE))


def service() -> configparser.SectionProxy:
    """The section of the unit, lines joined; later settings of a name stand for all."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text().replace("\\\n", ""))
    assert {"Unit", "Service", "Install"} <= set(parser.sections())
    return parser["Service"]


def manifests() -> dict[str, dict[str, Any]]:
    """The Kubernetes objects, by kind."""
    yaml = pytest.importorskip("yaml")
    found = {document["kind"]: document for document in yaml.safe_load_all(MANIFESTS.read_text())}
    assert set(found) == {"Service", "StatefulSet"}
    return found


def pod() -> dict[str, Any]:
    """The StatefulSet's pod."""
    return dict(manifests()["StatefulSet"]["spec"]["template"]["spec"])


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `slipstream reducer` of deploy/ as words, with the file's name."""
    container = instructions(CONTAINERFILE.read_text())
    entry = json.loads(container["ENTRYPOINT"])
    assert entry[:2] == ["slipstream", "reducer"]
    yield "container", [*entry[2:], *json.loads(container["CMD"])]
    yield "systemd", service()["ExecStart"].split()[2:]
    slurm = re.search(r"slipstream reducer (.*?) &$", SLURM.read_text().replace("\\\n", ""), re.MULTILINE)
    assert slurm is not None
    yield "slurm", slurm[1].split()
    yield "kubernetes", pod()["containers"][0]["args"]


def test_every_option_is_one_of_the_command() -> None:
    names = []
    for name, words in commands():
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= OPTIONS, name
        assert {"--memory", "--secret-file", "--drain-seconds"} <= given, name
        names.append(name)
    assert names == ["container", "systemd", "slurm", "kubernetes"]


@pytest.mark.skipif("reducer" not in main.commands, reason="this build has no slipstream reducer")
def test_the_options_are_those_of_the_command() -> None:
    known = {option for parameter in main.commands["reducer"].params for option in parameter.opts}
    assert known >= OPTIONS


def test_ports_are_the_default_ones() -> None:
    words = dict(itertools.pairwise(dict(commands())["container"]))
    assert words["--port"] == str(REDUCER_PORT)
    health = instructions(CONTAINERFILE.read_text())["HEALTHCHECK"]
    assert f"http://127.0.0.1:{words['--metrics-port']}/healthz" in health
    assert f"--port {REDUCER_PORT} " in service()["ExecStart"]
    ports = {port["name"]: port["port"] for port in manifests()["Service"]["spec"]["ports"]}
    assert ports == {"control": REDUCER_PORT, "metrics": int(words["--metrics-port"])}


def test_the_container_copies_what_is_there_and_is_nobody_special() -> None:
    text = CONTAINERFILE.read_text()
    sources = [
        word for line in re.findall(r"^COPY (?!--)(.*) \S+$", text, re.MULTILINE) for word in line.split()
    ]
    needed = {"native", "src", "cmake", "CMakeLists.txt", "pyproject.toml", "README.md", "LICENSE"}
    assert needed | {"constraints.txt"} == set(sources)
    assert [name for name in sources if not (ROOT / name).exists()] == []
    uid, _, gid = instructions(text)["USER"].partition(":")
    assert int(uid) > 0 < int(gid)
    security = pod()["securityContext"]
    assert (str(security["runAsUser"]), str(security["runAsGroup"])) == (uid, gid)


def test_nothing_stops_before_it_has_drained() -> None:
    for name, words in commands():
        drain = float(re.split(r"--drain-seconds[= ]", " ".join(words))[1].split()[0])
        limits = {
            "container": re.search(r"--stop-timeout (\d+)", CONTAINERFILE.read_text()),
            "systemd": re.match(r"(\d+)$", service()["TimeoutStopSec"]),
            "kubernetes": re.match(r"(\d+)$", str(pod()["terminationGracePeriodSeconds"])),
            "slurm": re.match(r"(\d+)", "30"),  # KillWait, by default
        }
        found = limits[name]
        assert found is not None
        assert drain < float(found[1]), name


def test_memory_leaves_room_for_what_is_not_counted() -> None:
    gibibytes = {name: int(re.split(r"--memory[= ](\d+)G", " ".join(words))[1]) for name, words in commands()}
    container = pod()["containers"][0]["resources"]
    slurm = re.search(r"hetjob\n#SBATCH .*--mem=(\d+)G", SLURM.read_text())
    assert slurm is not None
    assert int(service()["MemoryMax"].removesuffix("G")) > gibibytes["systemd"]
    assert int(container["limits"]["memory"].removesuffix("Gi")) > gibibytes["kubernetes"]
    assert container["requests"]["memory"] == container["limits"]["memory"]
    assert int(slurm[1]) > gibibytes["slurm"]


def test_the_unit_is_hardened() -> None:
    unit = service()
    for name in ("DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateDevices", "MemoryDenyWriteExecute"):
        assert unit[name] == "yes", name
    assert unit["ProtectSystem"] == "strict"
    assert unit["CapabilityBoundingSet"] == ""
    assert unit["Restart"] == "on-failure"
    # What is loaded is what is copied, and what is copied is what is read.
    credential = unit["LoadCredential"].partition(":")[0]
    copied = unit["ExecStartPre"].split()
    assert copied[1:4] == ["-m", "0600", f"${{CREDENTIALS_DIRECTORY}}/{credential}"]
    assert f"--secret-file {copied[4]}" in unit["ExecStart"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = tmp_path / "slipstream"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    copy = tmp_path / UNIT.name
    text = UNIT.read_text()
    assert text.count("/usr/local/bin/slipstream ") == 1
    copy.write_text(text.replace("/usr/local/bin/slipstream ", f"{program} "))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    copy.write_text(copy.read_text() + "\n[Service]\nNoSuchSetting=1\n")
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert "NoSuchSetting" in done.stderr


def test_manifests_agree_with_themselves() -> None:
    headless, replicas = manifests()["Service"], manifests()["StatefulSet"]
    labels = replicas["spec"]["template"]["metadata"]["labels"]
    assert headless["spec"]["clusterIP"] == "None"
    assert replicas["spec"]["serviceName"] == headless["metadata"]["name"]
    (apart,) = pod()["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    for selector in (headless["spec"]["selector"], replicas["spec"]["selector"]["matchLabels"]):
        assert selector == apart["labelSelector"]["matchLabels"] == labels
    # The names that workers are told to use.
    named = re.search(r"SLIPSTREAM_REDUCERS=([^,\n]+)", MANIFESTS.read_text())
    assert named is not None
    assert named[1] == f"{replicas['metadata']['name']}-0.{headless['metadata']['name']}"


def test_pods_are_locked_up_and_watched() -> None:
    spec = pod()
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in (*spec["initContainers"], *spec["containers"]):
        security = container["securityContext"]
        assert (security["allowPrivilegeEscalation"], security["readOnlyRootFilesystem"]) == (False, True)
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert {"requests", "limits"} <= set(container["resources"])
    (reducer,) = spec["containers"]
    ports = {port["name"] for port in reducer["ports"]}
    paths = {"startupProbe": "/readyz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
    for probe, path in paths.items():
        asked = reducer[probe]["httpGet"]
        assert asked["path"] == path
        assert asked["port"] in ports


def test_the_pods_secret_is_a_file_of_their_own() -> None:
    spec = pod()
    (copy,), (reducer,) = spec["initContainers"], spec["containers"]
    assert copy["command"][:3] == ["install", "-m", "0600"]
    source, target = copy["command"][3:]
    mounts = {mount["mountPath"]: mount["name"] for mount in copy["volumeMounts"]}
    kinds = {volume["name"]: volume for volume in spec["volumes"]}
    given = kinds[mounts[os.path.dirname(source)]]["secret"]
    assert f"create secret generic {given['secretName']} " in MANIFESTS.read_text()
    assert f"--from-literal={os.path.basename(source)}=" in MANIFESTS.read_text()
    assert kinds[mounts[os.path.dirname(target)]]["emptyDir"]["medium"] == "Memory"
    assert f"--secret-file={target}" in reducer["args"]
    assert {mount["mountPath"] for mount in reducer["volumeMounts"]} == {os.path.dirname(target)}


@pytest.mark.parametrize("path", [CONTAINERFILE, UNIT, MANIFESTS], ids=lambda path: path.name)
def test_the_secret_that_a_comment_makes_is_one(path: Path) -> None:
    made = re.search(r"head -c 32 /dev/urandom \| od -An -v -tx1 \| tr -d ' \\n'", path.read_text())
    assert made is not None
    done = subprocess.run(["sh", "-c", made[0]], capture_output=True, text=True, check=True)
    assert len(parse_secret(done.stdout)) == 32


SRUN = """#!/usr/bin/env bash
set -e
echo "$@" > "$RECORD/$1"
env > "$RECORD/$1.env"
case $1 in
  --het-group=1)
    echo up > "$RECORD/up"
    exec sleep 100 ;;
  --het-group=0)
    read -r _ < "$RECORD/up"
    cp "$SLIPSTREAM_SECRET_FILE" "$RECORD/job"
    cp "$SLIPSTREAM_REDUCER_SECRET_FILE" "$RECORD/reducers"
    stat -c %a "$SLIPSTREAM_REDUCER_SECRET_FILE" > "$RECORD/mode"
    exit 7 ;;
esac
"""
SCONTROL = """#!/usr/bin/env bash
[ "$*" = "show hostnames cpu[01-40]" ] && printf 'cpu%02d\\n' {1..40}
"""


def test_the_slurm_job_runs_both_halves_and_leaves_nothing(tmp_path: Path) -> None:
    subprocess.run(["bash", "-n", SLURM], check=True)
    assert SLURM.stat().st_mode & stat.S_IXUSR
    programs, record, home = (tmp_path / name for name in ("bin", "record", "home"))
    for folder in (programs, record, home):
        folder.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    os.mkfifo(record / "up")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": str(home),
        "RECORD": str(record),
        "SLURM_JOB_ID": "1234567",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[01-40]",
    }
    command = [SLURM, "train.py", "--name", "two words"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")  # the training's own exit code
    assert list(home.iterdir()) == []
    assert (record / "--het-group=0").read_text() == "--het-group=0 python train.py --name two words\n"
    started = (record / "--het-group=1").read_text().split()
    assert started[1:3] == ["slipstream", "reducer"]
    port = int(started[started.index("--port") + 1])
    seen = dict(line.partition("=")[::2] for line in (record / "--het-group=0.env").read_text().splitlines())
    ours = {name for name in seen if name.startswith("SLIPSTREAM_")}
    assert ours == {"SLIPSTREAM_REDUCERS", "SLIPSTREAM_SECRET_FILE", "SLIPSTREAM_REDUCER_SECRET_FILE"}
    assert ours <= set(variables())
    assert parse_reducers(seen["SLIPSTREAM_REDUCERS"]) == tuple((f"cpu{i:02}", port) for i in range(1, 33))
    secrets = [parse_secret((record / name).read_text()) for name in ("job", "reducers")]
    assert secrets[0] != secrets[1]
    assert (record / "mode").read_text() == "600\n"
    assert started[started.index("--secret-file") + 1] == seen["SLIPSTREAM_REDUCER_SECRET_FILE"]
