"""What pairs of a cluster's nodes were measured to reach: kept, shown, and used to calibrate. Behind
``/v1/bandwidth/pairs`` and the ``cluster`` of ``/v1/bandwidth``.

Pairs that are slow or failed are shown and calibrate nothing. Where the table cannot be read, answers go on without it
and say so.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.core.hardware.pairwise import Health, MeasuredPair, Pair, slow_pairs
from kopt.core.reason import Reason
from kopt.models.bandwidth.intervals import PROBABILITY
from kopt.models.bandwidth.predictor import BandwidthPredictor
from kopt.models.registry.registry import CHAMPION
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.owners import owner_of
from kopt.serving.client.fallback_bandwidth import FALLBACK_MODEL
from kopt.serving.contract.bandwidth.pairwise_answers import measured_gbps
from kopt.serving.contract.bandwidth.pairwise_schemas import PairsRequest
from kopt.serving.contract.bandwidth.schemas import NodeIn
from kopt.serving.contract.common import SCHEMA
from kopt.serving.http.problems import Problem, invalid
from kopt.serving.measured.comparisons import Comparisons, Interval
from kopt.serving.pairwise.cluster_calibration import Machines, calibrate, likeness, points_of, with_software
from kopt.serving.pairwise.table import KeptMeasurements, PairTable, Scope
from kopt.serving.pairwise.view import Predicted, nodes
from kopt.topology.graph import Machine

_LOG = logging.getLogger(__name__)
AHEAD_S = 86_400.0
"""Clocks differ; what is measured further in the future than this is refused."""
_AGAIN = {"retry-after": "30"}


@dataclass(frozen=True)
class Calibrated:
    """The machine with the software that the pairs ran, the model calibrated with them, and the reason to state."""

    machine: Machine
    model: BandwidthPredictor
    reason: Reason


@dataclass(frozen=True)
class _Cluster:
    """The parsed measurements of one cluster."""

    kept: KeptMeasurements
    machines: Machines
    slow: Mapping[Pair, float]


class PairwiseService:
    """Over the table of one replica. Methods block on the disk; ``clock`` tells Unix time."""

    def __init__(self, table: PairTable, clock: Callable[[], float] = time.time) -> None:
        self.table, self._clock = table, clock
        self._read: dict[tuple[str, Scope], _Cluster] = {}

    def close(self) -> None:
        self.table.close()

    def keep(
        self,
        request: PairsRequest,
        owner: str,
        models: Mapping[str, BandwidthPredictor],
        comparisons: Comparisons | None = None,
    ) -> dict[str, Any]:
        """The answer to a POST. ``models`` by role are compared with the healthy pairs.

        Raises Problem 422 for what cannot be, 503 where the disk takes nothing.
        """
        now_s = self._clock()
        documents = (pair_in.model_dump(mode="json") for pair_in in request.pairs)
        measurements = [_pair(number, document, now_s) for number, document in enumerate(documents)]
        topologies = {name: _document(name, node_in) for name, node_in in request.topologies.items()}
        scope = Scope(owner, every=False)
        try:
            before = self._kept(request.cluster, scope)
            kept = self.table.keep(owner, request.cluster, measurements, topologies, request.domains, now_s)
            result = self.table.load(request.cluster, scope)
        except DatabaseError as error:
            raise _lost("kept", error) from error
        if comparisons is not None and result is not None:
            previous = () if before is None else before.kept.measurements
            expectation = replace(result, measurements=previous)
            for pair, answers in _answers(expectation, measurements, models):
                subject = f"{request.cluster}: {' – '.join(pair.nodes)}, {pair.collective.value}"
                measured = measured_gbps(pair)
                if measured is not None:
                    comparisons.record(owner_of(owner), subject, "GB/s", measured, answers)
        nodes_by_name = result.nodes if result is not None else {}
        named = sorted({name for pair in measurements for name in pair.nodes})
        unknown = [name for name in named if name not in nodes_by_name or nodes_by_name[name].topology is None]
        return {
            "schema": SCHEMA,
            "cluster": request.cluster,
            "kept": kept,
            "unknown_nodes": unknown,
            "model": (models[CHAMPION].version if CHAMPION in models else FALLBACK_MODEL).to_dict(),
        }

    def list_pairs(
        self, cluster: str | None, only_of: str | None, owner: str, model: BandwidthPredictor | None
    ) -> dict[str, Any]:
        """The answer to a GET; ``only_of`` limits it to one caller, None for all.

        Raises Problem 404 for a cluster of which nothing is kept, 503 where the table cannot be read.
        """
        version = (FALLBACK_MODEL if model is None else model.version).to_dict()
        empty: dict[str, Any] = {
            "schema": SCHEMA,
            "cluster": cluster,
            "clusters": [],
            "nodes": [],
            "pairs": [],
            "expected": [],
            "model": version,
        }
        try:
            names = self.table.clusters(only_of)
            result = self._kept(cluster, Scope(owner, every=only_of is None)) if cluster else None
        except DatabaseError as error:
            raise _lost("read", error) from error
        if not cluster:
            return empty | {"clusters": names}
        if result is None:
            raise Problem(404, f"No pair of a cluster {cluster[:80]!r} is kept for you.")
        kept, machines = result.kept, result.machines
        predicted = Predicted(kept, machines, model)
        rows = [pair.to_dict() | predicted.of(pair) for pair in kept.measurements]
        return empty | {
            "clusters": names,
            "nodes": nodes(kept, machines),
            "pairs": rows,
            "expected": predicted.expected(),
        }

    def stamp(self, cluster: str, scope: Scope) -> str | None:
        """The version of the cluster's measurements; None where there are none. Raises Lost."""
        try:
            return self.table.stamp(cluster, scope)
        except DatabaseError as error:
            _LOG.warning("measured pairs cannot be read: %s", error)
            raise Lost from error

    def calibrated(
        self, model: BandwidthPredictor, machine: Machine, cluster: str, scope: Scope, software: str = ""
    ) -> Calibrated:
        """The model calibrated with pairs of machines like this one. Without ``software`` the answers are for what the
        pairs ran. Raises Lost where the table cannot be read."""
        try:
            result = self._kept(cluster, scope)
        except DatabaseError as error:
            _LOG.warning("measured pairs cannot be read: %s", error)
            raise Lost from error
        if result is None:
            return _plain(model, machine, f"No pair of cluster {cluster} is kept")
        kept, machines = result.kept, result.machines
        points = points_of(kept, likeness(machine), machines)
        adjusted = machine if software else with_software(machine, points.software)
        measured = with_software(machine, points.software).software
        if not points.points:
            return _plain(model, machine, f"No healthy pair of cluster {cluster} is of nodes like this one")
        if (measured.transport, measured.tuned, measured.algorithm) != (
            adjusted.software.transport,
            adjusted.software.tuned,
            adjusted.software.algorithm,
        ):
            return _plain(model, machine, f"The pairs of cluster {cluster} ran {points.software or 'other settings'}")
        text = f"{points.pair_count} healthy pair(s) of such nodes of cluster {cluster} pull the answers towards them."
        numbers = {"pairs": points.pair_count, "points": len(points.points)}
        return Calibrated(adjusted, calibrate(model, adjusted, points.points), Reason("CALIBRATED", text, numbers))

    def slow(self, cluster: str, scope: Scope) -> Mapping[Pair, float]:
        """Pairs of its nodes that are not healthy, and what they reached in their worst collective (GB/s); 0 where a
        test failed. Raises Lost where the table cannot be read."""
        try:
            result = self._kept(cluster, scope)
        except DatabaseError as error:
            _LOG.warning("measured pairs cannot be read: %s", error)
            raise Lost from error
        return result.slow if result is not None else {}

    def _kept(self, cluster: str, scope: Scope) -> _Cluster | None:
        stamp = self.table.stamp(cluster, scope)
        if stamp is None:
            return None
        held = self._read.get((cluster, scope))
        if held is None or held.kept.stamp != stamp:
            kept = self.table.load(cluster, scope)
            if kept is None:
                return None
            if len(self._read) > 8:
                self._read.clear()
            self._read[cluster, scope] = held = _Cluster(kept, Machines(kept.nodes), slow_pairs(kept.measurements))
        return held


