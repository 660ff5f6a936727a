"""What the topology agent measures on network cards, from counters to the object's status."""

import json
from pathlib import Path
from typing import Any

import pytest

from kopt.agents.topology.documents import same
from kopt.agents.topology.readings import CollectorError, CollectorProblem
from kopt.agents.topology.scanning import ScanResult
from kopt.agents.topology.sysfs import read_part
from kopt.agents.topology.traffic import TrafficReporter, TrafficSettings
from kopt.cluster.objects.custom.node_traffic import traffic_of
from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu, TopologyNic
from kopt.formats.topology.linux.counters import parse_counters, rates_gbps

NODE = "gpu-7"
NICS = (
    TopologyNic("mlx5_0", gbit_per_s=400.0),
    TopologyNic("mlx5_1", gbit_per_s=400.0),
    TopologyNic("bond0", gbit_per_s=100.0, interface="eth0"),
    TopologyNic("unknown"),
)


def _sys(root: Path, sent_words: dict[str, int], sent_bytes: int = 0) -> Path:
    for name, words in sent_words.items():
        folder = root / "sys/class/infiniband" / name / "ports/1/counters"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "port_xmit_data").write_text(f"{words}\n")
        (folder / "port_rcv_data").write_text("7\n")
    folder = root / "sys/class/net/eth0/statistics"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tx_bytes").write_text("5\n")
    (folder / "rx_bytes").write_text(f"{sent_bytes}\n")
    return root


class _Bench:
    """A reporter of a node whose counters lie in a folder, with an API server that keeps what is applied."""

    def __init__(self, root: Path) -> None:
        self.root, self.now_s, self.broken = root, 1_800_000_000.0, False
        self.writes: list[dict[str, Any]] = []
        self.name, self.live = "traffic", {"metadata": {"name": NODE}}
        self.result = ScanResult(NodeTopology(NODE, (TopologyGpu(0),), nics=NICS))
        parts: Any = self
        self.reporter = TrafficReporter(
            parts, NODE, parts, TrafficSettings(), parts, now=lambda: self.now_s, clock=lambda: self.now_s
        )

    async def collect(self) -> str:
        if self.broken:
            raise CollectorError(CollectorProblem.FAILED, "no")
        return read_part("traffic", self.root)

    async def patch(self, _: Any, name: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        assert (name, options["field_manager"]) == (NODE, "kopt-topology-traffic")
        self.writes.append(body)
        return body

    async def after(self, seconds: float, words: dict[str, int], received: int = 0) -> dict[str, float] | None:
        """What was written, by link; None for nothing."""
        self.now_s += seconds
        _sys(self.root, words, received)
        before = len(self.writes)
        assert await self.reporter.step() == 60.0
        if len(self.writes) == before:
            return None
        return {item.link: item.gigabytes_per_s for item in traffic_of(self.writes[-1], self.now_s)}


async def test_rates_are_written_when_they_change_and_are_renewed_while_a_card_is_busy(tmp_path: Path) -> None:
    bench = _Bench(tmp_path)
    words = 15 * 10**9
    assert await bench.after(0, {"mlx5_0": 10, "mlx5_1": 10}) is None
    # 60 GB in 2 s of a card of 50 GB/s: 30 GB/s; the other is quiet.
    assert await bench.after(2, {"mlx5_0": words, "mlx5_1": 1000}) == {"mlx5_0": 30.0}
    assert await bench.after(2, {"mlx5_0": 2 * words, "mlx5_1": 2000}) is None
    assert await bench.after(300, {"mlx5_0": 152 * words, "mlx5_1": 2000}) == {"mlx5_0": 30.0}
    assert await bench.after(2, {"mlx5_0": 152 * words, "mlx5_1": 2000}, 12 * 10**9) == {"bond0": 6.0}
    assert await bench.after(2, {"mlx5_0": 152 * words, "mlx5_1": 2000}, 12 * 10**9) == {}
    assert await bench.after(3000, {"mlx5_0": 152 * words, "mlx5_1": 2000}, 12 * 10**9) is None
    assert bench.reporter.writes == {"ok": 4}


async def test_what_cannot_be_read_tells_nothing_of_the_time_between(tmp_path: Path) -> None:
    bench = _Bench(tmp_path)
    await bench.after(0, {"mlx5_0": 10})
    bench.broken = True
    assert await bench.after(60, {"mlx5_0": 10**12}) is None
    bench.broken = False
    assert await bench.after(60, {"mlx5_0": 10**12}) is None
    # A driver that is loaded anew counts from zero.
    assert await bench.after(60, {"mlx5_0": 5}) is None


def test_traffic_is_no_change_of_the_topology() -> None:
    plain = {"metadata": {"name": NODE}, "spec": {"gpus": []}, "status": {"best": {"x": 1.0}}}
    busy = {**plain, "status": {"best": {"x": 1.0}, "traffic": {"measuredAt": "2026-11-29T06:00:00Z", "links": []}}}
    assert same(busy, plain)


def test_the_busier_direction_counts() -> None:
    files = {"net/eth0/statistics/tx_bytes": "0", "net/eth0/statistics/rx_bytes": "0"}
    later = {"net/eth0/statistics/tx_bytes": "4000000000", "net/eth0/statistics/rx_bytes": "1000000000"}
    assert rates_gbps(parse_counters(files), parse_counters(later), 2.0) == {"eth0": 2.0}
    assert rates_gbps(parse_counters(files), parse_counters(later), 0.0) == {}


@pytest.mark.parametrize(
    "files",
    [
        [],
        {"net/../statistics/tx_bytes/x": "1"},
        {"net/eth0/statistics/tx_bytes": "-1"},
        {"net/eth0/statistics/tx_bytes": "1e9"},
        {"net/eth0/statistics/tx_bytes": "9" * 30},
        {"net/eth0/statistics/tx_bytes": 5},
    ],
)
def test_what_is_no_counter_is_refused(files: Any) -> None:
    with pytest.raises(ValueError, match="counter"):
        parse_counters(json.loads(json.dumps(files)))
