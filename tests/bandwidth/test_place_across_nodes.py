"""``kopt bandwidth place`` on more than one node: files, what kubectl prints, and a cluster with pods on it."""

import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from typer.testing import CliRunner

from kopt.cli.main import app

CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
Object = dict[str, Any]


def node(name: str, gpus: int = 8, *, degraded: bool = False) -> Object:
    """A published NodeTopology: H100s behind NVSwitch, a network card beside each."""
    spec = {
        "tool": "nvidia-smi",
        "vendor": "nvidia",
        "gpus": [{"index": n, "name": "NVIDIA H100 80GB HBM3", "numa": n // 4} for n in range(gpus)],
        "links": [{"a": a, "b": b, "type": "NVLINK", "count": 18} for a, b in combinations(range(gpus), 2)],
        "nics": [{"name": f"mlx5_{n}", "numa": n // 4, "gbitPerS": 400} for n in range(gpus)],
    }
    found: Object = {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "NodeTopology",
        "metadata": {"name": name},
        "spec": spec,
    }
    if degraded:
        found["status"] = {"degraded": [{"part": "lanes GPU2", "was": 16, "now": 8, "since": "2026-11-22T10:00:00Z"}]}
    return found


def listed(*nodes: Object) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(nodes)})


def place(*options: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, ["bandwidth", "place", *options], input=stdin)


def shares(done: Result) -> dict[str, list[int]]:
    assert done.exit_code == 0, done.output
    return {one["node"]: one["gpus"] for one in json.loads(done.stdout)["shares"]}


def test_what_kubectl_prints_is_placed_on() -> None:
    nodes = listed(node("a"), node("b"), node("c"))
    done = place("-", "--count", "16", "-o", "json", stdin=nodes)
    assert shares(done) == {"a": list(range(8)), "b": list(range(8))}
    found = json.loads(done.stdout)
    assert found["bus_gigabytes_per_s"] > 100
    assert found["exact"]
    assert found["considered"] >= 1
    # One node holds it: then one does.
    assert len(shares(place("-", "--count", "4", "-o", "json", stdin=nodes))) == 1
    assert "GPUs a: 0, 1" in place("-", "--count", "16", stdin=nodes).stdout


def test_files_that_name_different_nodes_are_several_nodes(tmp_path: Path) -> None:
    from kopt.cluster.objects.custom.node_topology import topology_of

    files = []
    for name in "ab":
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(topology_of(node(name)).to_dict()))
        files.append(str(path))
    assert set(shares(place(*files, "--count", "16", "-o", "json"))) == {"a", "b"}


@pytest.mark.parametrize(
    ("options", "stdin", "status", "why"),
    [
        (["-", "--count", "17"], listed(node("a"), node("b")), 1, "17 GPUs in equal shares are asked for; 16 are free"),
        (["-", "--count", "16"], listed(node("a"), node("a")), 1, "two of the nodes have the same name"),
        (["-", "--count", "16", "--free", "0"], listed(node("a"), node("b")), 2, "indexes are of one node"),
        (["-", "--count", "16", "--minimum", "9000"], listed(node("a"), node("b")), 1, "9e+03 are asked for"),
        (["-", "--count", "16", "--minimum", "9", "--of", "link"], listed(node("a"), node("b")), 2, "links are of one"),
        (["-", "--count", "2"], '{"kind": "NodeTopologyList"}', 1, "no NodeTopology objects"),
        (["-", "--count", "2"], '{"kind": "NodeTopologyList", "items": [{"spec": 3}]}', 1, "no NodeTopology objects"),
        (["--count", "2"], "", 2, "name files, or read the cluster"),
        (["-", "--count", "2", "--cluster"], "", 2, "name files, or read the cluster"),
    ],
)
def test_refusals_say_what_is_wrong(options: list[str], stdin: str, status: int, why: str) -> None:
    done = place(*options, stdin=stdin)
    assert done.exit_code == status, done.output
    assert why in " ".join(done.output.replace("│", " ").split())


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    control_plane.apply_crds([CRDS / "nodetopologies.yaml"])
    yield control_plane
    control_plane.api.delete(*definition, "nodetopologies.kaiwo.ai")
    wait_for(lambda: control_plane.api.find(*definition, "nodetopologies.kaiwo.ai") is None)


def test_on_a_cluster_what_is_free_in_one_rack_is_taken(plane: ControlPlane, kwok: Kwok) -> None:
    api, space = plane.api, plane.api.space("bandwidth-place")
    rack, block = "kaiwo.ai/topology-rack", "kaiwo.ai/topology-block"
    with (
        kwok.nodes(2, gpus=8, labels={rack: "r1", block: "b"}) as mixed,
        kwok.nodes(3, gpus=8, labels={rack: "r2", block: "b"}) as home,
    ):
        for name in (*mixed, *home):
            api.create(node(name, degraded=name == home[2]))
        # In r1 a node has two GPUs taken, so that only r2 holds 16 in shares of eight.
        api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "busy", "namespace": space, "annotations": {"kaiwo.ai/gpu-indices": "0,5"}},
                "spec": {
                    "nodeName": mixed[0],
                    "containers": [{"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": "2"}}}],
                },
            }
        )
        cluster = ["--cluster", "--kubeconfig", str(plane.kubeconfig), "-o", "json"]
        done = place("--count", "16", *cluster)
        assert set(shares(done)) == {home[0], home[1]}
        assert json.loads(done.stdout)["domains"] == ["block b", "rack r2"]
        assert shares(place("--count", "6", *cluster)) == {mixed[0]: [1, 2, 3, 4, 6, 7]}
        # More than the healthy ones hold: then the degraded one as well, and that is said.
        done = place("--count", "30", *cluster)
        assert set(shares(done)) == {*mixed, *home}
        assert "lanes GPU2" in json.loads(done.stdout)["degraded"][home[2]]


def test_without_a_cluster_it_is_said(tmp_path: Path) -> None:
    done = place("--count", "2", "--cluster", "--kubeconfig", str(tmp_path / "absent"))
    assert done.exit_code == 1
    assert "the cluster cannot be read" in done.output
