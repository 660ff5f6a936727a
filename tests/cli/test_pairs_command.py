"""``kopt bandwidth pairs``: logs of pairs read, judged and posted; what the endpoint keeps, as a table and as JSON."""

import json
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path

import pytest
import topology_outputs as rendered
from bandwidth_nodes import cube_mesh

from kopt.core.hardware.pairwise import MeasuredPair
from tests.cli.conftest import Kopt
from tests.cli.endpoints import shipped_endpoint

NAMES = ("gpu-1", "gpu-2", "gpu-3", "gpu-4")


def log(times: float = 1.0, collective: str = "all_reduce") -> str:
    """Eight GPUs of each of two nodes; nccl-tests' rows with times that many times longer."""
    lines = []
    for line in rendered.nccl_tests(16, collective).split("\n"):
        if "# Rank " in line.replace("#  ", "# ") and int(line.split()[2]) >= 8:
            line = line.replace("on node-1", "on node-2")
        lines.append(line)
    text = "\n".join(lines)
    return text if times == 1.0 else slower(text, times)


def slower(text: str, times: float) -> str:
    found, total = [], []
    for line in text.split("\n"):
        words = line.split()
        if words and words[0].isdigit():
            size, time_us = int(words[0]), float(words[5]) * times
            algbw = size / time_us / 1000
            figures = f"{time_us:.2f} {algbw:.2f} {algbw * 30 / 16:.2f} 0"
            total.append(round(algbw * 30 / 16, 2))
            line = " ".join([*words[:5], figures, figures])
        elif line.startswith("# Avg bus bandwidth"):
            line = f"# Avg bus bandwidth    : {sum(total) / len(total):.6g} "
        found.append(line)
    return "\n".join(found)


@pytest.fixture
def logs(tmp_path: Path) -> list[str]:
    """Every two of four nodes, those with gpu-4 at a third."""
    found = []
    for a, b in combinations(NAMES, 2):
        path = tmp_path / f"{a}-{b}.log"
        path.write_text(log(3.0 if b == "gpu-4" else 1.0) + "NCCL version 2.27.3+cuda12.9\n")
        found.append(f"{b},{a}={path}")
    return found


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(cube_mesh().to_dict()))
    return str(path)


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with shipped_endpoint(tmp_path / "endpoint") as address:
        monkeypatch.setenv("KOPT_URL", address)
        yield address


def test_logs_become_pairs_beside_what_the_hardware_lets_expect(kopt: Kopt, logs: list[str], node: str) -> None:
    found = kopt("bandwidth", "pairs", *logs, "--topology", node, "-o", "json").json
    assert len(found["pairs"]) == 6
    one = MeasuredPair.from_dict(found["pairs"][0])
    assert (one.nodes, one.gpus_per_node, one.collective, one.software) == (
        ("gpu-1", "gpu-2"),
        8,
        "all_reduce",
        "nccl 2.27.3",
    )
    # The log is of times of 20 µs + bytes / 10 GB/s.
    assert one.alpha_us == pytest.approx(20, rel=0.1)
    assert one.beta_gbps == pytest.approx(10 * 30 / 16, rel=0.05)
    assert found["pairs"][0]["low_gbps"] < found["pairs"][0]["predicted_gbps"] < found["pairs"][0]["high_gbps"]
    health = {one["name"]: one["health"] for one in found["nodes"]}
    assert health == {"gpu-1": "Healthy", "gpu-2": "Healthy", "gpu-3": "Healthy", "gpu-4": "Slow"}
    table = kopt("bandwidth", "pairs", *logs)
    assert "gpu-1 – gpu-2" in table.out
    assert "gpu-4 is slow: all_reduce with 3 of 3 nodes" in table.out + table.err


def test_posted_pairs_are_kept_and_shown(kopt: Kopt, endpoint: str, logs: list[str], node: str) -> None:
    empty = kopt("bandwidth", "pairs")
    assert "PairwiseBenchmark" in empty.out + empty.err
    posted = kopt("bandwidth", "pairs", *logs, "--topology", node, "--cluster", "east", "--post")
    assert posted.status == 0, posted.err
    assert "6 of 6 pair(s) kept" in posted.out + posted.err
    kept = kopt("bandwidth", "pairs", "--cluster", "east", "-o", "json").json
    assert [one["health"] for one in kept["pairs"]].count("Slow") == 3
    assert kept["pairs"][0]["predicted_gbps"] > 0
    # The only cluster need not be named.
    again = kopt("bandwidth", "pairs", "-o", "json").json
    assert again == kept
    kopt("bandwidth", "pairs", *logs[:1], "--cluster", "west", "--post")
    which = kopt("bandwidth", "pairs")
    assert which.status == 2
    assert "east, west" in which.err
    unknown = kopt("bandwidth", "pairs", "--cluster", "north")
    assert unknown.status == 1
    assert "'north'" in unknown.err


def test_nodes_that_the_endpoint_does_not_know_are_named(kopt: Kopt, endpoint: str, logs: list[str]) -> None:
    posted = kopt("bandwidth", "pairs", logs[0], "--cluster", "east", "--post")
    assert "gpu-1, gpu-2" in posted.out + posted.err
    assert "--topology" in posted.out + posted.err


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        (lambda text: text.replace("on node-2", "on node-1"), 1, "16 ranks on 1 hosts"),
        (lambda text: text[: text.index("Avg bus")], 1, "the log is cut"),
        (lambda text: text.replace("all_reduce", "hypercube"), 1, "hypercube"),
        (lambda _: "bash: all_reduce_perf: command not found", 1, "a-b.log"),
        (lambda _: rendered.topo_m(rendered.machine(1)), 1, "no log"),
    ],
)
def test_logs_that_tell_no_pair_are_refused(
    kopt: Kopt, tmp_path: Path, change: Callable[[str], str], status: int, why: str
) -> None:
    path = tmp_path / "a-b.log"
    path.write_text(change(log()))
    done = kopt("bandwidth", "pairs", f"a,b={path}")
    assert (done.status, done.out) == (status, "")
    assert why in done.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["a.log"], "node-1,node-2=all_reduce.log"),
        (["a,a=a.log"], "twice"),
        (["--post"], "logs"),
        (["a,b=a.log", "--post"], "--cluster"),
    ],
)
def test_wrong_usage_is_told(kopt: Kopt, arguments: list[str], why: str) -> None:
    done = kopt("bandwidth", "pairs", *arguments)
    assert done.status == 2
    assert why in done.err