def _answers(
    expectation: KeptMeasurements, measurements: Sequence[MeasuredPair], models: Mapping[str, BandwidthPredictor]
) -> Iterator[tuple[MeasuredPair, dict[str, Interval]]]:
    """Healthy pairs, and what each model would have answered before they were measured."""
    machines = Machines(expectation.nodes)
    predicted = {role: (model, Predicted(expectation, machines, model)) for role, model in models.items()}
    for pair in measurements:
        if pair.health is not Health.HEALTHY:
            continue
        answers = {}
        for role, (model, by_hardware) in predicted.items():
            value, low, high = by_hardware.of(pair).values()
            if value is not None and low is not None and high is not None:
                answers[role] = Interval(model.version, value, low, high, PROBABILITY)
        yield pair, answers


class Lost(Exception):
    """The table cannot be read now."""


def lost(cluster: str) -> Reason:
    """Why an answer is not calibrated, where the table cannot be read."""
    text = f"What was measured on cluster {cluster} cannot be read now; these answers do without."
    return Reason("NOT_CALIBRATED", text)


def _plain(model: BandwidthPredictor, machine: Machine, why: str) -> Calibrated:
    return Calibrated(machine, model, Reason("NOT_CALIBRATED", f"{why}; these answers do without."))


def _pair(number: int, document: Mapping[str, Any], now_s: float) -> MeasuredPair:
    if document["measured_at"] > now_s + AHEAD_S:
        raise invalid(f"pairs.{number}.measured_at", "this is Unix seconds, and more than a day in the future")
    # A measurement from a clock that is ahead must not stay the newest for ever.
    return MeasuredPair.from_dict({**document, "measured_at": min(document["measured_at"], now_s)})


def _document(name: str, node: NodeIn) -> str:
    try:
        return json.dumps(NodeTopology.from_dict(node.model_dump() | {"node": name}).to_dict(), separators=(",", ":"))
    except TopologyError as error:
        raise invalid(f"topologies.{name}", str(error)) from None


def _lost(what: str, error: Exception) -> Problem:
    _LOG.warning("measured pairs cannot be %s: %s", what, error)
    return Problem(503, f"Measured pairs cannot be {what}: {error}. Nothing else is affected.", headers=_AGAIN)
