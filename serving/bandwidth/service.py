"""A validated question becomes bandwidths: the node, the model, the deadline. Behind ``/v1/bandwidth``.

The service caches only parsed topologies of recent nodes and the sets chosen on them, as requests about a node repeat
its topology. Work past its deadline is abandoned between two sets.
"""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.core.hardware.bandwidth import BandwidthError, BandwidthEstimate, Collective, MeasuredCollective
from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.core.hardware.pairwise import Pair
from kopt.core.hardware.traffic import LinkTraffic
from kopt.core.reason import Reason
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor, BandwidthQuestion
from kopt.models.registry.aliases import SHIPPED
from kopt.models.registry.registry import CHALLENGER, CHAMPION
from kopt.serving.bandwidth.metrics import BandwidthMetrics
from kopt.serving.base.model_slot import ModelSource, Slot
from kopt.serving.base.owners import owner_of
from kopt.serving.base.service import PredictorService
from kopt.serving.base.workers import Workers
from kopt.serving.client.bandwidth_placement import answer_places
from kopt.serving.client.fallback_bandwidth import Choices, answer_sets, node_in, physical
from kopt.serving.contract.bandwidth.answers import (
    BandwidthQuery,
    BandwidthResponse,
    OfferedNode,
    WrongQuestion,
)
from kopt.serving.contract.bandwidth.pairwise_schemas import PairsRequest
from kopt.serving.contract.bandwidth.schemas import MAX_GPUS, BandwidthRequest, NodeIn, ToolOutputIn
from kopt.serving.contract.common import ModelOut, reasons_out
from kopt.serving.http.deadline import Deadline
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.problems import Problem, invalid
from kopt.serving.measured.comparisons import HOLDS, Comparisons, Widening
from kopt.serving.pairwise.service import Calibrated, Lost, PairwiseService, lost
from kopt.serving.pairwise.table import Scope
from kopt.topology.from_node import machine_of_node
from kopt.topology.graph import Machine
from kopt.topology.hardware import HardwareRow, machine_of

_LOG = logging.getLogger(__name__)
_MOST_HELD = 32
_MOST_CHOICES = 1024
_MOST_CALIBRATED = 8
_FALLBACK_S = 0.5
"""Limit for the fallback once the deadline has passed; the client has a fallback of its own."""


def bandwidth_slot(
    source: ModelSource, default: Callable[[], BandwidthPredictor] | None = None
) -> Slot[BandwidthPredictor]:
    """The registry's champion; the shipped model, verified, while there is none."""
    return Slot(source, "bandwidth", CHAMPION, warm_up=_warm_up, default=default or (lambda: load_bandwidth(SHIPPED)))


def challenger_slot(source: ModelSource) -> Slot[BandwidthPredictor]:
    """The version on trial: it answers nobody, and is compared with measured pairs beside the champion."""
    return Slot(source, "bandwidth", CHALLENGER, warm_up=_warm_up)


def _warm_up(model: BandwidthPredictor) -> None:
    """One question, so that a model that cannot answer never serves. Raises ValueError."""
    machine = machine_of(HardwareRow("A100-SXM4-80GB", "nvidia", "NVSwitch-NV12", 1, 8))
    bandwidth_estimate = model.estimate(BandwidthQuestion(machine, tuple(range(8)), Collective.ALL_REDUCE, 1 << 30))
    if not (
        math.isfinite(bandwidth_estimate.latency_us)
        and 0 < bandwidth_estimate.bus_low_gigabytes_per_s < bandwidth_estimate.bus_high_gigabytes_per_s
    ):
        raise ValueError("its answer is no bandwidth")


@dataclass(frozen=True)
class _Node:
    """A parsed node, and the sets chosen on it so far."""

    machine: Machine
    warnings: tuple[str, ...]
    choices: Choices = field(default_factory=dict)
    calibrated: dict[Hashable, Calibrated] = field(default_factory=dict)


