"""``kopt agent node-executor``: one process on a node, from start to the end."""

import asyncio
import contextlib
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kopt.agents.node_executor.executor import Executor, Outcome, OwnNode
from kopt.agents.node_executor.hardware import Hardware, HardwareError
from kopt.agents.node_executor.journal import Journal, JournalError
from kopt.agents.node_executor.reporting import differs, publish, status_of
from kopt.agents.runtime.contained import Contained
from kopt.agents.runtime.running import beside, end_signals, metrics_server
from kopt.cluster.client.api import ApiError, Kube, KubeSettings, connect
from kopt.cluster.client.resources import NODE_PLANS, NODES, Object
from kopt.cluster.objects.custom.node_plan import envelope_in
from kopt.cluster.objects.fields import mapping
from kopt.cluster.runtime.backoff import Backoff
from kopt.cluster.runtime.informer import Change, Informer
from kopt.core.dsse import UntrustedKeyError
from kopt.core.node_plan.state import NodeState
from kopt.core.signing_keys import SigningError, public_keys

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProcessSettings:
    """``keys``: a folder with the public keys that may sign, ``*.pub``. ``interval_s``: between looks at the GPUs."""

    node: str
    hardware: Callable[[], Hardware]
    keys: Path
    journal: Path
    interval_s: float = 60.0
    kubeconfig: Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    """Of metrics; None: none."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Until SIGTERM, SIGINT or ``stop``. Raises NoCluster, and JournalError where the journal cannot be trusted."""
    ending = end_signals(stop)
    with Journal.alone(settings.journal) as journal:
        async with connect(settings.kubeconfig, KubeSettings(user_agent="kopt-node-executor", connections=0)) as kube:
            contained = Contained("node-executor")
            agent = _Agent(kube, settings, journal)
            own = f"metadata.name={settings.node}"
            nodes: Informer[OwnNode] = Informer(kube, NODES, keep=_own_node, field_selector=own)
            plans: Informer[Object] = Informer(kube, NODE_PLANS, field_selector=own, required=True)
            nodes.isolation = plans.isolation = contained.isolation
            nodes.subscribe(agent.node_changed)
            plans.subscribe(agent.plan_changed)
            metrics = metrics_server(lambda: chain(agent.metrics(), contained.metrics()), settings.host, settings.port)
            async with metrics, beside([nodes.run(), plans.run(), agent.run(plans.synced)]):
                await ending.wait()


def trusted_keys(folder: Path) -> tuple[Ed25519PublicKey, ...]:
    """Read anew for each plan, so that a key that is taken away counts no more. Raises UntrustedKeyError."""
    try:
        return public_keys(folder)
    except (SigningError, OSError) as error:
        raise UntrustedKeyError(f"the keys that are trusted here cannot be read: {error}") from error


class _Agent:
    """Looks at the plan and at the GPUs, one pass at a time."""

    def __init__(self, kube: Kube, settings: ProcessSettings, journal: Journal) -> None:
        self._kube, self._settings, self._journal = kube, settings, journal
        self._wake = asyncio.Event()
        self._retry = Backoff(1.0, 60.0)
        self._node: OwnNode | None = None
        self._live: Object | None = None
        self._hardware: Hardware | None = None
        self._reported = ""
        self.ended: Counter[tuple[str, str]] = Counter()
        """Plans by phase and reason code; one that stays refused counts once."""

    def node_changed(self, change: Change[OwnNode]) -> None:
        if change.new != self._node:
            self._node = change.new
            self._wake.set()

    def plan_changed(self, change: Change[Object]) -> None:
        before, self._live = self._live, change.new
        if envelope_in(before or {}) != envelope_in(change.new or {}) or change.new is None:
            self._wake.set()

    async def run(self, synced: asyncio.Event) -> None:
        """Never ends by itself. Raises JournalError: what cannot be recorded must not be begun."""
        await synced.wait()
        while True:
            self._wake.clear()
            pause_s = self._settings.interval_s * random.uniform(0.9, 1.1)
            if self._node is not None:
                try:
                    await self._pass(self._node)
                    self._retry.reset()
                except ApiError as error:
                    self._warn_once(f"not reported yet: {error}")
                    pause_s = self._retry.next_s()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    async def _pass(self, node: OwnNode) -> None:
        document = envelope_in(self._live or {})
        state, outcome, problem = await asyncio.to_thread(self._work, node, document)
        status = status_of(state, outcome, node, self._journal.sequence, problem)
        if differs(status, self._live):
            if outcome is not None and _published_outcome(self._live) != (
                outcome.phase,
                outcome.reason.code,
                outcome.digest,
            ):
                self.ended[outcome.phase.value, outcome.reason.code] += 1
            self._live = await publish(self._kube, node, status, self._live)
        self._warn_once(problem)

    def _work(self, node: OwnNode, document: object) -> tuple[NodeState | None, Outcome | None, str]:
        """In a thread: drivers block. What was interrupted comes first; a plan that was refused is looked at again."""
        state, outcome = None, None
        try:
            if self._hardware is None:
                self._hardware = self._settings.hardware()
            executor = Executor(self._hardware, self._journal, lambda: trusted_keys(self._settings.keys))
            outcome = executor.recover()
            if document is not None:
                outcome = executor.handle(document, node)
            elif outcome is None:
                outcome = executor.last()
            state = self._hardware.read()
        except HardwareError as error:
            return state, outcome, f"the GPUs cannot be asked: {error}"
        except JournalError as error:
            return state, outcome, str(error)
        return state, outcome, ""

    def metrics(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        plans = CounterMetricFamily("kopt_node_plans", "Plans, by how they ended.", labels=["phase", "reason"])
        for key, count in sorted(self.ended.items()):
            plans.add_metric(key, count)
        yield plans
        healthy = 0 if self._reported else 1
        yield GaugeMetricFamily("kopt_node_executor_healthy", "Whether GPUs and journal can be used.", value=healthy)

    def _warn_once(self, text: str) -> None:
        if text and text != self._reported:
            _LOG.warning("%s", text)
        self._reported = text


def _own_node(document: Object) -> OwnNode:
    metadata = mapping(document, "metadata")
    return OwnNode(metadata["name"], metadata["uid"], dict(mapping(metadata, "labels")))


def _published_outcome(live: Object | None) -> tuple[object, object, object]:
    status = mapping(live or {}, "status")
    return status.get("phase"), status.get("reason"), status.get("envelope")
