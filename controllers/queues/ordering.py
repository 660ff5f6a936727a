"""Writes the order of queues onto Kueue's Workloads that wait, and gives back what may not be ordered any more.

One write for each Workload, under the condition that it is as it was read: what Kueue admits meanwhile, and what others
change, is left alone. Each Workload is decided on anew when it changes; what could not be written is in the next round,
so that nothing depends on this process going on.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Protocol

from kopt.cluster.client.api import Forbidden, Invalid
from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, KUEUE_WORKLOADS, Key, Object, Resource, key_of
from kopt.cluster.objects.fields import at, mapping, text
from kopt.cluster.runtime.informer import Change
from kopt.cluster.runtime.isolation import INVALID_OBJECT, Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.kueue.objects import KueueWorkload
from kopt.cluster.workloads.kueue.order import ORDER_KEY, ordered, priority_class_of, unordered
from kopt.cluster.workloads.kueue.order_rules import in_trees, order_rules
from kopt.cluster.workloads.kueue.reading import read_kueue_workload
from kopt.cluster.workloads.requests.gpus import gpus_in
from kopt.controllers.queues.demand import QueuedGpus, queued_gpus
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.queue_order import OrderedWorkload, OrderRules
from kopt.core.switches import Owner
from kopt.policies.priority.order_writes import (
    OrderAction,
    OrderWrite,
    order_refusals,
    root_of,
)
from kopt.policies.priority.queue_order import QueueOrder
from kopt.policies.priority.standing_order import StandingOrder

_LOG = logging.getLogger(__name__)
FEATURE = "queue-order"
MOST_WRITES, WINDOW_S = 100, 1.0
"""Writes in any such time: ten thousand Workloads are no burst."""
ROUND_S = 0.05
"""Between two rounds: changes within it share one."""
_PUT_OFF_S = 30.0
Emit = Callable[[Object, str, str], None]


class Writer(Protocol):
    async def patch(self, resource: Resource, document: Object, changes: Object) -> Object: ...


@dataclass(frozen=True, slots=True)
class QueuedWorkload:
    """What is kept of a Workload that has not ended: its GPUs for the metric, and its order. ``document`` is as much of
    it as a write needs; ``local`` the LocalQueue of one without quota; ``mode`` its own."""

    gpus: QueuedGpus | None
    order: OrderedWorkload
    local: Key
    mode: str
    document: Object


def queued_workload(document: Object) -> QueuedWorkload | None:
    """None for one that has ended."""
    workload = read_kueue_workload(document)
    if workload.finished:
        return None
    return QueuedWorkload(
        queued_gpus(workload),
        _ordered_workload(workload),
        (workload.key[0], workload.queue),
        workload.mode,
        _part(document),
    )


@dataclass(frozen=True, slots=True)
class SeenQueue:
    """A ClusterQueue: its rules, the cohort above it in place of its tree, and its uid."""

    rules: OrderRules
    uid: str


def seen_queue(document: Object) -> SeenQueue:
    return SeenQueue(order_rules(document), text(document, "metadata", "uid"))


class ChangedWorkloads:
    """The Workloads that have changed since they were last given out, as ``Ordering`` reads them."""

    def __init__(self) -> None:
        self._changed: dict[Key, QueuedWorkload | None] = {}

    def follow(self, change: Change[QueuedWorkload]) -> None:
        self._changed[change.key] = change.new

    def drain(self) -> Mapping[Key, QueuedWorkload | None]:
        changed, self._changed = self._changed, {}
        return changed


class Ordering(Retrying):
    """One term. ``order`` is None where the order of no queue is written; what stands of it is then given back.

    ``changes`` gives the Workloads that have changed since it was last called, at first all of them; None for what is
    gone.
    """

    def __init__(
        self,
        writer: Writer,
        order: QueueOrder | None,
        mode: Mode,
        changes: Callable[[], Mapping[Key, QueuedWorkload | None]],
        record: Callable[[Object], None],
        local_queues: Callable[[], Mapping[Key, str]],
        queues: Callable[[], Iterable[SeenQueue]],
        parents: Callable[[], Mapping[str, str]],
        emit: Emit,
        isolation: Isolation,
        gate: Gate = OPEN,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(isolation, Pauses(refused_s=_PUT_OFF_S))
        self._writer, self._order, self._mode, self._gate = writer, order, mode, gate
        self._changes, self._record, self._emit = changes, record, emit
        self._local_queues, self._queues, self._parents = local_queues, queues, parents
        self._clock = clock
        self._standing = StandingOrder(order)
        self._workloads: dict[str, QueuedWorkload] = {}
        """By name, ``namespace/name``."""
        self._targets: dict[Key, str] = {}
        """The ClusterQueue of each LocalQueue, as it was in the last round."""
        self._read: tuple[Mapping[str, SeenQueue], Mapping[str, str]] = {}, {}
        self._rules: tuple[Sequence[OrderRules], Mapping[str, Reason]] = (), {}
        self._emitted: dict[str, str] = {}
        self._put_off: dict[tuple[str, str], float] = {}
        self._written: deque[float] = deque()
        """When the last writes were tried."""
        self.ordered = 0
        """Workloads whose rank in the order stands."""
        self.unordered = 0
        """Workloads that are to be written."""
        self.refused = 0
        """ClusterQueues whose order may not be written."""

    async def step(self) -> float | None:
        """In how many seconds to run again if nothing changes before."""
        return await self._tried(self._round)

    async def _round(self) -> float | None:
        queues = {seen.rules.name: seen for seen in self._queues()}
        rules, refusals = self._ruled(queues)
        self._follow({each.name for each in rules if each.name not in refusals and self._includes(each)})
        standing = self._standing
        self.ordered, self.unordered, self.refused = standing.ordered, standing.unordered, len(refusals)
        respected = {self._workloads[name].order.uid: name for name in standing.respected}
        self._say(
            "PriorityRespected",
            {uid: standing.respected[name] for uid, name in respected.items()},
            {uid: _reference(self._workloads[name]) for uid, name in respected.items()},
        )
        self._say(
            "OrderRefused",
            {queues[name].uid: reason for name, reason in refusals.items()},
            {queues[name].uid: KUEUE_CLUSTER_QUEUES.reference("", name, queues[name].uid) for name in refusals},
        )
        now_s = self._clock()
        self._put_off = {each: until_s for each, until_s in self._put_off.items() if until_s > now_s}
        again_s = [_PUT_OFF_S] if self._put_off else []
        allowed = self._allowed(now_s)
        due = list(islice(filter(self._is_due, standing.writes), allowed + 1))
        if len(due) > allowed:
            again_s.append(WINDOW_S if allowed else max(0.0, self._written[0] + WINDOW_S - now_s))
        for write in due[:allowed]:
            self._written.append(now_s)
            seen = self._workloads[write.workload.name]
            again_s.append(await self._tried(partial(self._write, seen, write), _subject(seen)))
        return min((pause_s for pause_s in again_s if pause_s), default=None)

    def _ruled(self, queues: Mapping[str, SeenQueue]) -> tuple[Sequence[OrderRules], Mapping[str, Reason]]:
        """The queues in their trees, and which are refused: anew where a queue or a cohort has changed."""
        read = queues, self._parents()
        if read != self._read:
            rules = in_trees((seen.rules for seen in queues.values()), read[1])
            self._read, self._rules = read, (rules, order_refusals(rules) if self._order is not None else {})
        return self._rules

    def _follow(self, included: Set[str]) -> None:
        """Decide on what has changed; ``included``: the ClusterQueues that are ordered now."""
        local_queues = self._local_queues()
        if local_queues != self._targets:
            before, self._targets = self._targets, dict(local_queues)
            for seen in self._workloads.values():
                if before.get(seen.local, "") != self._targets.get(seen.local, ""):
                    self._put(seen)
        for name in self._standing.include(included):
            self._put(self._workloads[name])
        for key, changed in self._changes().items():
            name = "/".join(key)
            if changed is None:
                self._workloads.pop(name, None)
                self._standing.remove(name)
            else:
                self._workloads[name] = changed
                self._put(changed)

    def _put(self, seen: QueuedWorkload) -> None:
        # A change is shown once: one that cannot be decided on must not cost the others theirs.
        with self._isolation.guard(_subject(seen), INVALID_OBJECT):
            self._standing.put(_in_queue(seen, self._targets))

    def _is_due(self, write: OrderWrite) -> bool:
        return _version(self._workloads[write.workload.name]) not in self._put_off

    def _allowed(self, now_s: float) -> int:
        """How many writes may follow those of the last window."""
        while self._written and self._written[0] <= now_s - WINDOW_S:
            self._written.popleft()
        return MOST_WRITES - len(self._written)

    async def _write(self, seen: QueuedWorkload, write: OrderWrite) -> float:
        changes = ordered(write.mark) if write.mark is not None else unordered(seen.document)
        try:
            self._record(await self._writer.patch(KUEUE_WORKLOADS, seen.document, changes))
        except (Forbidden, Invalid) as error:
            self._put_off[_version(seen)] = self._clock() + _PUT_OFF_S
            self._emit(_reference(seen), "OrderNotWritten", error.message)
            raise
        if write.action is OrderAction.GIVE_BACK:
            _LOG.info("%s has its own priority back", write.workload.name)
        return 0.0

    def _includes(self, queue: OrderRules) -> bool:
        plural, _, name = root_of(queue).partition("/")
        return self._gate.mode(FEATURE, Owner.of(plural, "", name), self._mode) is Mode.ENFORCE

    def _say(self, event: str, reasons: Mapping[str, Reason], references: Mapping[str, Object]) -> None:
        """Once for each object, and again where there is another reason."""
        before = {uid: code for uid, code in self._emitted.items() if not uid.startswith(f"{event} ")}
        emitted = {f"{event} {uid}": f"{reason.code}: {reason.message}" for uid, reason in reasons.items()}
        for key, sentence in emitted.items():
            if self._emitted.get(key) != sentence:
                self._emit(references[key.partition(" ")[2]], event, sentence)
        self._emitted = before | emitted


def _ordered_workload(workload: KueueWorkload) -> OrderedWorkload:
    priority = at(workload.document, "spec", "priority")
    gpus = sum(gpus_in(name, amount) for name, amount in workload.requests.items() if amount > 0)
    is_free = workload.active and not workload.holder and not workload.mirrored
    return OrderedWorkload(
        workload.name,
        workload.uid,
        workload.cluster_queue,
        priority if isinstance(priority, int) else None,
        priority_class_of(workload.document),
        workload.classified.traits.queue_points,
        gpus,
        workload.created_s,
        workload.pending,
        may_change=is_free,
        mark=workload.order,
    )


def _in_queue(seen: QueuedWorkload, local_queues: Mapping[Key, str]) -> OrderedWorkload:
    """A Workload that may only be observed is in no queue that is ordered."""
    if seen.mode in (Mode.OBSERVE.value, Mode.ANNOTATE.value):
        return replace(seen.order, queue="")
    return seen.order if seen.order.queue else replace(seen.order, queue=local_queues.get(seen.local, ""))


def _part(document: Object) -> Object:
    metadata = document["metadata"]
    kept = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion") if key in metadata}
    for section in ("labels", "annotations"):
        marks = mapping(metadata, section)
        kept[section] = {ORDER_KEY: marks[ORDER_KEY]} if ORDER_KEY in marks else {}
    return {"metadata": kept, "spec": {"priority": at(document, "spec", "priority")}}


def _reference(seen: QueuedWorkload) -> Object:
    return KUEUE_WORKLOADS.reference(*key_of(seen.document), seen.order.uid)


def _version(seen: QueuedWorkload) -> tuple[str, str]:
    """What is refused is refused again while it stays as it is."""
    return seen.order.uid, str(seen.document["metadata"].get("resourceVersion", ""))


def _subject(seen: QueuedWorkload) -> Subject:
    return Subject.of(KUEUE_WORKLOADS, seen.document)