class BandwidthService(PredictorService[BandwidthPredictor]):
    """Answers questions about sets of GPUs with the model in ``slot``. One per replica."""

    def __init__(
        self,
        slot: Slot[BandwidthPredictor],
        metrics: EndpointMetrics,
        *,
        threads: int = 2,
        pairwise: PairwiseService | None = None,
        challenger: Slot[BandwidthPredictor] | None = None,
        comparisons: Comparisons | None = None,
    ) -> None:
        self._counters = BandwidthMetrics(metrics)
        super().__init__(slot, metrics, self._counters, challenger)
        self._pairwise, self._comparisons = pairwise, comparisons
        self._workers, self._spare = Workers(threads, "bandwidth"), Workers(1, "bandwidth-fallback")
        self._pairwise_workers = Workers(1, "bandwidth-pairs")
        self._nodes: OrderedDict[Hashable, _Node] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def compared(self) -> Comparisons | None:
        return self._comparisons

    def close(self) -> None:
        super().close()
        self._workers.close()
        self._spare.close()
        self._pairwise_workers.close()
        if self._pairwise is not None:
            self._pairwise.close()

    async def keep(self, request: PairsRequest, deadline: Deadline, caller: str = "") -> dict[str, Any]:
        """The answer to measured pairs. Raises Problem."""
        models = self.models
        return await self._with_pairwise(
            deadline, lambda pairwise: pairwise.keep(request, caller, models, self._comparisons)
        )

    async def list_pairs(
        self, cluster: str | None, deadline: Deadline, only_of: str | None, caller: str
    ) -> dict[str, Any]:
        """The pairs that are kept; ``only_of`` limits it to one caller, None for all. Raises Problem."""
        return await self._with_pairwise(
            deadline, lambda pairwise: pairwise.list_pairs(cluster, only_of, caller, self.slot.current)
        )

    async def _with_pairwise(
        self, deadline: Deadline, work: Callable[[PairwiseService], dict[str, Any]]
    ) -> dict[str, Any]:
        if self._pairwise is None:
            raise Problem(503, "This endpoint keeps no measured pairs.")
        try:
            return await self._pairwise_workers.run(deadline, work, self._pairwise)
        except TimeoutError:
            text = f"{deadline.reason.message} Sending pairs again is harmless."
            raise Problem(503, text, headers={"retry-after": "2"}) from None

    async def answer(
        self, request: BandwidthRequest, deadline: Deadline, scope: Scope | None = None
    ) -> BandwidthResponse:
        """The model's answer within the deadline; otherwise the analytic fallback, marked as such.

        Raises Problem 422 for invalid questions, and 503 where there is no time for the fallback either.
        """
        model = self.model_for(request.model_dump_json)
        made = await self._in_time(model, request, deadline, scope or Scope())
        self._counters.answered(made)
        return made

    async def _in_time(
        self, model: BandwidthPredictor | None, request: BandwidthRequest, deadline: Deadline, scope: Scope
    ) -> BandwidthResponse:
        if model is None:
            why = self.slot.error or Reason("NO_MODEL", "No bandwidth model is loaded yet.")
            return await self._fallback(request, why)
        try:
            made = await self._workers.run(deadline, self._by_model, model, request, deadline, scope)
        except TimeoutError:
            self.canary.failed(model)
            return await self._fallback(request, deadline.reason)
        except Problem:
            raise
        except Exception as error:  # noqa: BLE001 - edge: a model's bug must not become the caller's outage
            _LOG.exception("bandwidth failed")
            if self.canary.failed(model):
                return await self._in_time(self.slot.current, request, deadline, scope)
            text = f"The model failed ({type(error).__name__}); this is the fallback."
            return await self._fallback(request, Reason("MODEL_ERROR", text))
        self.canary.answered(model)
        return made

    async def _fallback(self, request: BandwidthRequest, why: Reason) -> BandwidthResponse:
        until = Deadline(time.monotonic() + _FALLBACK_S, _FALLBACK_S)
        try:
            return await self._spare.run(until, self._by_links, request, why, until)
        except TimeoutError:
            text = f"{why.message} The fallback takes too long as well; ask about fewer sets."
            raise Problem(503, text, headers={"retry-after": "1"}) from None

    def _by_model(
        self, model: BandwidthPredictor, request: BandwidthRequest, deadline: Deadline, scope: Scope
    ) -> BandwidthResponse:
        node, query = self._node(request, request.topology), _query(request)
        query = replace(query, slow={**self._slow(request, scope), **query.slow})
        machine, base_model, of_cluster = self._of_cluster(model, node, request, scope)
        calibrated_model, of_probes = _calibrated(base_model, machine, query)
        reasons = (*of_cluster, *of_probes)
        widening = self._widening(scope, model) if not query.probes else HOLDS

        def estimate(of: Machine, gpus: tuple[int, ...], nodes: int) -> BandwidthEstimate:
            target = machine if of is node.machine else of
            question = BandwidthQuestion(target, gpus, query.collective, query.bytes, nodes)
            return _widened(calibrated_model.estimate(question), widening)

        def of_set(gpus: tuple[int, ...]) -> BandwidthEstimate:
            return estimate(node.machine, gpus, query.nodes)

        try:
            sets, best = answer_sets(query, node.machine, of_set, _until(deadline), node.choices)
            placement = answer_places(query, self._offered(request, node, deadline), estimate, _until(deadline))
        except WrongQuestion as error:
            raise invalid(error.field, error.message) from None
        return BandwidthResponse(
            collective=query.collective,
            bytes=query.bytes,
            nodes=query.nodes,
            sets=sets,
            best=best,
            placement=placement,
            model=ModelOut.of(model.version),
            fallback=False,
            reasons=reasons_out(reasons),
            warnings=node.warnings,
        )

    def _widening(self, scope: Scope, model: BandwidthPredictor) -> Widening:
        return HOLDS if self._comparisons is None else self._comparisons.widening(owner_of(scope.owner), model.version)

    def _of_cluster(
        self, model: BandwidthPredictor, node: _Node, request: BandwidthRequest, scope: Scope
    ) -> tuple[Machine, BandwidthPredictor, tuple[Reason, ...]]:
        """The model calibrated with the cluster's measured pairs; cached with the node until the pairs change."""
        if request.cluster is None:
            return node.machine, model, ()
        try:
            if self._pairwise is None:
                raise Lost
            key = (request.cluster, scope, self._pairwise.stamp(request.cluster, scope), model.version)
            calibrated = node.calibrated.get(key)
            if calibrated is None:
                calibrated = self._pairwise.calibrated(model, node.machine, request.cluster, scope, request.software)
                if len(node.calibrated) >= _MOST_CALIBRATED:
                    node.calibrated.clear()
                node.calibrated[key] = calibrated
        except Lost:
            return node.machine, model, (lost(request.cluster),)
        return calibrated.machine, calibrated.model, (calibrated.reason,)

    def _slow(self, request: BandwidthRequest, scope: Scope) -> Mapping[Pair, float]:
        """Pairs of the offered nodes that the cluster's tests found slow."""
        if not request.offers or request.cluster is None or self._pairwise is None:
            return {}
        try:
            return self._pairwise.slow(request.cluster, scope)
        except Lost:
            # The reasons of the answer say that measurements are missing.
            return {}

    def _by_links(self, request: BandwidthRequest, why: Reason, deadline: Deadline) -> BandwidthResponse:
        node = self._node(request, request.topology)
        try:
            return physical(
                _query(request),
                node.machine,
                node.warnings,
                why,
                _until(deadline),
                node.choices,
                offered=self._offered(request, node, deadline),
            )
        except WrongQuestion as error:
            raise invalid(error.field, error.message) from None

    def _offered(self, request: BandwidthRequest, node: _Node, deadline: Deadline) -> list[Machine]:
        """The machines of the offers, in request order. Raises Problem, and TimeoutError past the deadline."""
        still, machines = _until(deadline), []
        for number, offer_in in enumerate(request.offers):
            still()
            own = offer_in.topology
            machines.append(
                node.machine if own is None else self._node(request, own, f"offers.{number}.topology").machine
            )
        return machines

    def _node(self, request: BandwidthRequest, topology_in: NodeIn | ToolOutputIn, field: str = "topology") -> _Node:
        """Raises Problem for what is no node's topology."""
        topology = topology_in.text if isinstance(topology_in, ToolOutputIn) else _topology(topology_in, field)
        # Nodes that differ only in their names share one cache entry.
        alike = topology if isinstance(topology, str) else replace(topology, node="")
        key = (alike, request.gpu, request.nics, request.software)
        with self._lock:
            held = self._nodes.get(key)
            if held is not None and len(held.choices) < _MOST_CHOICES:
                self._nodes.move_to_end(key)
                return held
        held = _read(request, topology, field)
        with self._lock:
            self._nodes[key] = held
            while len(self._nodes) > _MOST_HELD:
                self._nodes.popitem(last=False)
        return held


