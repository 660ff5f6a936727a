"""One pass: all KaiwoQueues as a tree, what it becomes, the writes, and the status of each."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

from kopt.cluster.client.api import ApiError, Kube, NotFound
from kopt.cluster.client.resources import KAIWO_QUEUES, Object, Resource
from kopt.cluster.objects.custom.kaiwo_queue import pool_of, queue_of
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.lease import Deposed
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.controllers.queues.advising import StandingAdvice
from kopt.controllers.queues.applying import apply_plan, plan_apply
from kopt.controllers.queues.evicting import Evictions
from kopt.controllers.queues.reclaiming import Reclaiming, reclaims_due
from kopt.controllers.queues.rollout import FEATURE, FLAVOR, Rollout, queue_of_change
from kopt.controllers.queues.status import status_of
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import DEFAULT_GPU_RESOURCE, Compiled, Engine, NotExpressible
from kopt.core.units import counted
from kopt.policies.queues import QueueTree, Settings, TreeError, compile_tree
from kopt.policies.queues.differences import ApplyPlan
from kopt.policies.queues.reclaim import PACE, Pace, ReclaimDecision

_LOG = logging.getLogger(__name__)
_PAUSES = Pauses(refused_s=30.0, missing_s=30.0)
Emit = Callable[[Object, str, str], None]


@dataclass(frozen=True)
class Carrying:
    """Who carries the queues out, and whether they are written."""

    engine: Engine = Engine.KUEUE
    mode: Mode = Mode.OBSERVE
    prune: bool = False
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    pace: Pace = PACE
    again_s: float = 60.0
    """What others own, workloads in queues that are to go, and what fits into a quota change without an event of the
    kinds that are watched."""
    closely_s: float = 1.0
    """Between two passes at least, where nothing is changed."""


class Writer(Protocol):
    """The writes of one term (``cluster.runtime.lease.Fence``)."""

    @property
    def holds(self) -> bool: ...

    async def patch(self, resource: Resource, document: Object, changes: Object) -> Object: ...

    async def replace(self, resource: Resource, body: Object, *, subresource: str = "") -> Object: ...


@dataclass(frozen=True)
class Outcome:
    """Of all queues: whether they are as declared, why not, and how many objects were written."""

    applied: bool
    reason: str
    message: str
    written: int = 0
    excluded: Mapping[str, "Outcome"] = field(default_factory=dict)
    """Of queues that the switch leaves out, by name."""

    def of(self, queue: str) -> "Outcome":
        return self.excluded.get(queue, self)


class Reconciler(Retrying):
    """One term. ``queues`` and ``pools`` give the objects as informers keep them."""

    def __init__(
        self,
        kube: Kube,
        writer: Writer,
        carrying: Carrying,
        queues: Callable[[], Sequence[Object]],
        pools: Callable[[], Sequence[Object]],
        emit: Emit,
        clock: Callable[[], float],
        isolation: Isolation,
        gate: Gate = OPEN,
        advice: Callable[[], StandingAdvice | None] = lambda: None,
    ) -> None:
        super().__init__(isolation, _PAUSES)
        self._kube, self._writer, self._carrying, self._gate = kube, writer, carrying, gate
        self._queues, self._pools, self._emit, self._clock = queues, pools, emit, clock
        self._advice = advice
        self._evictions = Evictions(kube, writer, emit, clock, carrying.pace)

    async def step(self) -> float | None:
        """In how many seconds to run again if nothing changes before."""
        return await self._tried(self._pass)

    async def _pass(self) -> float:
        documents = {item["metadata"]["name"]: item for item in self._queues()}
        held = await self._evictions.give_back(acts=self._delays) if self._carrying.engine is Engine.KUEUE else 0
        if not documents and not self._carrying.prune:
            return self._carrying.again_s
        try:
            tree = self._tree(list(documents.values()))
            reclaiming = await self._reclaims(tree, documents)
            decisions = reclaiming.decisions
            compiled = compile_tree(tree, self._carrying.engine, Settings(self._carrying.gpu_resource, self._delays))
        except ValueError as error:
            # One contradiction stops all: half a tree would take from queues what the other half gives them.
            reason = "Contradiction" if isinstance(error, TreeError) else "Unreadable"
            await self._report(documents, (), Outcome(False, reason, " ".join(str(error).split())))
            return self._carrying.again_s
        outcome = await self._carried_out(tree, compiled)
        await self._report(documents, compiled.not_expressible, outcome, decisions)
        if outcome.applied:
            await self._evictions.carry_out(reclaiming)
        carrying = self._carrying
        rechecks = [carrying.pace.recheck_s] if held else []
        # What the rest of a span says is rounded up.
        rechecks += [max(carrying.closely_s, decision.again_s) for decision in decisions.values()]
        return min([carrying.again_s, *rechecks])

    def _tree(self, documents: Sequence[Object]) -> QueueTree:
        queues = [queue_of(document) for document in sorted(documents, key=_name)]
        return QueueTree.of(queues, [pool_of(document) for document in sorted(self._pools(), key=_name)])

    async def _reclaims(self, tree: QueueTree, documents: Mapping[str, Object]) -> Reclaiming:
        """For conservative queues: KAI and Volcano take quota back by themselves."""
        if not self._delays:
            return Reclaiming()
        try:
            attempts, pace = self._evictions.attempts, self._carrying.pace
            due = await reclaims_due(self._kube, tree, documents, self._clock(), pace, attempts)
        except NotFound:
            return Reclaiming()
        rollout = self._rollout(tree)
        return replace(
            due,
            decisions={name: it for name, it in due.decisions.items() if rollout.includes(name)},
            steps=[step for step in due.steps if rollout.includes(step.owner)],
        )

    def _rollout(self, tree: QueueTree) -> Rollout:
        return Rollout(tree, self._gate, self._carrying.mode)

    @property
    def _delays(self) -> bool:
        return self._carrying.engine is Engine.KUEUE and self._carrying.mode is Mode.ENFORCE

    async def _carried_out(self, tree: QueueTree, compiled: Compiled) -> Outcome:
        engine = self._carrying.engine
        try:
            plan = await plan_apply(self._kube, tree, compiled, engine, prune=self._carrying.prune, insist=False)
        except NotFound as error:
            return Outcome(False, "EngineMissing", f"{engine.value} is not installed: {error.message}")
        if plan.problems:
            return Outcome(False, "Refused", " ".join(plan.problems))
        if self._carrying.mode is not Mode.ENFORCE:
            writes = len(plan.writes)
            message = f"In mode {self._carrying.mode.value}: {counted(writes, 'object')} would be written."
            return Outcome(not writes, "AsDeclared" if not writes else "OnlyObserved", message)
        rollout, written = self._rollout(tree), 0
        excluded = _excluded(plan, rollout)
        included = ApplyPlan(tuple(change for change in plan.changes if rollout.writes(change)))
        async for change, failure in apply_plan(self._kube, included, self._check):
            if failure:
                return Outcome(False, "WriteFailed", failure, written, excluded)
            _LOG.info("%s %s: %s", change.kind, change.name, change.action.value)
            written += 1
        return Outcome(True, "AsDeclared", f"{engine.value} has what was declared.", written, excluded)

    def _check(self) -> None:
        if not self._writer.holds:
            raise Deposed("another replica leads now")

    async def _report(
        self,
        documents: Mapping[str, Object],
        findings: Sequence[NotExpressible],
        outcome: Outcome,
        decisions: Mapping[str, ReclaimDecision] = MappingProxyType({}),
    ) -> None:
        """The status of each queue whose own has changed; an event where its queues were written."""
        by_queue: dict[str, list[NotExpressible]] = {}
        for finding in findings:
            by_queue.setdefault(finding.path.partition("/")[0], []).append(finding)
        for name, document in documents.items():
            own = outcome.of(name)
            applied = (own.applied, own.reason, own.message)
            status = status_of(
                document,
                self._carrying.engine,
                by_queue.get(name, ()),
                applied,
                self._clock(),
                decisions.get(name),
                self._advice(),
                self._carrying.pace,
            )
            if document.get("status") == status:
                continue
            try:
                await self._writer.replace(KAIWO_QUEUES, document | {"status": status}, subresource="status")
            except ApiError as error:
                # It has changed since: the next pass is about what it is then.
                _LOG.info("the status of %s is written later: %s", name, error)
                continue
            reference = KAIWO_QUEUES.reference("", name, document["metadata"]["uid"])
            self._emit(reference, own.reason, own.message)


def _excluded(plan: ApplyPlan, rollout: Rollout) -> dict[str, Outcome]:
    """By queue that the switch leaves out: how many objects would be written for its tree."""
    withheld = [change for change in plan.writes if not rollout.writes(change)]
    flavors = sum(change.kind == FLAVOR for change in withheld)
    writes = Counter(rollout.root(queue_of_change(change)) for change in withheld if change.kind != FLAVOR)
    result = {}
    for name in rollout.tree.queues:
        if not rollout.includes(name):
            count = writes[rollout.root(name)] + flavors
            message = f"The feature {FEATURE} is switched off for it: {counted(count, 'object')} would be written."
            result[name] = Outcome(not count, "AsDeclared" if not count else "OnlyObserved", message)
    return result


def _name(document: Object) -> str:
    return str(document["metadata"]["name"])
