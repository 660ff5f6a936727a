"""One pass over all Workloads, from what stands on them: nothing that matters is only in memory.

A Workload that Kueue would make room for is held (``active: false``) from its creation on, or from when others who had
held it let it go. While it is, the policy is
asked at every change; gangs that can save on request are asked to, and waited for. Then, in this order: everybody who
must not be taken is covered (a priority above that of the one that waits), the chosen are told, and the Workload is let
go: Kueue finds nobody but the chosen. Covers end when it has its quota, or is gone, or ``cover_s`` later; wherever this
ends in between, the next pass goes on or takes it back. As long as Kueue has not looked, who of the chosen begins to
write is covered, too.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kopt.cluster.held import release
from kopt.cluster.resources import KUEUE_WORKLOADS, Object
from kopt.controllers.preemption.deciding import LAPSED, Deciding, Judged, is_lapsed, is_under_way
from kopt.controllers.preemption.given import Cluster, ControllerSettings, Tell, Writer
from kopt.controllers.preemption.marks import (
    advised,
    asked,
    covered,
    held,
    released,
    stamp,
    told,
    untold,
    verdict_of,
    word,
)
from kopt.controllers.preemption.passes import SOON_S, Passes
from kopt.controllers.preemption.scene import Facts, to_cover
from kopt.controllers.preemption.statuses import grounds
from kopt.controllers.preemption.views import HOLDER, MINE, WorkloadView
from kopt.core.decision import Mode
from kopt.core.saving import SaveRequest
from kopt.policies.preemption import PreemptionDecision, Verdict

_LOG = logging.getLogger(__name__)
DECISIONS = logging.getLogger("kopt.decisions")
_IDLE_S, _NEW_S = 30.0, 30.0
_OWN_RULES = "Kueue did not make room by the chosen alone; it goes by its own rules."


class Reconciler(Passes):
    """``step`` does what there is to do and says in how many seconds to look again, should nothing change before."""

    def __init__(self, cluster: Cluster, writer: Writer, settings: ControllerSettings, tell: Tell,
                 clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._cluster, self._writer, self._settings, self._tell, self._clock = cluster, writer, settings, tell, clock
        self._deciding = Deciding(cluster, settings)
        self._said: dict[str, str] = {}

    async def _step(self) -> float:
        now_s = self._clock()
        again_s = [await self._tried(self._lapse(view, now_s)) for view in self._cluster.workloads()]
        again_s += [await self._tried(work(now_s)) for work in (self._take_back, self._take_notices_back, self._learn)]
        self._forget()
        for view in sorted(self._cluster.workloads(), key=lambda one: (-one.priority, one.created_s, one.key)):
            if view.held:
                again_s.append(await self._heard(view))
            elif is_under_way(view, now_s, self._settings.cover_s):
                again_s.append(await self._tried(self._keep(view, now_s)))
            elif now_s - view.created_s < _NEW_S and view.verdict is None and view.uid not in self._said:
                again_s.append(await self._tried(self._advise(view, now_s)))
        return min([_IDLE_S, *again_s])

    async def _learn(self, now_s: float) -> float:
        self._deciding.learn(now_s)
        return _IDLE_S

    async def _lapse(self, view: WorkloadView, now_s: float) -> float:
        """Covers that have ended for one that still waits: Kueue looks at it again once it has left and come back."""
        verdict = view.verdict
        if verdict is None or not verdict.until_s or not view.pending or not view.active or is_lapsed(view):
            return _IDLE_S
        if is_under_way(view, now_s, self._settings.cover_s):
            return verdict.until_s - now_s
        if any(one.leaving and one.name in verdict.victims for one in self._cluster.workloads()):
            # Their pods take their time to end; leaving the queue now would leave their room to others.
            return _IDLE_S
        if not view.holder and any(one.cover and one.cover.for_uid == view.uid for one in self._cluster.workloads()):
            lapsed = word(LAPSED, now_s, "LAPSED", _OWN_RULES)
            await self._writer.patch(view, held({"active": True}, lapsed))
        return _IDLE_S

    def _waiting(self, now_s: float) -> set[str]:
        """Uids and names of those for whom somebody may be covered or told to go."""
        return {key for one in self._cluster.workloads()
                if one.pending and (_is_heard(one) or is_under_way(one, now_s, self._settings.cover_s))
                for key in (one.uid, one.name)}  # fmt: skip

    async def _take_back(self, now_s: float) -> float:
        """Covers and marks whose reason is gone."""
        waiting, changes = self._waiting(now_s), list[tuple[WorkloadView, Object]]()
        for view in self._cluster.workloads():
            stray = view.holder == HOLDER and not view.cover and view.active
            if stray or (view.cover and not (view.running and view.cover.for_uid in waiting)):
                changes.append((view, release(KUEUE_WORKLOADS, view.document)))
        await self._writer.patch_all(changes)
        return _IDLE_S

    async def _take_notices_back(self, now_s: float) -> float:
        waiting = self._waiting(now_s)
        await self._writer.patch_all([(view, untold()) for view in self._cluster.workloads() if view.evicting
                                      and view.running and view.evicting.waiting not in waiting])  # fmt: skip
        return _IDLE_S

    async def _heard(self, view: WorkloadView) -> float:
        """Whatever goes wrong with it, nobody waits much longer than the budget."""
        before = self.troubles
        again_s = await self._tried(self._hear(view))
        if self.troubles == before or self._clock() < self._ends_s(view):
            return again_s
        overdue = word("leave", self._clock(), "OVERDUE", "Nobody could be chosen within the budget; Kueue goes by its "
                       "own rules.")  # fmt: skip
        return await self._tried(self._release(view, overdue))

    async def _hear(self, view: WorkloadView) -> float:
        """A held Workload: let it go, choose for it, or have it wait."""
        now_s = self._clock()
        if is_lapsed(view):
            return await self._let_go(view, word(LAPSED, now_s, "LAPSED", _OWN_RULES))
        # A large search must not hold up the Lease and the reviews.
        judged = await asyncio.to_thread(self._deciding.judge, view, now_s)
        if judged.decision is None:
            return await self._let_go(view, word("leave", now_s, judged.reason.code, judged.reason.message))
        self._say(view, judged.decision, Mode.ENFORCE)
        ends_s = self._ends_s(view)
        if judged.decision.verdict is Verdict.WAIT and now_s < ends_s:
            await self._mark(view, [], (), now_s)
            await self._ask(view, judged, judged.decision)
            until_s = min(judged.decision.until_s or now_s, ends_s)
            return max(SOON_S, until_s - now_s)
        if judged.decision.verdict is Verdict.PREEMPT:
            return await self._choose(view, judged, judged.decision)
        return await self._leave(view, judged, judged.decision)

    async def _ask(self, view: WorkloadView, judged: Judged, decision: PreemptionDecision) -> None:
        """Those whom the plan counts on write a checkpoint now; the pods of a gang are all asked the same."""
        facts, ends_s = judged.facts, view.came_s + self._settings.budget_s
        for one in [one for one in facts.workloads if one.name in decision.asks]:
            saving = facts.saving(one)
            why = f"{one.name} is to make room for {view.name}."
            wanted = saving.request or SaveRequest.of(MINE, why, self._clock(), ends_s, view.name)
            for pod in saving.left:
                await self._writer.ask(pod, asked(wanted))
            self._tell(one, "SaveRequested", why)

    async def _choose(self, view: WorkloadView, judged: Judged, decision: PreemptionDecision) -> float:
        """Write down what was decided, cover the others, tell the chosen, let Kueue choose."""
        now_s, victims = judged.facts.now_s, judged.victims
        uids = {one.uid for one in victims}
        models = {_grounds(judged.facts, one)["model"] for one in victims}
        if view.verdict is None or view.verdict.victims != decision.victims:
            await self._writer.patch(self._newest(view), advised(verdict_of(decision, now_s, 0.0, models)))
        await self._mark(view, to_cover(view, judged.facts, uids), uids, now_s)
        for victim in victims:
            why, more = _why(victim, decision), _grounds(judged.facts, victim)
            await self._writer.patch(self._newest(victim), told(view.name, now_s, why, more))
        # It may have another priority by now.
        if not self._may_go(self._newest(view), victims, uids):
            return SOON_S
        await self._release(view, verdict_of(decision, now_s, now_s + self._settings.cover_s, models))
        self._deciding.applied(judged)
        self._tell(view, "PreemptionChosen", decision.reasons[0].message)
        for victim in victims:
            self._tell(victim, "Preempting", _why(victim, decision))
        return self._settings.cover_s

    def _may_go(self, view: WorkloadView, victims: list[WorkloadView], uids: Collection[str]) -> bool:
        """The last look: the chosen are safe still, and nobody came who is not covered."""
        now_s = self._clock()
        open_to_it = to_cover(view, self._deciding.facts(view, now_s), uids)
        return self._deciding.still_safe(victims, now_s) and all(one.is_covered_from(view) for one in open_to_it)

    async def _keep(self, view: WorkloadView, now_s: float) -> float:
        """It was let go and Kueue has not looked yet: who came since is covered, and who of the chosen is not safe any
        more. Then it is decided again; Kueue would not look again by itself at one for which it has found nobody."""
        verdict, facts = view.verdict, self._deciding.facts(view, now_s)
        if verdict is None or not verdict.victims:
            return _IDLE_S
        chosen = [one for one in facts.workloads if one.running and one.name in verdict.victims]
        safe = {one.uid for one in chosen if self._deciding.still_safe([one], now_s)}
        await self._mark(view, to_cover(view, facts, safe), {one.uid for one in chosen}, now_s)
        if len(safe) < len(chosen) == len(verdict.victims):
            undo = {"active": True, "since": stamp(view.came_s)}
            await self._writer.patch(self._newest(view), held(undo))
            return SOON_S
        return _IDLE_S

    async def _leave(self, view: WorkloadView, judged: Judged, decision: PreemptionDecision) -> float:
        """Kueue goes by its own rules; who is in a write is kept from them a while longer."""
        now_s = judged.facts.now_s
        guarded = self._deciding.guarded(view, judged.facts)
        await self._mark(view, guarded, (), now_s)
        until_s = now_s + self._settings.cover_s if guarded else 0.0
        await self._release(view, verdict_of(decision, now_s, until_s, ()))
        self._tell(view, "PreemptionLeft", decision.reasons[0].message)
        return SOON_S

    async def _let_go(self, view: WorkloadView, verdict: Mapping[str, Any]) -> float:
        """Without a decision of ours: nobody stays covered for it."""
        await self._mark(view, [], (), self._clock())
        await self._release(view, verdict)
        self._tell(view, "PreemptionLeft", str(verdict["reason"]))
        return SOON_S

    async def _release(self, view: WorkloadView, verdict: Mapping[str, Any]) -> float:
        since = {} if view.let_go_s is None else {"since": stamp(view.let_go_s)}
        await self._writer.patch(self._newest(view), released({**verdict, **since}))
        return SOON_S

    def _ends_s(self, view: WorkloadView) -> float:
        return view.came_s + self._settings.budget_s + self._settings.overdue_s

    async def _mark(self, waiting: WorkloadView, wanted: Iterable[WorkloadView], chosen: Collection[str],
                    now_s: float) -> None:  # fmt: skip
        """Exactly the wanted are covered for one that waits, and nobody but the chosen is told to go."""
        uids, until_s = {one.uid for one in wanted}, now_s + self._settings.cover_s
        changes: list[tuple[WorkloadView, Object]] = []
        for view in self._cluster.workloads():
            ours = view.cover is not None and view.cover.for_uid == waiting.uid
            if view.uid in uids and not view.is_covered_from(waiting):
                changes.append((view, covered(view, waiting, until_s)))
            elif ours and view.uid not in uids:
                changes.append((view, release(KUEUE_WORKLOADS, view.document)))
        await self._writer.patch_all(changes)
        for view in self._cluster.workloads():
            notice = view.evicting is not None and view.evicting.waiting == waiting.name
            if notice and view.running and view.uid not in chosen:
                await self._writer.patch(view, untold())

    async def _advise(self, view: WorkloadView, now_s: float) -> float:
        """A new Workload that is not held: whom Kueue takes by itself, and who would lose least."""
        mode = self._deciding.mode_of(view)
        taken = None if mode is Mode.ENFORCE else self._deciding.did_preempt(view, now_s)
        judged = None if taken is None else self._deciding.judge(view, now_s, mode)
        if judged is None or judged.decision is None:
            return _IDLE_S
        # Before it counts as said: Kueue writes the same Workload just now, and what meets that is tried again.
        if mode is Mode.ANNOTATE:
            models = {_grounds(judged.facts, one)["model"] for one in judged.victims}
            verdict = verdict_of(judged.decision, now_s, 0.0, models) | {"verdict": "advice", "native": taken}
            await self._writer.patch(view, advised(verdict))
        self._say(view, judged.decision, mode)
        text = f"Kueue takes {', '.join(taken)} by its own rule. " if taken else ""
        self._tell(view, "PreemptionAdvised", f"{text}{judged.reason.message}")
        return _IDLE_S

    def _say(self, view: WorkloadView, decision: PreemptionDecision, mode: Mode) -> None:
        """Once for each verdict and reason, not at every look."""
        said = f"{decision.verdict} {decision.reasons[0].code} {decision.victims}"
        if self._said.get(view.uid) == said:
            return
        self._said[view.uid] = said
        about = {**decision.as_decision(mode).to_dict(), **decision.to_dict(), "waiting": view.name}
        DECISIONS.info("Workload %s", view.name, extra={"decision": about})
        if decision.verdict is Verdict.WAIT and mode is Mode.ENFORCE:
            self._tell(view, "PreemptionWaits", decision.reasons[0].message)

    def _newest(self, view: WorkloadView) -> WorkloadView:
        """As it is now; another one of the same name is not it."""
        found = self._cluster.workload(view.key)
        return found if found is not None and found.uid == view.uid else view

    def _forget(self) -> None:
        there = {one.uid for one in self._cluster.workloads()}
        self._said = {uid: said for uid, said in self._said.items() if uid in there}


def _is_heard(view: WorkloadView) -> bool:
    return view.held and not is_lapsed(view)


def _why(victim: WorkloadView, decision: PreemptionDecision) -> str:
    note = next(one for one in decision.notes if one.gang == victim.name)
    return f"{note.reason.message} {decision.reasons[0].message}"


def _grounds(facts: Facts, victim: WorkloadView) -> dict[str, str]:
    return grounds(one.notes for one in facts.pods.get(victim.uid, ()))
