"""NodeBandwidths: results go in, verdicts on pairs and nodes come with them, and partners that are gone go out.

The object of a node that is gone goes with it: it is owned by the Node.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby

from kopt.cluster.client.resources import NODE_BANDWIDTHS, NODES, Object
from kopt.cluster.objects.custom.node_bandwidth import NodeBandwidth, bandwidth_of, key, owned_by, status_of
from kopt.cluster.runtime.events import EmitEvent
from kopt.controllers.pairwise.ports import Cluster, Writer
from kopt.controllers.pairwise.views import ObservedNode
from kopt.core.hardware.bandwidth import BandwidthError
from kopt.core.hardware.pairwise import Health, MeasuredPair
from kopt.policies.pairwise.health import Evaluation, HealthSettings, Result, evaluate


class Keeper:
    """``keep`` writes what has to be different, one object after the other."""

    def __init__(self, cluster: Cluster, writer: Writer, emit_event: EmitEvent, settings: HealthSettings) -> None:
        self._cluster, self._writer, self._emit_event, self._settings = cluster, writer, emit_event, settings
        self._read: dict[str, tuple[Object, NodeBandwidth]] = {}

    def measured(self) -> list[MeasuredPair]:
        """Every pair that was measured since both of its nodes are there."""
        nodes = self._cluster.nodes()
        result = (pair for held in self._held().values() for pair in held.pairs)
        return [
            measured_pair
            for measured_pair in result
            if _counts(measured_pair, nodes.get(measured_pair.nodes[0]), nodes.get(measured_pair.nodes[1]))
        ]

    async def keep(self, results: Iterable[MeasuredPair], now_s: float) -> None:
        """Raises ApiError; what was not written then is, with the next call."""
        held, nodes = self._held(), self._cluster.nodes()
        newest = {key(measured_pair): measured_pair for measured_pair in self.measured()}
        for result in results:
            if not _counts(result, nodes.get(result.nodes[0]), nodes.get(result.nodes[1])):
                continue
            before = newest.get(key(result))
            if before is None or before.measured_at < result.measured_at:
                newest[key(result)] = result
        pairs = sorted(
            newest.values(),
            key=lambda measured_pair: (measured_pair.nodes, measured_pair.collective, measured_pair.gpus_per_node),
        )
        evaluation = evaluate([_result(pair, nodes) for pair in pairs], self._settings)
        of_node = {
            name: list(measured_pairs)
            for name, measured_pairs in groupby(
                _with_health(pairs, evaluation), key=lambda measured_pair: measured_pair.nodes[0]
            )
        }
        for name, health_result in sorted(evaluation.nodes.items()):
            wanted = NodeBandwidth(
                name, health_result.health, health_result.reason, now_s, tuple(of_node.get(name, ()))
            )
            await self._put(nodes[name], held.get(name), wanted)
        for name in sorted((held.keys() - evaluation.nodes.keys()) & nodes.keys()):
            await self._put(nodes[name], held[name], NodeBandwidth(name, evaluated_at=now_s))

    def sick(self) -> set[str]:
        """Nodes with a verdict against them."""
        return {name for name, node_bandwidth in self._held().items() if node_bandwidth.health is not Health.HEALTHY}

    def _held(self) -> dict[str, NodeBandwidth]:
        """Each object is read once for each of its versions: there may be thousands of pairs."""
        documents = self._cluster.bandwidths()
        previous = {name: self._read.get(name) for name in documents}
        self._read = {
            name: entry
            if (entry := previous[name]) is not None and entry[0] is document
            else (document, _read(name, document))
            for name, document in documents.items()
        }
        return {name: node_bandwidth for name, (_, node_bandwidth) in self._read.items()}

    async def _put(self, node: ObservedNode, before: NodeBandwidth | None, wanted: NodeBandwidth) -> None:
        document = self._cluster.bandwidths().get(node.name)
        was = (before.health, before.reason) if before is not None else (Health.HEALTHY, "")
        if before is not None and was == (wanted.health, wanted.reason) and before.evaluated_at:
            wanted = replace(wanted, evaluated_at=before.evaluated_at)
        status = status_of(wanted)
        if document is None:
            await self._writer.create(NODE_BANDWIDTHS, {"metadata": owned_by(node.name, node.uid), "status": status})
        elif document.get("status") != status:
            await self._writer.patch(NODE_BANDWIDTHS, document, {"status": status})
        if was[0] is not wanted.health:
            self._emit_health_event(node, wanted)

    def _emit_health_event(self, node: ObservedNode, health_result: NodeBandwidth) -> None:
        regarding: Object = NODES.reference("", node.name, node.uid)
        if health_result.health is Health.HEALTHY:
            self._emit_event(regarding, "BandwidthRecovered", "Its bandwidth to other nodes is normal again.")
        else:
            self._emit_event(regarding, "BandwidthDegraded", health_result.reason)


def _read(name: str, document: Object) -> NodeBandwidth:
    try:
        return bandwidth_of(document)
    except BandwidthError:
        # Not by us: it is written anew when there is something to say.
        return NodeBandwidth(name)


def _counts(pair: MeasuredPair, node: ObservedNode | None, other: ObservedNode | None) -> bool:
    """A node that was made anew under its name is another one."""
    return node is not None and other is not None and pair.measured_at >= max(node.created_s, other.created_s)


def _result(pair: MeasuredPair, nodes: Mapping[str, ObservedNode]) -> Result:
    node, other = nodes[pair.nodes[0]], nodes[pair.nodes[1]]
    hardware = tuple(sorted([node.hardware, other.hardware]))
    kind = (pair.collective, pair.gpus_per_node, pair.software, hardware, node.nearness(other))
    return Result(pair.nodes, pair.collective.value, kind, None if pair.health is Health.FAILED else pair.beta_gbps)


def _with_health(pairs: list[MeasuredPair], evaluation: Evaluation) -> list[MeasuredPair]:
    """A failed pair keeps the reason of its test."""
    return [
        measured_pair
        if measured_pair.health is Health.FAILED
        else replace(measured_pair, health=health_result.health, reason=health_result.reason)
        for measured_pair, health_result in zip(pairs, evaluation.pairs, strict=True)
    ]
