"""The GPUs of the cluster, and what of them somebody may see."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from kopt.core.scheduling.gpu_map import GpuMap, MapNode, NodeStanding
from kopt.dashboard.data.access import KUBERNETES_NODES, NODE_HEALTHS, Holds, pods_in
from kopt.dashboard.data.feed import Connections, Feed
from kopt.dashboard.data.sources import Cluster
from kopt.dashboard.formatting import natural

_PROCESS = os.urandom(8).hex()
"""Versions count from the start of a process: another one's mean nothing here."""
_sorting_key = lru_cache(maxsize=20_000)(natural)
"""Names stay, and every version of the map is ordered by them."""


@dataclass(frozen=True)
class VisibleMap:
    """A map as its reader may see it: pods of ``hidden`` namespaces have no names, and without ``names_nodes`` only
    nodes on which a visible pod runs have theirs. Amounts and use are everybody's, as in the messages of schedulers;
    what is said of a node's health is for those who may list nodes, evidence with ``shows_health``."""

    map: GpuMap = field(default_factory=GpuMap)
    hidden: frozenset[str] = frozenset()
    names_nodes: bool = True
    shows_health: bool = True

    @property
    def epoch(self) -> str:
        """The same as long as a newer version can be told by what has changed."""
        numbers = "" if self.names_nodes else ",".join(self._order)
        text = f"{_PROCESS} {self.names_nodes} {' '.join(sorted(self.hidden))} {numbers} {self.map.complete_since}"
        return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]

    @cached_property
    def _order(self) -> tuple[str, ...]:
        return tuple(sorted(self.map.nodes, key=_sorting_key))

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._order, start=1)}

    def nodes(self, since: int = 0) -> Iterator[tuple[str, MapNode]]:
        """Nodes that have changed since a version, each with the name that its reader may know."""
        for name in self._order:
            node = self.map.nodes[name]
            if node.version > since:
                yield self.name_of(node), node

    def key_of(self, node: MapNode) -> str:
        """What stands for a node as long as the epoch lasts, whatever its reader may know of it."""
        return node.name if self.names_nodes else str(self._numbers[node.name])

    def name_of(self, node: MapNode) -> str:
        is_named = self.names_nodes or any(
            holder.namespace not in self.hidden for gpu in node.gpus for holder in gpu.holders
        )
        return node.name if is_named else f"node {self._numbers[node.name]}"

    def standing_of(self, node: MapNode) -> NodeStanding:
        """What the reader may know of a node's health."""
        statements = node.standing.statements if self.names_nodes else ()
        is_shown = self.shows_health and self.names_nodes
        return replace(node.standing if is_shown else NodeStanding(), statements=statements)

    def sees(self, namespace: str) -> bool:
        return namespace not in self.hidden


class _Reader:
    """Asks the cluster's watch, which has everything at hand."""

    def __init__(self, connections: Connections) -> None:
        self._cluster = connections.cluster
        self._latest = VisibleMap(GpuMap(cluster=self._cluster is not None, ready=self._cluster is None))

    async def refresh(self) -> None:
        if self._cluster is not None:
            current = self._cluster.gpus()
            if current is not self._latest.map:
                self._latest = VisibleMap(current)

    async def latest(self) -> VisibleMap:
        return self._latest


def _restrict(visible: VisibleMap, holds: Holds) -> VisibleMap:
    seen = {namespace: holds(pods_in(namespace)) for namespace in sorted(visible.map.namespaces)}
    names_nodes = holds(KUBERNETES_NODES)
    hidden = frozenset(namespace for namespace, is_seen in seen.items() if not is_seen)
    shows_health = holds(NODE_HEALTHS)
    is_whole = names_nodes and shows_health and not hidden
    return visible if is_whole else VisibleMap(visible.map, hidden, names_nodes, shows_health)


def _has_changed(old: VisibleMap, new: VisibleMap) -> bool:
    before, now = old.map, new.map
    return (before.version, before.ready, before.problems) != (now.version, now.ready, now.problems)


async def _news(cluster: Cluster) -> None:
    await cluster.gpus_changed()


GPUS: Feed[VisibleMap] = Feed("gpus", VisibleMap, _Reader, _restrict, _has_changed, _news, between_s=0.1)
