"""Measured pairs beside what was predicted of them, and the health of their nodes."""

from typing import Any

from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.pairwise import MeasuredPair, MeasuredPoint
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.policies.pairwise.health import HealthEvaluation, Result, evaluate
from kopt.serving.contract.bandwidth.pairwise_answers import measured_gbps
from kopt.serving.pairwise.cluster_calibration import Machines, calibrate, expected, largest, points_of, with_software
from kopt.serving.pairwise.table import KeptMeasurements
from kopt.topology.graph import Machine

_MOST_MACHINES = 16

Question = tuple[int, Collective, int]
"""GPUs per node, collective and bytes."""


class Predicted:
    """What pairs are predicted to reach: by their hardware and by the healthy pairs of the same."""

    def __init__(self, kept: KeptMeasurements, machines: Machines, model: BandwidthPredictor | None) -> None:
        self._machines = machines
        self._by_machine: dict[str, tuple[Machine, BandwidthPredictor]] = {}
        for alike, machine in machines.alike.items() if model is not None else ():
            points = points_of(kept, alike, machines)
            adjusted = with_software(machine, points.software)
            assert model is not None
            self._by_machine[alike] = (adjusted, calibrate(model, adjusted, points.points))
        self._cache: dict[tuple[tuple[str, ...], Question], tuple[float, float, float] | None] = {}
        self._sizes: dict[tuple[int, Collective], int] = {}
        for pair in kept.measurements:
            self._sizes.setdefault((pair.gpus_per_node, pair.collective), 0)
            self._sizes[pair.gpus_per_node, pair.collective] = max(
                self._sizes[pair.gpus_per_node, pair.collective], *(point.bytes for point in pair.points), 0
            )

    def of(self, pair: MeasuredPair) -> dict[str, float | None]:
        point = largest(pair) or self._usual(pair)
        names = [self._machines.of.get(name) for name in pair.nodes]
        result = None
        if point is not None and None not in names:
            question = (pair.gpus_per_node, pair.collective, point.bytes)
            result = self._at(tuple(sorted({name for name in names if name is not None})), question)
        return dict(zip(("predicted_gbps", "low_gbps", "high_gbps"), result or (None,) * 3, strict=True))

    def expected(self) -> list[dict[str, Any]]:
        """For every two machines, measured or not."""
        kinds = sorted(self._machines.alike)[:_MOST_MACHINES]
        couples = [tuple(sorted({a, b})) for n, a in enumerate(kinds) for b in kinds[n:]]
        rows = []
        for names in couples:
            for (gpus, kind), size in sorted(self._sizes.items()):
                result = self._at(names, (gpus, kind, size)) if size else None
                if result is not None:
                    rows.append(
                        {
                            "machines": list(names),
                            "gpus_per_node": gpus,
                            "collective": kind.value,
                            "bytes": size,
                            "predicted_gbps": result[0],
                            "low_gbps": result[1],
                            "high_gbps": result[2],
                        }
                    )
        return rows

    def _usual(self, pair: MeasuredPair) -> MeasuredPoint | None:
        size = self._sizes.get((pair.gpus_per_node, pair.collective), 0)
        return MeasuredPoint(size, 0.0) if size else None

    def _at(self, names: tuple[str, ...], question: Question) -> tuple[float, float, float] | None:
        """Of unlike nodes what the slower would reach among its like."""
        if (names, question) not in self._cache:
            each = []
            for name in names:
                machine, model = self._by_machine.get(name, (None, None))
                each.append(None if machine is None or model is None else expected(model, machine, *question))
            result = [item for item in each if item is not None]
            self._cache[names, question] = min(result) if len(result) == len(names) else None
        return self._cache[names, question]


def nodes(kept: KeptMeasurements, machines: Machines) -> list[dict[str, Any]]:
    evaluations = evaluate([_result(pair, machines) for pair in kept.measurements]).nodes
    names = sorted({*evaluations, *kept.nodes})
    return [
        {
            "name": name,
            "health": evaluation.health.value,
            "reason": evaluation.reason,
            "domains": list(kept.nodes[name].domains) if name in kept.nodes else [],
            "machine": machines.of.get(name),
        }
        for name in names
        for evaluation in [evaluations.get(name, HealthEvaluation())]
    ]


def _result(pair: MeasuredPair, machines: Machines) -> Result:
    kind = (tuple(sorted(str(machines.of.get(name)) for name in pair.nodes)), pair.collective, pair.gpus_per_node)
    return Result(pair.nodes, pair.collective.value, kind, measured_gbps(pair))
