"""``kopt topology show``: the node as a picture, from tools' outputs and from a cluster's objects."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import node_outputs
import pytest
import topology_outputs as rendered
import yaml
from asgi_server import served
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from kopt.agents.topology.documents import spec_of
from kopt.core.hardware.node_topology import NodeTopology
from kopt.formats.topology import parse
from tests.cli.conftest import Done, Kopt

SVG = "{http://www.w3.org/2000/svg}"
CARDS = {"mlx5_0": 0, "mlx5_1": 4}


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    path = tmp_path / "topo.txt"
    path.write_text(node_outputs.topo_m(8, node_outputs.CUBE_MESH, CARDS))
    return path


def texts(picture: Path) -> list[str]:
    """Every text of an SVG file."""
    return ["".join(one.itertext()) for one in ElementTree.parse(picture).iter(f"{SVG}text")]


def show(kopt: Kopt, *arguments: object) -> Done:
    return kopt("topology", "show", *map(str, arguments))


def test_the_svg_names_gpus_cards_and_speeds(kopt: Kopt, matrix: Path, tmp_path: Path) -> None:
    done = show(kopt, matrix, "--out", tmp_path / "n.svg", "--gpu", "V100-SXM2-16GB")
    assert done.status == 0, done.err
    assert "NV2: 3-4" in done.out
    found = texts(tmp_path / "n.svg")
    assert {*"01234567", "mlx5_0", "mlx5_1", "NUMA 0", "NUMA 1"} <= set(found)
    # A link of NVLink 2 carries 25 GB/s; pairs have one or two.
    assert {"NVLINK 25 GB/s", "NVLINK 50 GB/s", "PCIe 16 GB/s"} <= set(found)
    assert not any("chosen" in one or "degraded" in one for one in found)


def test_chosen_gpus_are_told_with_what_they_reach(kopt: Kopt, matrix: Path, tmp_path: Path) -> None:
    asked = ("--gpus", "0-3", "--gpu", "V100-SXM2-16GB", "--bytes", "256MiB")
    done = show(kopt, matrix, "--out", tmp_path / "n.svg", *asked, "-o", "json")
    estimated = kopt("bandwidth", "estimate", str(matrix), *asked, "-o", "json")
    assert done.json["predicted"]["bus_gigabytes_per_s"] == estimated.json["bus_gigabytes_per_s"]
    found = texts(tmp_path / "n.svg")
    bus = f"{estimated.json['bus_gigabytes_per_s']:.3g}"
    assert any(one.startswith(f"GPUs 0, 1, 2, 3: all_reduce of 256.0 MiB at {bus} GB/s") for one in found), found
    assert {"GPU, chosen", "NVLINK 25 GB/s, chosen", "NVLINK 50 GB/s, chosen"} <= set(found)


def test_json_is_read_back_as_the_node(kopt: Kopt, matrix: Path) -> None:
    done = show(kopt, matrix, "-o", "json")
    parsed = parse(matrix.read_text())
    assert NodeTopology.from_dict(done.json) == parsed


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".html", b"<!doctype html>")])
def test_other_formats(kopt: Kopt, matrix: Path, tmp_path: Path, suffix: str, begins: bytes) -> None:
    path = tmp_path / f"n{suffix}"
    done = show(kopt, matrix, "--out", path)
    assert done.status == 0, done.err
    assert path.read_bytes().startswith(begins)
    # The page needs no network.
    assert suffix != ".html" or b"cdn.plot.ly" not in path.read_bytes().split(b"Plotly.newPlot")[-1]


def test_what_cannot_be_drawn_is_said(kopt: Kopt, matrix: Path, tmp_path: Path) -> None:
    (tmp_path / "fabric.txt").write_text(rendered.fabric())
    for arguments, status, message in (
        ((matrix, "--out", tmp_path / "n.gif"), 2, ".svg, .png, .pdf, .html"),
        ((matrix, "--out", tmp_path / "no" / "n.svg"), 1, "no such folder"),
        ((matrix, "--gpus", "0,9"), 1, "GPU 9 is not there"),
        ((tmp_path / "fabric.txt", "--out", tmp_path / "n.svg"), 1, "fabric"),
    ):
        done = show(kopt, *arguments)
        assert done.status == status, done.err
        assert message in " ".join(done.err.split())
    assert not list(tmp_path.glob("n.*"))


def test_a_name_that_is_no_file_needs_a_cluster(kopt: Kopt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    done = show(kopt, "gpu-7")
    assert (done.status, done.out) == (1, "")
    assert "no such file" in done.err
    assert "no cluster is configured" in done.err


@pytest.fixture
def cluster(matrix: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An API server that knows one node, as its agent publishes it: one link is down, one has half of what it had."""
    links = {**node_outputs.CUBE_MESH, (0, 3): 1}
    del links[6, 7]
    node = parse(node_outputs.topo_m(8, links, CARDS))
    assert isinstance(node, NodeTopology)
    degraded = [
        {"part": "link GPU0 GPU3", "was": 2, "now": 1},
        {"part": "link GPU6 GPU7", "was": 2, "now": 0},
        {"part": "nic mlx5_1", "was": 200, "now": 100},
    ]
    item = {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "NodeTopology",
        "metadata": {"name": "gpu-7"},
        "spec": spec_of(node),
        "status": {"degraded": degraded},
    }
    path = "/apis/kaiwo.ai/v1alpha1/nodetopologies"
    app = FastAPI()

    async def all_of_them() -> JSONResponse:
        return JSONResponse({"kind": "NodeTopologyList", "metadata": {"resourceVersion": "1"}, "items": [item]})

    async def one(name: str) -> JSONResponse:
        missing = {"kind": "Status", "reason": "NotFound", "message": "no", "code": 404}
        return JSONResponse(item) if name == "gpu-7" else JSONResponse(missing, 404)

    app.add_api_route(path, all_of_them)
    app.add_api_route(path + "/{name}", one)
    with served(app, lifespan="off") as address:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield


@pytest.mark.usefixtures("cluster")
def test_a_node_of_the_cluster_is_drawn_with_what_is_degraded(kopt: Kopt, tmp_path: Path) -> None:
    done = show(kopt, "gpu-7", "--out", tmp_path / "n.svg", "--gpu", "V100-SXM2-16GB")
    assert done.status == 0, done.err
    assert "degraded: link GPU0 GPU3: 1 of 2" in done.out
    found = texts(tmp_path / "n.svg")
    assert {"NVLINK 25 GB/s, degraded", "link that is down, degraded", "card, degraded"} <= set(found)
    assert any(one.startswith("gpu-7: 8 × V100") for one in found)
    assert "degraded: link GPU6 GPU7: 0 of 2" in found
    assert len(show(kopt, "gpu-7", "-o", "json").json["degraded"]) == 3


@pytest.mark.usefixtures("cluster")
def test_the_only_node_needs_no_name_and_a_wrong_one_is_told(kopt: Kopt) -> None:
    assert show(kopt, "-o", "json").json["node"] == "gpu-7"
    done = show(kopt, "gpu-8")
    assert (done.status, done.out) == (1, "")
    assert "no NodeTopology gpu-8" in done.err