def _widened(estimate: BandwidthEstimate, widening: Widening) -> BandwidthEstimate:
    if widening.factor <= 1.0:
        return estimate
    return replace(
        estimate,
        latency_low_us=estimate.latency_low_us / widening.factor,
        latency_high_us=estimate.latency_high_us * widening.factor,
        bus_low_gigabytes_per_s=estimate.bus_low_gigabytes_per_s / widening.factor,
        bus_high_gigabytes_per_s=estimate.bus_high_gigabytes_per_s * widening.factor,
        reasons=(*estimate.reasons, *widening.reasons),
    )


def _until(deadline: Deadline) -> Callable[[], None]:
    def still() -> None:
        if deadline.remaining_s() <= 0:
            raise TimeoutError

    return still


def _topology(topology_in: NodeIn, field: str) -> NodeTopology:
    try:
        return NodeTopology.from_dict(topology_in.model_dump())
    except TopologyError as error:
        raise invalid(field, str(error)) from None


def _read(request: BandwidthRequest, topology: NodeTopology | str, field: str) -> _Node:
    path = f"{field}.text" if isinstance(topology, str) else field
    try:
        node = node_in(topology) if isinstance(topology, str) else topology
        if len(node.gpus) > MAX_GPUS:
            raise invalid(path, f"{len(node.gpus)} GPUs in a node; at most {MAX_GPUS} are understood")
        machine = machine_of_node(node, gpu=request.gpu, nics=request.nics, software=request.software)
    except WrongQuestion as error:
        raise invalid(error.field.replace("topology", field, 1), error.message) from None
    except TopologyError as error:
        raise invalid(path, str(error)) from None
    return _Node(machine, node.warnings)


