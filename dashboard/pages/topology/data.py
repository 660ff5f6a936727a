"""The nodes of the cluster, what pairs of them were measured to reach, and the model that predicts from both."""

from dataclasses import dataclass, replace
from functools import lru_cache

from kopt.core.settings import Settings
from kopt.dashboard.data import access
from kopt.dashboard.data.access import Holds
from kopt.dashboard.data.feed import Answer, Connections, Feed, Polled
from kopt.dashboard.data.sources import Nodes
from kopt.dashboard.pages.topology.bandwidth_model import BandwidthModel
from kopt.serving.contract.bandwidth.pairwise_answers import PairsResponse

NODES_EVERY_S = 60.0
"""What links GPUs changes rarely, and a list of thousands of nodes is megabytes."""
PAIRS_EVERY_S = 60.0
"""As for nodes: pairs are measured over hours."""
MOST_CLUSTERS = 8


@dataclass(frozen=True)
class Pairs(Answer):
    """What pairs of nodes were measured to reach, by cluster; or what kept them away."""

    clusters: tuple[PairsResponse, ...] = ()


class NodesReader:
    """Asks the cluster; nothing where the pages have none."""

    def __init__(self, connections: Connections) -> None:
        self._cluster, self._clock = connections.cluster, connections.clock
        self._nodes, self._due_s = Nodes(cluster=self._cluster is not None), 0.0

    async def refresh(self) -> None:
        if self._cluster is None or self._clock() < self._due_s:
            return
        self._due_s = self._clock() + NODES_EVERY_S
        nodes = await self._cluster.nodes()
        self._nodes = nodes if nodes.nodes or not nodes.problem else replace(self._nodes, problem=nodes.problem)

    async def latest(self) -> Nodes:
        return self._nodes


def _open_pairs(connections: Connections) -> Polled[Pairs]:
    async def ask() -> Pairs:
        names = (await connections.client.pairs()).clusters
        return Pairs(tuple([await connections.client.pairs(name) for name in names[:MOST_CLUSTERS]]))

    return Polled(Pairs(), ask, connections.clock, PAIRS_EVERY_S)


def _restrict_nodes(nodes: Nodes, holds: Holds) -> Nodes:
    return nodes if holds(access.NODES) else replace(nodes, nodes=())


def _restrict_measured(measured: Pairs, holds: Holds) -> Pairs:
    return measured if holds(access.NODES) else replace(measured, clusters=())


NODES: Feed[Nodes] = Feed("nodes", Nodes, NodesReader, _restrict_nodes)
PAIRS: Feed[Pairs] = Feed("pairs", Pairs, _open_pairs, _restrict_measured)


@lru_cache(maxsize=8)
def bandwidth_model(settings: Settings) -> BandwidthModel:
    """One for all requests: loading it takes a second."""
    return BandwidthModel(settings)
