"""Keeps budgets: what each has used, which LocalQueues admit nothing more, and who is told.

The state is on the objects: a queue that is held carries the mark of the hold, a budget what was last said of it.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kopt.cluster.client.resources import KAIWO_BUDGETS, KUEUE_LOCAL_QUEUES, Object, key_of
from kopt.cluster.holds.hold import HoldError, hold_queue, holder_of, release
from kopt.cluster.holds.queue_stop import FIELD
from kopt.cluster.objects.custom.kaiwo_budget import budget_of
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Retrying
from kopt.controllers.meter.store import CostStore
from kopt.core.cost.budgets import Budget, BudgetState, Period
from kopt.core.cost.metering import Attributes, Milliseconds
from kopt.core.cost.prices import PriceBook
from kopt.core.decision import Mode
from kopt.core.switches import Owner
from kopt.core.times import stamp
from kopt.policies.cost.budgets import BudgetDecision, applies, budget_decision, window_of
from kopt.policies.cost.invoice import Line, invoice
from kopt.serving.base.database.interface import DatabaseError

HOLDER, FEATURE = "budget", "budgets"
EVERY_S = 15.0
REASONS = {
    BudgetState.WITHIN: "BudgetWithin",
    BudgetState.SOFT: "BudgetSoftLimit",
    BudgetState.SPENT: "BudgetSpent",
    BudgetState.EXCEPTED: "BudgetExcepted",
    BudgetState.UNKNOWN: "BudgetUnknown",
}


class BudgetCluster(Protocol):
    """Budgets and queues as informers have seen them, and fenced writes."""

    def budget_documents(self) -> list[Object]: ...

    def queue_documents(self) -> list[Object]: ...

    async def patch_queue(self, queue: Object, changes: Object) -> None: ...

    async def write_status(self, budget: Object, status: Object) -> None: ...

    def mode(self, feature: str, owner: Owner) -> Mode: ...


@dataclass
class _Used:
    """What is read once in a pass."""

    attributes: Mapping[str, Attributes]
    lines: dict[Period, list[Line]] = field(default_factory=dict)


class BudgetKeeper(Retrying):
    """``step`` is called with the time until which is metered."""

    def __init__(
        self,
        cluster: BudgetCluster,
        store: CostStore,
        book: PriceBook,
        emit_event: EmitEvent,
        isolation: Isolation,
        every_s: float = EVERY_S,
    ) -> None:
        super().__init__(isolation)
        self._cluster, self._store, self._book, self._emit_event = cluster, store, book, emit_event
        self._every_ms, self._decided_ms = int(every_s * 1000), 0
        self._specs: object = None
        self.held = 0

    async def step(self, now_ms: Milliseconds) -> float | None:
        """In how many seconds to decide again; None where there are no budgets."""
        documents = self._cluster.budget_documents()
        specs = [self._kind_of(item) for item in (*documents, *self._cluster.queue_documents())]
        if specs == self._specs and now_ms - self._decided_ms < self._every_ms:
            return (self._every_ms - (now_ms - self._decided_ms)) / 1000
        self._specs, self._decided_ms = specs, now_ms
        if not documents and not self._held():
            return None
        try:
            used = _Used(await asyncio.to_thread(self._store.attributes))
            decisions = [await self._decide(document, used, now_ms) for document in documents]
        except DatabaseError:
            self.errors += 1
            return self._every_ms / 1000
        wanted: dict[tuple[str, str], BudgetDecision] = {}
        for decided in decisions:
            if decided is not None and decided.holds and self._is_enforced(decided.budget.name):
                wanted |= {key_of(queue): decided for queue in self._queues_of(decided.budget)}
        await self._carry_out(wanted)
        for document, decided in zip(documents, decisions, strict=True):
            if decided is not None:
                await self._tried(partial(self._report, document, decided, now_ms), _subject(document))
        self.held = len(self._held())
        return self._every_ms / 1000

    def _kind_of(self, document: Object) -> tuple[object, ...]:
        """What, where it has changed, has everything decided at once."""
        metadata, name = document["metadata"], text(document, "metadata", "name")
        stopped = text(document, "spec", FIELD), holder_of(document)
        return text(metadata, "uid"), metadata.get("generation"), *stopped, self._is_enforced(name)

    def _is_enforced(self, name: str) -> bool:
        owner = Owner.of(KAIWO_BUDGETS.plural, "", name)
        return self._cluster.mode(FEATURE, owner) is Mode.ENFORCE

    def _held(self) -> list[Object]:
        return [queue for queue in self._cluster.queue_documents() if holder_of(queue) == HOLDER]

    def _queues_of(self, budget: Budget) -> list[Object]:
        """A budget of labels alone is of no queue: it is only reported."""
        if not (budget.namespace or budget.cluster_queue) or budget.labels:
            return []
        return [
            queue
            for queue in self._cluster.queue_documents()
            if budget.namespace in ("", key_of(queue)[0])
            and budget.local_queue in ("", key_of(queue)[1])
            and budget.cluster_queue in ("", text(queue, "spec", "clusterQueue"))
        ]

    async def _decide(self, document: Object, used: _Used, now_ms: Milliseconds) -> BudgetDecision | None:
        with self._isolation.guard(_subject(document)):
            budget = budget_of(document)
            if budget.period not in used.lines:
                used.lines[budget.period] = await asyncio.to_thread(self._lines, budget.period, now_ms)
            of_queue = frozenset(key_of(queue) for queue in self._queues_of(budget))
            lines = [
                line
                for line in used.lines[budget.period]
                if (pod := used.attributes.get(line.usage.subject)) is not None and applies(budget, pod, of_queue)
            ]
            return budget_decision(budget, lines, now_ms)
        return None

    def _lines(self, period: Period, now_ms: Milliseconds) -> list[Line]:
        window = self._store.window(window_of(period, now_ms)[0], now_ms)
        return invoice(self._store.usages(window, self._book))

    async def _carry_out(self, wanted: Mapping[tuple[str, str], BudgetDecision]) -> None:
        for queue in self._cluster.queue_documents():
            decided = wanted.get(key_of(queue))
            if decided is not None and holder_of(queue) != HOLDER:
                await self._tried(partial(self._hold, queue, decided), _subject(queue, "LocalQueue"))
            elif decided is None and holder_of(queue) == HOLDER:
                await self._tried(partial(self._release, queue), _subject(queue, "LocalQueue"))

    async def _hold(self, queue: Object, decided: BudgetDecision) -> None:
        try:
            changes = hold_queue(queue, HOLDER)
        except HoldError:
            # Its owner, or another holder, keeps it closed.
            return
        await self._cluster.patch_queue(queue, changes)
        self._emit_event(_reference(queue, "LocalQueue"), "BudgetSpent", decided.sentence)

    async def _release(self, queue: Object) -> None:
        await self._cluster.patch_queue(queue, release(KUEUE_LOCAL_QUEUES, queue))
        sentence = "No spent budget holds this queue any more: it admits workloads again."
        self._emit_event(_reference(queue, "LocalQueue"), "BudgetOpened", sentence)

    async def _report(self, document: Object, decided: BudgetDecision, now_ms: Milliseconds) -> None:
        held = sorted(
            "/".join(key_of(queue)) for queue in self._queues_of(decided.budget) if holder_of(queue) == HOLDER
        )
        status = status_of(decided, held, now_ms)
        before = document.get("status") or {}
        if all(before.get(name) == value for name, value in status.items() if name != "updatedAt"):
            return
        await self._cluster.write_status(document, status)
        if before.get("state", BudgetState.WITHIN.value) != decided.state.value:
            reason, sentence = REASONS[decided.state], decided.sentence
            self._emit_event(_reference(document, KAIWO_BUDGETS.kind), reason, sentence)
            for queue in self._queues_of(decided.budget):
                if decided.state is not BudgetState.SPENT:
                    self._emit_event(_reference(queue, "LocalQueue"), reason, sentence)


def status_of(decided: BudgetDecision, held: list[str], at_ms: Milliseconds) -> Object:
    """What is written into the status: for people, and for whoever reads the cluster."""
    unit, factor = ("gpuHours", 1000) if decided.budget.gpu_hours_milli else ("amount", 1_000_000)
    return {
        "state": decided.state.value,
        unit: f"{decided.used / factor:.2f}",
        "limit": f"{decided.limit / factor:.2f}",
        "projected": f"{decided.projected / factor:.2f}",
        "opensAt": stamp(decided.opens_ms / 1000),
        "heldQueues": held,
        "message": decided.sentence,
        "updatedAt": stamp(at_ms / 1000),
    }


def _subject(document: Object, kind: str = KAIWO_BUDGETS.kind) -> Subject:
    resource = KAIWO_BUDGETS if kind == KAIWO_BUDGETS.kind else KUEUE_LOCAL_QUEUES
    return Subject.of(resource, document)


def _reference(document: Object, kind: str) -> Object:
    resource = KAIWO_BUDGETS if kind == KAIWO_BUDGETS.kind else KUEUE_LOCAL_QUEUES
    return resource.reference(*key_of(document), text(document, "metadata", "uid"))
