"""Writes what a scan found: one object and the labels of one node, when they differ from what the cluster has.

What the cluster has comes by watch, so that reading it costs no request, and that an object which is deleted or
changes is there again soon. Writes are server-side applies: fields and labels of others are left alone, and a label
that others have written is theirs.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.agents.topology.documents import document_of, health_of, same
from kopt.agents.topology.health import Health, boards_of, evaluate, is_less, measure
from kopt.agents.topology.labels import OURS, LabelSettings, labels_of
from kopt.agents.topology.scanning import ScanResult
from kopt.cluster.client.api import ApiError, Kube, Patch
from kopt.cluster.client.resources import NODE_TOPOLOGIES, NODES, Object
from kopt.cluster.runtime.backoff import Backoff
from kopt.cluster.runtime.informer import Change
from kopt.cluster.runtime.isolation import Isolation, Subject

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
    """A degraded part is reported until it has been healthy for so long."""
    retry_first_s: float = 1.0
    retry_longest_s: float = 120.0
    """After a refusal by the API server, or no answer."""


@dataclass(frozen=True)
class PublishedNode:
    """Of a Node what is needed here; ``ours`` are the labels that this agent has written."""

    uid: str
    labels: Mapping[str, str]
    ours: frozenset[str]


def published_node(node: Object) -> PublishedNode:
    metadata = node["metadata"]
    managed = [
        managed_field
        for managed_field in metadata.get("managedFields") or ()
        if managed_field.get("manager") == FIELD_MANAGER
    ]
    fields = [item.get("fieldsV1") or {} for item in managed]
    written = {
        name.removeprefix("f:") for field in fields for name in ((field.get("f:metadata") or {}).get("f:labels") or {})
    }
    return PublishedNode(metadata["uid"], dict(metadata.get("labels") or {}), frozenset(written & set(OURS)))


class Publisher:
    """Of one node. ``written`` counts requests by object and outcome."""

    def __init__(
        self,
        kube: Kube,
        node: str,
        labels: LabelSettings,
        settings: PublishSettings | None = None,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        isolation: Isolation | None = None,
    ) -> None:
        self._isolation = isolation or Isolation("topology")
        self._subject = Subject(NODE_TOPOLOGIES.api_version, NODE_TOPOLOGIES.kind, "", node)
        self._kube, self._name, self._labels = kube, node, labels
        self._settings = settings or PublishSettings()
        self._now, self._clock = now, clock
        self._wake = asyncio.Event()
        self._retry = Backoff(self._settings.retry_first_s, self._settings.retry_longest_s)
        self._pause_s, self._next_s, self._last_s = self._settings.first_pause_s, 0.0, float("-inf")
        self._result: ScanResult | None = None
        self._node: PublishedNode | None = None
        self._live: Object | None = None
        self._applied: tuple[Object, Object] | None = None
        self._healthy_since: dict[str, float] = {}
        self._reported = ""
        self.health: Health | None = None
        self.written: dict[tuple[str, str], int] = {}

    @property
    def live(self) -> Object | None:
        """The object as the cluster has it."""
        return self._live

    @property
    def node(self) -> PublishedNode | None:
        """The node as the cluster has it."""
        return self._node

    @property
    def result(self) -> ScanResult | None:
        """The last scan that was published, or is about to be."""
        return self._result

    def scanned(self, result: ScanResult) -> None:
        """A scan has ended."""
        self._result = result
        self._wake.set()

    def node_changed(self, change: Change[PublishedNode]) -> None:
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
        """Never ends by itself; survives every ApiError, and whatever others have written into the object."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            with self._isolation.guard(self._subject) as attempt:
                await self._publish_or_retry()
            if attempt.error is not None:
                await asyncio.sleep(attempt.again_s)
                self._wake.set()

    async def _publish_or_retry(self) -> None:
        try:
            await self._publish()
        except ApiError as error:
            self._warn_once(str(error))
            await asyncio.sleep(self._retry.next_s())
            self._wake.set()
        else:
            self._retry.reset()
            self._warn_once("")

    async def _publish(self) -> None:
        result, node = self._result, self._node
        if result is None or node is None or (result.topology is None and self._live is None):
            return
        await self._write_object(result, node)
        await self._write_labels(result, node)

    async def _write_object(self, result: ScanResult, node: PublishedNode) -> None:
        at_s = self._now()
        if self._live is None:
            self._live = await self._existing()
        self.health = self._health(result, at_s)
        wanted = document_of(self._name, node.uid, result, self.health, self._live, at_s)
        if same(self._live, wanted) or (self._applied is not None and self._is_applied(wanted)):
            return
        wait_s = self._next_s - self._clock()
        if wait_s > 0:
            asyncio.get_running_loop().call_later(wait_s, self._wake.set)
            return
        self._live = await self._apply("object", NODE_TOPOLOGIES, wanted, force=True)
        self._applied = (wanted, self._live)
        self._paced()

    async def _existing(self) -> Object | None:
        """What the server has, asked again before the first write: while it starts, news of an object come later than
        it takes one, and what the object says was best must not be lost."""
        listed = await self._kube.list(NODE_TOPOLOGIES, field_selector=f"metadata.name={self._name}")
        return listed.items[0] if listed.items else None

    async def _write_labels(self, result: ScanResult, node: PublishedNode) -> None:
        wanted = labels_of(result.topology, result.details.domain, result.fabric, self._name, node.labels, self._labels)
        if result.topology is None and self._labels.write:
            wanted |= {name: node.labels[name] for name in node.ours if name in node.labels and name not in wanted}
        free = {name: text for name, text in wanted.items() if name in node.ours or name not in node.labels}
        if free == {name: node.labels.get(name) for name in node.ours}:
            return
        changes = {
            "apiVersion": NODES.api_version,
            "kind": NODES.kind,
            "metadata": {"name": self._name, "uid": node.uid, "labels": free},
        }
        self._node = published_node(await self._apply("labels", NODES, changes, force=False))

    async def _apply(self, what: str, resource: Any, body: Object, force: bool) -> Object:
        try:
            stored = await self._kube.patch(
                resource, self._name, body, kind=Patch.APPLY, field_manager=FIELD_MANAGER, force=force
            )
        except ApiError as error:
            self._count(what, error.reason)
            raise
        self._count(what, "ok")
        _LOG.info("%s of %s written", what, self._name)
        return stored

    def _health(self, result: ScanResult, at_s: float) -> Health:
        before = health_of(self._live)
        if result.topology is None:
            return before or Health({}, {})
        now = measure(result.topology, result.details)
        listed = {degraded.part: degraded for degraded in before.degraded} if before is not None else {}
        for part, entry in listed.items():
            if is_less(now.get(part, 0.0), entry.was):
                self._healthy_since.pop(part, None)
            else:
                self._healthy_since.setdefault(part, at_s)
        return evaluate(now, boards_of(result.topology), before, at_s, self._healthy_since, self._settings.recover_s)

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

    def _warn_once(self, error: str) -> None:
        if error and error != self._reported:
            _LOG.warning("not published yet: %s", error)
        self._reported = error


def _is_older(document: Object, than: Object | None) -> bool:
    """News of a change that this agent's own write came after. Versions are numbers that grow (Kubernetes 1.35), but
    for a server that was restored from a backup."""
    versions = [(item or {}).get("metadata", {}).get("resourceVersion", "") for item in (document, than)]
    return all(version.isdigit() for version in versions) and int(versions[0]) < int(versions[1])
