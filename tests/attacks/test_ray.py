"""Ray runs whatever it is sent: nobody but its owner may reach it, neither from outside nor from the same machine."""

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from replicas import KOPT

from kopt.data.demand.files import write_demand
from kopt.data.demand.generator import generate
from kopt.serving.base import scratch
from kopt.serving.base.local_ray import LOOPBACK_SWITCH
from tests.attacks.conftest import PATIENCE_S, Stranger, environ, family, listeners

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]
PLATFORM = """
import sys
from pathlib import Path
from kopt.cli.local.platform import _RayIsSlow, _start_ray
from kopt.core.settings import Settings
from kopt.serving.endpoint import deploy
settings = Settings(home=Path(sys.argv[1]), api_port=0)
deploy.prepare_environment(settings)
for attempt in range(4):
    try:
        tasks = _start_ray(settings)
        break
    except _RayIsSlow:
        continue
with tasks:
    running = deploy.start(settings, ready_within_s=300)
    print(running.url, flush=True)
    sys.stdin.read()
    deploy.stop(running)
"""
AGENT_PORT = 52365
JOIN = """
import os, sys
import ray
try:
    ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)
except Exception as error:
    print("refused", type(error).__name__)
else:
    print("joined", ray.nodes())
"""


@dataclass(frozen=True)
class Platform:
    """The process of ``kopt up`` that starts Ray and serves, without the steps before."""

    home: Path
    url: str
    process: "subprocess.Popen[str]"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("somebody")
    home, log = folder / "home", folder / "log"
    home.mkdir()
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PLATFORM, str(home)],
            env=environ(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout is not None
        url = next((line.strip() for line in process.stdout if line.startswith("http://127.0.0.1:")), "")
        assert url, log.read_text()
        yield Platform(home, url, process)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[Any]") -> None:
    left = family(process.pid)
    for each in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    psutil.wait_procs(left, timeout=60)


class Trainings:
    """Runs of ``kopt train`` whose Ray has all its ports open; another starts only where the last has ended."""

    _last: "subprocess.Popen[bytes] | None" = None

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._home = folder / "home"
        self._home.mkdir()
        write_demand(generate(services=12, days=12.0, seed=2), self._home / "demand", source="generator")

    def running(self) -> "subprocess.Popen[bytes]":
        if self._last is None or self._last.poll() is not None:
            self.end()
            self._last = self._start()
        return self._last

    def _start(self) -> "subprocess.Popen[bytes]":
        self._count += 1
        log = self._folder / f"log-{self._count}"
        with log.open("wb") as out:
            command = [*KOPT, "train", "demand", "--folds", "3"]
            process = subprocess.Popen(command, env=environ(self._home), stdout=out, stderr=out)
        deadline = time.monotonic() + 3 * PATIENCE_S
        while not any("DashboardAgent" in listener.process for listener in listeners(process.pid)):
            if process.poll() is not None or time.monotonic() > deadline:
                _end(process)
                raise AssertionError(log.read_text())
            time.sleep(0.1)
        return process

    def end(self) -> None:
        if self._last is not None:
            _end(self._last)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trainings]:
    trainings = Trainings(tmp_path_factory.mktemp("trainings"))
    yield trainings
    trainings.end()


@pytest.fixture
def training(trainings: Trainings) -> "subprocess.Popen[bytes]":
    return trainings.running()


@pytest.mark.long
def test_every_port_of_a_training_is_on_loopback_and_a_stranger_runs_nothing(
    training: "subprocess.Popen[bytes]", stranger: Stranger
) -> None:
    ports = listeners(training.pid)
    assert {"gcs_server", "raylet"} <= {listener.process for listener in ports}
    assert not [listener for listener in ports if not _is_loopback(listener.address)]
    _attack(training.pid, stranger)


@pytest.mark.long
def test_a_killed_training_leaves_no_folder_behind(training: "subprocess.Popen[bytes]") -> None:
    raylet = next(each for each in family(training.pid) if each.name() == "raylet")
    (folder,) = _folders(raylet)
    left = family(training.pid)
    assert folder.is_dir()
    assert folder not in scratch.remove_abandoned(), "it was taken from a run that lives"
    for each in left:
        each.send_signal(signal.SIGKILL)
    training.wait()
    psutil.wait_procs(left, timeout=60)
    # Whatever starts next clears up.
    scratch.remove_scratch(scratch.make_scratch())
    assert not folder.exists()


