"""``kopt train bandwidth --from-cluster``: from a tournament between nodes to a table, and to a trained model."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from controlplane.plane import ControlPlane
from controlplane.processes import Server
from empty_registry import with_empty_registry

from kopt.agents.topology.documents import spec_of
from kopt.cli.training.bandwidth import COMMAND
from kopt.cli.training.command import TrainInputs
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink, TopologyNic
from kopt.core.settings import Settings
from kopt.models.bandwidth.rows import read_measured
from kopt.models.registry.registry import Registry
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks

from .conftest import BANDWIDTH, CRDS, Pool

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
TOPOLOGY = ("kaiwo.ai/v1alpha1", "NodeTopology")
NICS = tuple(TopologyNic(f"mlx5_{n}", gbit_per_s=200.0, state="ACTIVE", link_layer="InfiniBand") for n in range(8))


@pytest.fixture
def shown(plane: ControlPlane) -> Iterator[Callable[..., None]]:
    """``shown("node-1")`` says what a node looks like, as its agent does: eight MI300X, eight cards."""
    plane.apply_crds([CRDS / "nodetopologies.yaml"])
    names: list[str] = []

    def show(node: str, gpu: str = "AMD Instinct MI300X OAM", nics: tuple[TopologyNic, ...] = NICS) -> None:
        links = tuple(TopologyLink(a, b, LinkType.XGMI, 1) for a, b in combinations(range(8), 2))
        gpus = tuple(TopologyGpu(index, gpu) for index in range(8))
        topology = NodeTopology(node, gpus, links, nics, vendor="amd", tool="amd-smi")
        body = {"apiVersion": TOPOLOGY[0], "kind": TOPOLOGY[1], "metadata": {"name": node}, "spec": spec_of(topology)}
        plane.api.create(body)
        names.append(node)

    yield show
    for name in names:
        plane.api.delete(*TOPOLOGY, name)


@pytest.fixture
def inputs(plane: ControlPlane, tmp_path: Path) -> Iterator[TrainInputs]:
    settings = Settings(home=with_empty_registry(tmp_path / "home"))
    yield TrainInputs(settings, None, None, None, "", "service", "7d", "5m", True, plane.kubeconfig)
    plane.api.delete_all(*BANDWIDTH)


@pytest.mark.long
def test_a_tournament_becomes_a_table_and_a_model(
    pool: Callable[[int], Pool],
    start_controller: Callable[..., Server],
    shown: Callable[..., None],
    inputs: TrainInputs,
    capfd: pytest.CaptureFixture[str],
) -> None:
    cluster = pool(5)
    *well, other, sick = cluster.nodes
    for node in (*well, sick):
        shown(node)
    shown(other, gpu="AMD Instinct MI250X")
    cluster.shares.write_text(f"{sick} 0.4\n")
    start_controller()
    cluster.start()
    cluster.wait(lambda status: status.get("measured") == 10 and status.get("degradedNodes") == 1)
    source = COMMAND.source(inputs)
    said = capfd.readouterr().err.splitlines()
    assert [line for line in said if "it is slow" in line and sick in line]
    (different,) = [line for line in said if "different hardware" in line]
    assert all(f"{node} and {other}" in different for node in well)
    table = inputs.settings.home / "measured" / "bandwidth" / "bandwidth.csv"
    rows = read_measured(table)
    assert {row.machine for row in rows} == {"+".join(pair) for pair in combinations(well, 2)}
    assert len(rows) == 3 * 11
    hardware = rows[0].query.hardware
    assert (hardware.intra_link, hardware.nic_config, hardware.software) == ("XGMI mesh-8", "8x200G IB", "nccl 2.27.3")
    registry = Registry(inputs.settings)
    options = TrainOptions(folds=2)
    outcome = train(
        "bandwidth", source=source, settings=inputs.settings, options=options, tasks=HereTasks(), registry=registry
    )
    (whole,) = [summary for summary in outcome.summaries if summary.slice == "all"]
    assert (outcome.model.gate in ("passed", "refused"), whole.services) == (True, 3)
    again = COMMAND.source(replace(inputs, data=str(table)))
    assert len(again.read().names) == 3, "the same pairs, beside a table of one's own"


@pytest.mark.long
def test_hostile_objects_are_left_out_and_take_no_pair_with_them(
    plane: ControlPlane, shown: Callable[..., None], inputs: TrainInputs, capfd: pytest.CaptureFixture[str]
) -> None:
    good = {
        "gpusPerNode": 4,
        "collective": "all_reduce",
        "measuredAt": "2026-11-01T00:00:00Z",
        "points": [{"bytes": 1 << n, "latencyMicroseconds": 20 + 2**n / 1e5} for n in range(16, 28)],
        "software": "rccl 2.27.3",
    }
    bad: dict[str, dict[str, Any]] = {
        "backwards": {"node": "a-0"},
        "impossible": {"node": "h-impossible", "points": [{"bytes": 0, "latencyMicroseconds": 1}]},
        "timeless": {"node": "h-timeless", "points": [{"bytes": 1 << 20, "latencyMicroseconds": 0}]},
        "endless": {"node": "h-endless", "points": [{"bytes": 1 << 62, "latencyMicroseconds": 5}]},
        "crowded": {"node": "h-crowded", "gpusPerNode": 1024},
        "unknown": {"node": "nobody"},
    }
    for node in ("a-first", *(peer["node"] for name, peer in bad.items() if name not in ("unknown", "backwards"))):
        shown(node)
    shown("h-strange", gpu="Foo 9000\x1b[2J")
    peers = [good | peer for peer in bad.values()] + [good | {"node": "h-strange"}]
    many = [f"z-{n:03}" for n in range(300)]
    for node in many:
        shown(node)
    peers += [good | {"node": node} for node in many]
    body = {"apiVersion": BANDWIDTH[0], "kind": BANDWIDTH[1], "metadata": {"name": "a-first"}}
    plane.api.create(body | {"status": {"health": "Healthy", "peers": peers}})
    source = COMMAND.source(inputs)
    said = capfd.readouterr().err
    assert "\x1b" not in said
    for part in ("pair 1", "0 bytes in", "µs are no measurement", "1024 GPUs of each node", "nobody looks like", "Foo"):
        assert part in said, part
    dataset = source.read()
    assert len(dataset.names) == 300
    assert len(dataset.rows) == 300 * 12