def _query(request: BandwidthRequest) -> BandwidthQuery:
    """The query without its topology, which is parsed separately."""
    probes = tuple(
        MeasuredCollective(tuple(probe.gpus), probe.collective, probe.bytes, probe.latency_us, probe.nodes)
        for probe in request.probes
    )
    return BandwidthQuery(
        "",
        tuple(map(tuple, request.gpu_sets)),
        request.collective,
        request.bytes,
        request.nodes,
        minimum_gigabytes_per_s=request.minimum_gigabytes_per_s,
        of=request.of,
        count=request.count,
        free=request.free,
        probes=probes,
        offers=tuple(OfferedNode(offer.name, offer.free, offer.domains) for offer in request.offers),
        slow={
            (slow_pair_in.nodes[0], slow_pair_in.nodes[1]): slow_pair_in.gigabytes_per_s
            for slow_pair_in in request.slow
        },
        traffic=tuple(
            LinkTraffic(
                item.link, item.gigabytes_per_s, item.flows, item.node, item.capacity_gigabytes_per_s, item.age_s
            )
            for item in request.traffic
        ),
    )


def _calibrated(
    model: BandwidthPredictor, machine: Machine, query: BandwidthQuery
) -> tuple[BandwidthPredictor, tuple[Reason, ...]]:
    """A copy of the model calibrated with the request's measurements. Raises Problem for impossible ones."""
    if not query.probes:
        return model, ()
    for number, probe in enumerate(query.probes):
        try:
            model = model.observing(machine, probe, probe.gpus, query.nodes)
        except BandwidthError as error:
            raise invalid(f"probes.{number}", str(error)) from None
    text = f"{len(query.probes)} measurement(s) of this machine pull the answers towards them."
    return model, (Reason("CALIBRATED", text, {"probes": len(query.probes)}),)
