"""``kopt bandwidth place``: the best free GPUs of a node, and clear refusals."""

import json
from itertools import combinations
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kopt.cli.main import app
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink

# Two bridged pairs and two cards alone, on two sockets.
_BRIDGED = {(0, 3), (1, 2)}
_NODE = NodeTopology(
    "n1",
    tuple(TopologyGpu(n, "NVIDIA A100-PCIE-40GB", numa=n // 3) for n in range(6)),
    tuple(
        TopologyLink(a, b, LinkType.NVLINK, 12)
        if (a, b) in _BRIDGED
        else TopologyLink(a, b, LinkType.NODE if a // 3 == b // 3 else LinkType.SYS)
        for a, b in combinations(range(6), 2)
    ),
)


@pytest.fixture
def node(tmp_path: Path) -> str:
    path = tmp_path / "node.json"
    path.write_text(json.dumps(_NODE.to_dict()))
    return str(path)


def place(node: str, *options: str):  # type: ignore[no-untyped-def]
    return CliRunner().invoke(app, ["bandwidth", "place", node, *options])


def test_a_bridged_pair_is_taken_and_another_left(node: str) -> None:
    done = place(node, "--count", "2", "-o", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert tuple(found["gpus"]) in _BRIDGED
    assert found["exact"]
    assert found["rest_gigabytes_per_s"] == pytest.approx(found["bus_gigabytes_per_s"])
    assert found["worst_gigabytes_per_s"] < found["bus_gigabytes_per_s"] / 3
    assert "GPUs" in place(node, "--count", "2").stdout


def test_only_free_gpus_are_taken(node: str) -> None:
    found = json.loads(place(node, "--count", "2", "--free", "0-2,5", "-o", "json").stdout)
    assert found["gpus"] == [1, 2]
    assert found["rest_gigabytes_per_s"] > 0


@pytest.mark.parametrize(
    ("options", "status", "why"),
    [
        (["--count", "7"], 1, "7 GPUs are asked for, and 6 are free"),
        (["--count", "2", "--free", "0,9"], 2, "GPU 9 is not there"),
        (["--count", "0"], 2, "--count"),
        (["--count", "4", "--minimum", "900"], 1, "900 are asked for"),
        (["--count", "2", "--of", "wire"], 2, "--of"),
    ],
)
def test_what_cannot_be_placed_is_refused(node: str, options: list[str], status: int, why: str) -> None:
    done = place(node, *options)
    assert done.exit_code == status
    assert why in " ".join(done.stderr.replace("│", " ").split())
    assert done.stdout == ""


def test_a_minimum_is_held_against_the_bandwidth_that_is_named(node: str) -> None:
    assert place(node, "--count", "2", "--minimum", "290", "--of", "link").exit_code == 0
    assert place(node, "--count", "2", "--minimum", "290", "--of", "bus").exit_code == 1