def test_every_port_of_the_platform_is_on_loopback(platform: Platform) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        ports = listeners(platform.process.pid)
        processes = {listener.process for listener in ports}
        opened = {"gcs_server", "raylet", "haproxy"} <= processes and any("ServeReplica" in name for name in processes)
        # HAProxy is started again with each change of what it serves: it has no port then.
        if opened or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    assert opened, processes
    assert not [listener for listener in ports if not _is_loopback(listener.address)]
    assert not [address for address in _udp(platform.process.pid) if not _is_loopback(address)]


def test_a_stranger_runs_nothing_in_the_ray_of_the_platform(platform: Platform, stranger: Stranger) -> None:
    _attack(platform.process.pid, stranger)


def test_the_token_is_on_no_command_line_and_in_no_file_that_others_may_read(platform: Platform) -> None:
    raylet = next(each for each in family(platform.process.pid) if each.name() == "raylet")
    assert raylet.environ()["RAY_AUTH_MODE"] == "token"
    token = raylet.environ()["RAY_AUTH_TOKEN"]
    assert len(token) >= 32
    for each in family(platform.process.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            assert token not in " ".join(each.cmdline())
    roots = _folders(raylet)
    assert roots
    assert not [root for root in roots if root.stat().st_mode & 0o077], "others may read Ray's files and sockets"
    for root in (*roots, platform.home):
        assert not [path for path in root.rglob("*") if _mentions(path, token.encode())]


def _attack(pid: int, stranger: Stranger) -> None:
    """Jobs over every port that speaks HTTP, by another user; and Ray's own door, without a token and with a wrong."""
    job = {"entrypoint": "id > /tmp/owned", "submission_id": "attack"}
    deadline, statuses, ours = time.monotonic() + PATIENCE_S, set[int](), listeners(pid)
    while not statuses & {200, 401, 403} and time.monotonic() < deadline:
        ours = listeners(pid)
        if AGENT_PORT not in {listener.port for listener in ours} and _is_elsewhere(AGENT_PORT, pid):
            break
        for agent in (listener for listener in ours if "DashboardAgent" in listener.process):
            address = agent.address.removeprefix("::ffff:")
            statuses.add(stranger.request("POST", address, agent.port, "/api/job_agent/jobs/", job).status)
    assert 200 not in statuses, "a job was taken"
    # Where another Ray of this machine had the port, this one has none that takes jobs.
    assert statuses & {401, 403} or AGENT_PORT not in {listener.port for listener in ours}, statuses
    gcs = next(listener for listener in listeners(pid) if listener.process == "gcs_server")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    for attempt in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}):
        done = subprocess.run(
            [sys.executable, "-P", "-c", JOIN, f"127.0.0.1:{gcs.port}"],
            env={**clean, LOOPBACK_SWITCH: "0", **attempt},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert "joined" not in done.stdout, (attempt, done.stdout)
        assert "refused" in done.stdout, (attempt, done.stdout, done.stderr[-500:])
        assert "Auth" in done.stdout + done.stderr, (attempt, done.stdout, done.stderr[-500:])


def _is_elsewhere(port: int, pid: int) -> bool:
    """Does another Ray of this machine have the one port that agents take jobs on? The second has none then."""
    if port in {listener.port for listener in listeners(pid)}:
        return False
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.removeprefix("::ffff:")).is_loopback


def _udp(pid: int) -> set[str]:
    return {used.laddr.ip for each in family(pid) for used in each.net_connections("udp")}


def _folders(raylet: psutil.Process) -> set[Path]:
    """The scratch folders below which the paths in a raylet's options ``--name=path`` lie, also of commands in them."""
    words = " ".join(raylet.cmdline())
    return {Path(found) for found in re.findall(r"=(/[^\s=]*kopt-ray-[^/\s]+)", words)}


def _mentions(path: Path, token: bytes) -> bool:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 50 << 20:
        return False
    return token in path.read_bytes()
