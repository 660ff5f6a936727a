"""How measured pairs are told: beside what was predicted of them, and with what they say of their nodes."""

from typing import Any

from kopt.core.bandwidth import Collective
from kopt.core.pairs import MeasuredPair, MeasuredPoint
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.policies.bandwidth.graph import Machine
from kopt.policies.pairs.health import Result, Verdict, judge
from kopt.serving.bandwidth_cluster import Machines, calibrate, expected, largest, points_of, with_software
from kopt.serving.bandwidth_pairs_answers import measured_gbps
from kopt.serving.bandwidth_pairs_table import KeptPairs

_MOST_MACHINES = 16

Asked = tuple[int, Collective, int]
"""GPUs per node, collective and bytes."""


class Predicted:
    """What pairs are predicted to reach: by their hardware and by the healthy pairs of the same."""

    def __init__(self, kept: KeptPairs, machines: Machines, model: BandwidthPredictor | None) -> None:
        self._machines = machines
        self._told: dict[str, tuple[Machine, BandwidthPredictor]] = {}
        for alike, machine in machines.alike.items() if model is not None else ():
            points = points_of(kept, alike, machines)
            told = with_software(machine, points.software)
            assert model is not None
            self._told[alike] = (told, calibrate(model, told, points.points))
        self._known: dict[tuple[tuple[str, ...], Asked], tuple[float, float, float] | None] = {}
        self._sizes: dict[tuple[int, Collective], int] = {}
        for one in kept.pairs:
            self._sizes.setdefault((one.gpus_per_node, one.collective), 0)
            self._sizes[one.gpus_per_node, one.collective] = max(
                self._sizes[one.gpus_per_node, one.collective], *(point.bytes for point in one.points), 0
            )

    def of(self, pair: MeasuredPair) -> dict[str, float | None]:
        point = largest(pair) or self._usual(pair)
        names = [self._machines.of.get(name) for name in pair.nodes]
        found = None
        if point is not None and None not in names:
            asked = (pair.gpus_per_node, pair.collective, point.bytes)
            found = self._at(tuple(sorted({name for name in names if name is not None})), asked)
        return dict(zip(("predicted_gbps", "low_gbps", "high_gbps"), found or (None,) * 3, strict=True))

    def expected(self) -> list[dict[str, Any]]:
        """For every two machines, measured or not."""
        kinds = sorted(self._machines.alike)[:_MOST_MACHINES]
        couples = [tuple(sorted({a, b})) for n, a in enumerate(kinds) for b in kinds[n:]]
        rows = []
        for names in couples:
            for (gpus, kind), size in sorted(self._sizes.items()):
                found = self._at(names, (gpus, kind, size)) if size else None
                if found is not None:
                    rows.append({"machines": list(names), "gpus_per_node": gpus, "collective": kind.value,
                                 "bytes": size, "predicted_gbps": found[0], "low_gbps": found[1],
                                 "high_gbps": found[2]})  # fmt: skip
        return rows

    def _usual(self, pair: MeasuredPair) -> MeasuredPoint | None:
        size = self._sizes.get((pair.gpus_per_node, pair.collective), 0)
        return MeasuredPoint(size, 0.0) if size else None

    def _at(self, names: tuple[str, ...], asked: Asked) -> tuple[float, float, float] | None:
        """Of unlike nodes what the slower would reach among its like."""
        if (names, asked) not in self._known:
            each = []
            for name in names:
                machine, model = self._told.get(name, (None, None))
                each.append(None if machine is None or model is None else expected(model, machine, *asked))
            found = [one for one in each if one is not None]
            self._known[names, asked] = min(found) if len(found) == len(names) else None
        return self._known[names, asked]


def nodes(kept: KeptPairs, machines: Machines) -> list[dict[str, Any]]:
    verdicts = judge([_result(one, machines) for one in kept.pairs]).nodes
    names = sorted({*verdicts, *kept.nodes})
    return [
        {"name": name, "health": verdict.health.value, "reason": verdict.reason,
         "domains": list(kept.nodes[name].domains) if name in kept.nodes else [], "machine": machines.of.get(name)}
        for name in names for verdict in [verdicts.get(name, Verdict())]
    ]  # fmt: skip


def _result(pair: MeasuredPair, machines: Machines) -> Result:
    kind = (tuple(sorted(str(machines.of.get(name)) for name in pair.nodes)), pair.collective, pair.gpus_per_node)
    return Result(pair.nodes, pair.collective.value, kind, measured_gbps(pair))
