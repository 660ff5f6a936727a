"""Writes what a scan found: one object and the labels of one node, when they differ from what the cluster has.

What the cluster has comes by watch, so that looking costs no request, and that an object which somebody deletes or
changes is there again soon. Writes are server-side applies: fields and labels of others are left alone, and a label
that somebody else has written is theirs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.agents.topology.documents import document_of, health_of, same
from kopt.agents.topology.health import Health, boards_of, is_less, judge, measure
from kopt.agents.topology.labels import OURS, LabelSettings, labels_of
from kopt.agents.topology.scanning import Found
from kopt.cluster.api import ApiError, Kube, Patch
from kopt.cluster.backoff import Backoff
from kopt.cluster.informer import Change
from kopt.cluster.resources import NODE_TOPOLOGIES, NODES, Object

_LOG = logging.getLogger(__name__)
FIELD_MANAGER = "kopt-topology"
_LATE_NEWS_S = 60.0


@dataclass(frozen=True)
class PublishSettings:
    """Times in seconds."""

    first_pause_s: float = 5.0
    longest_pause_s: float = 600.0
    """Between two writes of the object: each is followed by a pause twice as long as the last one, so that what comes
    and goes is not written every time."""
    calm_s: float = 1800.0
    """Without a write for so long, pauses begin small again."""
    recover_s: float = 600.0
    """What was degraded is told of until it has been healthy for so long."""
    retry_first_s: float = 1.0
    retry_longest_s: float = 120.0
    """After a refusal by the API server, or no answer."""


@dataclass(frozen=True)
class NodeView:
    """Of a Node what is needed here; ``ours`` are the labels that this agent has written."""

    uid: str
    labels: Mapping[str, str]
    ours: frozenset[str]


def node_view(node: Object) -> NodeView:
    metadata = node["metadata"]
    managed = [one for one in metadata.get("managedFields") or () if one.get("manager") == FIELD_MANAGER]
    fields = [one.get("fieldsV1") or {} for one in managed]
    written = {name.removeprefix("f:") for one in fields
               for name in ((one.get("f:metadata") or {}).get("f:labels") or {})}  # fmt: skip
    return NodeView(metadata["uid"], dict(metadata.get("labels") or {}), frozenset(written & set(OURS)))


class Publisher:
    """Of one node. ``written`` counts requests by object and outcome."""

    def __init__(self, kube: Kube, node: str, labels: LabelSettings, settings: PublishSettings | None = None,
                 now: Callable[[], float] = time.time,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._kube, self._name, self._labels = kube, node, labels
        self._settings = settings or PublishSettings()
        self._now, self._clock = now, clock
        self._wake = asyncio.Event()
        self._retry = Backoff(self._settings.retry_first_s, self._settings.retry_longest_s)
        self._pause_s, self._next_s, self._last_s = self._settings.first_pause_s, 0.0, float("-inf")
        self._found: Found | None = None
        self._node: NodeView | None = None
        self._live: Object | None = None
        self._applied: tuple[Object, Object] | None = None
        self._healthy_since: dict[str, float] = {}
        self._said = ""
        self.health: Health | None = None
        self.written: dict[tuple[str, str], int] = {}

    @property
    def live(self) -> Object | None:
        """The object as the cluster has it."""
        return self._live

    def found(self, found: Found) -> None:
        """A scan has ended."""
        self._found = found
        self._wake.set()

    def node_changed(self, change: Change[NodeView]) -> None:
        if change.new != self._node:
            self._node = change.new
            self._wake.set()

    def object_changed(self, change: Change[Object]) -> None:
        if change.new is None:
            # Who deletes it wants it made anew, and what is there now taken for healthy.
            self._live = self._applied = None
            self._healthy_since.clear()
            self._wake.set()
        elif self._clock() - self._last_s > _LATE_NEWS_S or not _is_older(change.new, self._live):
            self._live = change.new
            self._wake.set()

    async def run(self) -> None:
        """Never ends by itself; survives every ApiError."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._publish()
            except ApiError as error:
                self._say(str(error))
                await asyncio.sleep(self._retry.next_s())
                self._wake.set()
            else:
                self._retry.reset()
                self._say("")

    async def _publish(self) -> None:
        found, node = self._found, self._node
        if found is None or node is None or (found.topology is None and self._live is None):
            return
        await self._write_object(found, node)
        await self._write_labels(found, node)

    async def _write_object(self, found: Found, node: NodeView) -> None:
        at_s = self._now()
        if self._live is None:
            self._live = await self._there()
        self.health = self._judged(found, at_s)
        wanted = document_of(self._name, node.uid, found, self.health, self._live, at_s)
        if same(self._live, wanted) or (self._applied is not None and self._is_applied(wanted)):
            return
        wait_s = self._next_s - self._clock()
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._wake.set)
            return
        self._live = await self._apply("object", NODE_TOPOLOGIES, wanted, force=True)
        self._applied = (wanted, self._live)
        self._paced()

    async def _there(self) -> Object | None:
        """What the server has, asked again before the first write: while it starts, news of an object come later than
        it takes one, and what the object says was best must not be lost."""
        listed = await self._kube.list(NODE_TOPOLOGIES, field_selector=f"metadata.name={self._name}")
        return listed.items[0] if listed.items else None

    async def _write_labels(self, found: Found, node: NodeView) -> None:
        wanted = labels_of(found.topology, found.facts.domain, found.fabric, self._name, node.labels, self._labels)
        if found.topology is None and self._labels.write:
            wanted |= {name: node.labels[name] for name in node.ours if name in node.labels and name not in wanted}
        free = {name: text for name, text in wanted.items() if name in node.ours or name not in node.labels}
        if free == {name: node.labels.get(name) for name in node.ours}:
            return
        changes = {"apiVersion": NODES.api_version, "kind": NODES.kind,
                   "metadata": {"name": self._name, "uid": node.uid, "labels": free}}  # fmt: skip
        self._node = node_view(await self._apply("labels", NODES, changes, force=False))

    async def _apply(self, what: str, resource: Any, body: Object, force: bool) -> Object:
        try:
            stored = await self._kube.patch(resource, self._name, body, kind=Patch.APPLY, field_manager=FIELD_MANAGER,
                                            force=force)  # fmt: skip
        except ApiError as error:
            self._count(what, error.reason)
            raise
        self._count(what, "ok")
        _LOG.info("%s of %s written", what, self._name)
        return stored

    def _judged(self, found: Found, at_s: float) -> Health:
        before = health_of(self._live)
        if found.topology is None:
            return before or Health({}, {})
        now = measure(found.topology, found.facts)
        listed = {one.part: one for one in before.degraded} if before is not None else {}
        for part, entry in listed.items():
            if is_less(now.get(part, 0.0), entry.was):
                self._healthy_since.pop(part, None)
            else:
                self._healthy_since.setdefault(part, at_s)
        return judge(now, boards_of(found.topology), before, at_s, self._healthy_since, self._settings.recover_s)

    def _is_applied(self, wanted: Object) -> bool:
        """Was this written already, and is the object still what the server made of it? It may know fewer fields."""
        assert self._applied is not None
        return same(self._applied[0], wanted) and self._live is not None and same(self._live, self._applied[1])

    def _paced(self) -> None:
        now_s = self._clock()
        if now_s - self._last_s > self._settings.calm_s:
            self._pause_s = self._settings.first_pause_s
        self._last_s, self._next_s = now_s, now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, self._settings.longest_pause_s)

    def _count(self, what: str, outcome: str) -> None:
        self.written[what, outcome] = self.written.get((what, outcome), 0) + 1

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._said:
            _LOG.warning("not published yet: %s", trouble)
        self._said = trouble


def _is_older(document: Object, than: Object | None) -> bool:
    """News of a change that this agent's own write came after. Versions are numbers that grow (Kubernetes 1.35), but
    for a server that was restored from a backup."""
    versions = [(one or {}).get("metadata", {}).get("resourceVersion", "") for one in (document, than)]
    return all(one.isdigit() for one in versions) and int(versions[0]) < int(versions[1])
