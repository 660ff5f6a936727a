"""``kopt agent logtail`` as a process of its own: small, and whole again after it was killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asgi_server import served
from controlplane.processes import wait_for
from logtail_endpoint import Endpoint
from replicas import KOPT
from typer.testing import CliRunner

from kopt.agents.logtail.checkpoints import listing
from kopt.cli.main import app

MOST_MIB = 128
"""The chart gives it 160. About 100 are used, some more where a machine is busy."""
HEAVY = "ray mlflow feast torch lightgbm sklearn pandas numpy kubernetes rich"


class Agent:
    """A process; its standard error is in ``log``."""

    def __init__(self, url: str, log: Path, *arguments: str, **environment: str) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith(("POD_", "KOPT_"))}
        self.log = log
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [*KOPT, "agent", "logtail", *arguments, "--predictions", url],
                stderr=file,
                stdout=file,
                env=env | environment,
            )

    @property
    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) / 1024

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def endpoint() -> Iterator[tuple[Endpoint, str]]:
    found = Endpoint()
    with served(found) as url:
        yield found, url


def write(path: Path, first: int, last: int) -> list[str]:
    lines = [f"step {n} loss 0.{n}" for n in range(first, last + 1)]
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return lines


def test_killed_at_any_moment_it_loses_and_repeats_nothing(endpoint: tuple[Endpoint, str], tmp_path: Path) -> None:
    kept, url = endpoint
    log, state = tmp_path / "train.log", tmp_path / "state.json"
    arguments = ("sidecar", str(log), "--job", "research/llama", "--source", "a/b", "--state", str(state))
    lines: list[str] = []
    for n in range(4):
        agent = Agent(url, tmp_path / f"agent-{n}.log", *arguments)
        try:
            lines += write(log, 1000 * n + 1, 1000 * n + 1000)
            enough = 1000 * n + [200, 900, 1, 500][n]
            wait_for(lambda least=enough: len(kept.lines("research/llama", "a/b")) >= least)
            if n == 1:
                time.sleep(2.5)
                log.rename(tmp_path / "train.log.1")
        finally:
            agent.end(signal.SIGKILL)
    agent = Agent(url, tmp_path / "agent.log", *arguments)
    wait_for(lambda: len(kept.lines("research/llama", "a/b")) >= 4000 and "followed" in agent.log.read_text())
    with log.open("a") as file:
        file.write("the last words, not ended")
    assert agent.end() == 0, agent.log.read_text()
    assert kept.lines("research/llama", "a/b") == [*lines, "the last words, not ended"]
    assert kept.conflicting == 0
    assert state.exists()


@pytest.mark.slow
@pytest.mark.long
def test_two_thousand_files_lines_of_a_megabyte_and_garbage_fit_into_its_memory(
    endpoint: tuple[Endpoint, str], tmp_path: Path
) -> None:
    kept, url = endpoint
    logs = tmp_path / "logs"
    logs.mkdir()
    for n in range(2000):
        write(logs / f"rank{n:04d}.log", 1, 20)
    agent = Agent(
        url,
        tmp_path / "agent.log",
        "sidecar",
        f"{logs}/*.log",
        "--job",
        "research/llama",
        "--source",
        "a",
        "--lines-per-second",
        "1000000",
        "--state",
        str(tmp_path / "state.json"),
    )
    try:
        wait_for(lambda: sum(map(len, kept.taken.values())) >= 40_000, 200)
        with (logs / "rank0000.log").open("ab") as file:
            for _ in range(20):
                file.write(b"x" * (1 << 20) + b"\n")
            file.write(os.urandom(4 << 20) + b"\n")
            file.write(b"\n" * (1 << 18))
            file.write(b"the end\n")
        wait_for(lambda: kept.lines("research/llama", "a/rank0000")[-1] == "the end", 250)
        assert agent.resident_mib < MOST_MIB
    finally:
        agent.end(signal.SIGKILL)
    for n in range(1, 2000):
        assert len(kept.lines("research/llama", f"a/rank{n:04d}")) == 20


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys; import kopt.agents.logtail.process, kopt.cli.cluster.agents.logtail; "
        f"print(sorted(set({HEAVY!r}.split()) & {{name.split('.')[0] for name in sys.modules}}), "
        "sorted(name for name in sys.modules if name.startswith(('kopt.models', 'kopt.features', 'kopt.data', "
        "'kopt.training'))))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() in (["[]", "[]"], ["['rich']", "[]"])


def test_a_checkpoint_folder_is_sent_when_it_changes(endpoint: tuple[Endpoint, str], tmp_path: Path) -> None:
    kept, url = endpoint
    folder = tmp_path / "checkpoints"
    (folder / "checkpoint-100").mkdir(parents=True)
    (folder / "checkpoint-100" / "model.safetensors").write_bytes(b"x" * 10)
    agent = Agent(
        url,
        tmp_path / "agent.log",
        "sidecar",
        str(tmp_path / "train.log"),
        "--checkpoints",
        str(folder),
        "--gpus",
        "8",
        POD_NAMESPACE="research",
        POD_NAME="llama-0",
    )
    try:
        sent = wait_for(lambda: [one for one in kept.requests if "files" in one])
        assert {(one["path"], one["bytes"], one["is_folder"]) for one in sent[0]["files"] if not one["is_folder"]} == {
            ("checkpoint-100/model.safetensors", 10, False)
        }
        assert (sent[0]["job"], sent[0]["gpus"]) == ("research/llama-0", 8.0)
        assert abs(sent[0]["files_at"] - time.time()) < 60
        (folder / "checkpoint-200").mkdir()
        wait_for(lambda: [one for one in kept.requests if len(one.get("files", ())) == 3])
    finally:
        assert agent.end() == 0


def test_a_listing_of_a_huge_or_absent_folder_is_bounded(tmp_path: Path) -> None:
    assert listing(tmp_path / "absent") == []
    (tmp_path / "loop").symlink_to(tmp_path)
    for n in range(2100):
        (tmp_path / f"{n}").touch()
    found = listing(tmp_path)
    assert len(found) == 2000
    assert {one["is_folder"] for one in found} == {False}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("sidecar", "/x", "--job", "llama"), 2, "NAMESPACE/NAME"),
        (("sidecar",), 2, "FILE"),
        (("sidecar", "/x", "--job", "a/b", "--mode", "on"), 2, "is not one of 'observe'"),
        (("sidecar", "/x", "--job", "a/b", "--mode", "annotate"), 2, "POD_NAMESPACE"),
        (("sidecar", "/x", "--job", "a/b", "--predictions", "kopt:1"), 2, "http://HOST"),
        (("sidecar", "/x", "--job", "a/b", "--state", "/no/such/place"), 1, "/no/such is no folder"),
        (("sidecar", "/x", "--job", "a/b", "--gpus", "-1"), 2, "not negative"),
        (("node", "--node", "a", "--root", "/no/such"), 1, "/var/log/pods"),
        (("node",), 2, "--node"),
        (("node", "--node=a", "--root=/", "--volumes=/no", "--kubeconfig=/no"), 1, "/no is no folder: checkpoints"),
        (("cluster", "--kubeconfig", "/no/such"), 1, "/no/such"),
        (("cluster", "--lines-per-second", "0"), 2, "positive"),
    ],
)
def test_what_cannot_be_is_said(
    arguments: tuple[str, ...], status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("POD_NAMESPACE", "POD_NAME", "NODE_NAME", "KOPT_URL"):
        monkeypatch.delenv(name, raising=False)
    done: Any = CliRunner().invoke(app, ["agent", "logtail", *arguments])
    assert (done.exit_code, words in done.output) == (status, True), done.output


def test_metrics_answer_while_it_lives(endpoint: tuple[Endpoint, str], tmp_path: Path) -> None:
    import httpx
    from controlplane.processes import free_port

    kept, url = endpoint
    write(tmp_path / "train.log", 1, 30)
    port = free_port()
    agent = Agent(url, tmp_path / "agent.log", "sidecar", str(tmp_path / "train.log"), "--job", "a/b", f"--port={port}")
    try:
        wait_for(lambda: kept.taken)
        text = wait_for(lambda: httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text)
        assert "kopt_logtail_sources 1.0" in text
        wait_for(
            lambda: (
                "kopt_logtail_lines_sent_total 30.0"
                in httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text
            )
        )
    finally:
        assert agent.end() == 0
