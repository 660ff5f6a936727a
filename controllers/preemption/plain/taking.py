"""One pass over plain pods, from what stands on them: nothing that matters is only in memory.

The chosen are told (``kaiwo.ai/evicting`` on every pod), the room is promised to those that wait, and after a last look
the gang is evicted as one. Whoever was told is still to go at the next pass, by whomever; one that began to write
meanwhile, or for which nobody waits any more, is told that it may stay, unless a pod of it is on its way out already.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kopt.cluster.api import ApiError, Conflict, NotFound
from kopt.controllers.preemption.given import ControllerSettings
from kopt.controllers.preemption.marks import advised, asked, told, untold, verdict_of
from kopt.controllers.preemption.passes import SOON_S, Passes
from kopt.controllers.preemption.plain.given import PlainCluster, PlainWriter, Tell
from kopt.controllers.preemption.plain.memory import SEEN_S, learned
from kopt.controllers.preemption.plain.notices import grounds_of, is_safe, notice_of, reference, saving_of, told_for
from kopt.controllers.preemption.plain.room import Gang, Moment, gang_of, placed, refusal, scene_of
from kopt.controllers.preemption.plain.views import PlainPod
from kopt.controllers.preemption.views import MINE
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.saving import SaveRequest
from kopt.policies.preemption import PreemptionDecision, PreemptionSettings, PreemptionState, Verdict, decide

_LOG = logging.getLogger(__name__)
_IDLE_S = 30.0
_GROWS_S = 1.0
"""More pods of a gang may come so long after the last."""


class PlainTaking(Passes):
    """``step`` does what there is to do and says in how many seconds to look again, should nothing change before."""

    def __init__(self, cluster: PlainCluster, writer: PlainWriter, settings: ControllerSettings, tell: Tell,
                 clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._cluster, self._writer, self._settings, self._tell, self._clock = cluster, writer, settings, tell, clock
        self._state = PreemptionState()
        self._said: dict[str, str] = {}
        self._stays: dict[str, float] = {}
        self._later: dict[str, float] = {}
        self._taken_at_s = float("-inf")

    async def _step(self) -> float:
        now_s = self._clock()
        moment = self._cluster.moment(now_s)
        waiting = {one.name: one for one in moment.waiting()}
        self._forget(waiting, now_s)
        self._state = learned(self._state, moment, waiting)
        again_s, under_way = [_IDLE_S], True

        async def go_on() -> float:
            nonlocal under_way
            if any([await self._tell_the_rest(one, moment) for one in waiting.values()]):
                return 0.0
            under_way = await self._finish(waiting, moment) or self._is_under_way(moment)
            return _IDLE_S

        again_s.append(await self._tried(go_on()))
        for one in waiting.values():
            if reason := self._refusal(one, moment):
                again_s.append(await self._tried(self._left(one, reason)))
            # Room is made for one at a time: what is freed for it is not counted for the next.
            elif not under_way and self._later.get(one.name, now_s) <= now_s:
                troubles, broken_off = self.troubles, self.broken_off
                again_s.append(await self._tried(self._hear(one, moment)))
                under_way = self.broken_off > broken_off or self._clock() < self._taken_at_s + SOON_S
                if self.troubles > troubles:
                    # Others have their turn before it is tried again.
                    self._later[one.name] = now_s + _IDLE_S
        return min(again_s)

    async def _finish(self, waiting: dict[str, Gang], moment: Moment) -> bool:
        """What was begun: those that were told go or stay, and whose room is made waits no more. Whether there was."""
        leaving: dict[str, list[Gang]] = defaultdict(list)
        stays = set()
        for gang in moment.gangs():
            if whom := told_for(gang):
                goes = await self._go_on(gang, self._is_awaited(waiting.get(whom), moment), moment)
                if goes is not None:
                    leaving[whom].append(gang)
                if not goes:
                    stays.add(whom)
        made = [one for name, gangs in leaving.items() if name not in stays
                if (one := waiting.get(name)) and placed(one, moment, gangs)]  # fmt: skip
        if not leaving:
            made = [one for one in waiting.values() if self._was_made(one, moment)][:1]
        for one in made:
            await self._room_is_made(waiting.pop(one.name))
        return bool(leaving or made)

    @property
    def _policy(self) -> PreemptionSettings:
        """kube-scheduler takes nobody for them, so that there is nobody to leave it to."""
        return replace(self._settings.policy, stands_aside=False)

    def _refusal(self, waiting: Gang, moment: Moment) -> Reason | None:
        """Why it is not ours to choose for it; None where it is."""
        if self._mode(waiting) is not Mode.ENFORCE:
            return Reason("MODE", f"The mode for {waiting.name} is not enforce.")
        return refusal(waiting)

    def _is_under_way(self, moment: Moment) -> bool:
        """Room was made for somebody who does not have it yet."""
        return False

    def _was_made(self, waiting: Gang, moment: Moment) -> bool:
        """Those who led before us made room for it and did not come to say so."""
        return False

    async def _promise(self, pod: PlainPod, node: str) -> None:
        await self._writer.promise(pod, node)

    async def _room_is_made(self, waiting: Gang) -> None:
        """All that were told for it are on their way out."""

    async def _left(self, waiting: Gang, reason: Reason) -> float:
        """Nobody is chosen for it."""
        return _IDLE_S

    def _is_awaited(self, waiting: Gang | None, moment: Moment) -> bool:
        """Somebody waits still, may be acted for, and has no room."""
        return waiting is not None and self._mode(waiting) is Mode.ENFORCE and placed(waiting, moment, ()) is None

    def _forget(self, waiting: Collection[str], now_s: float) -> None:
        """What was said of those that wait no more, and who could not be evicted once."""
        self._said = {name: said for name, said in self._said.items() if name in waiting}
        self._stays = {name: until_s for name, until_s in self._stays.items() if until_s >= now_s}
        self._later = {name: until_s for name, until_s in self._later.items() if until_s >= now_s}

    async def _tell_the_rest(self, waiting: Gang, moment: Moment) -> bool:
        """Of several chosen only some were told when somebody died: the others are now, where that is safe still."""
        verdict = waiting.pods[0].verdict
        if verdict is None or not SEEN_S <= moment.now_s - verdict.at_s < self._policy.settle_s:
            return False
        there = [one for one in moment.gangs() if one.name in verdict.victims
                 and moment.may_take(one, waiting) and gang_of(one, moment).started_at_s <= verdict.at_s]  # fmt: skip
        rest = [one for one in there if not told_for(one)]
        if not rest or len(rest) == len(verdict.victims):
            return False
        if not all(is_safe(gang, moment) for gang in rest):
            return False
        for gang in rest:
            for pod in gang.pods:
                await self._writer.patch(pod, told(waiting.name, moment.now_s, "As the others.", notice_of(gang)))
        return True

    async def _hear(self, waiting: Gang, moment: Moment) -> float:
        if (grows_s := waiting.complete_s + _GROWS_S - moment.now_s) > 0:
            return grows_s
        if saving := [one for one in moment.gangs() if saving_of(one, waiting, moment).is_for(waiting.name)]:
            await self._ask(waiting, saving, moment)
            return SOON_S
        scene = scene_of(waiting, moment, self._settings.budget_s)
        scene = replace(scene, gangs=tuple(one for one in scene.gangs if self._stays.get(one.name, 0.0) < moment.now_s))
        decision, state = await asyncio.to_thread(decide, scene, self._state, self._policy)
        self._say(waiting, decision)
        chosen = [one for one in moment.gangs() if one.name in decision.victims and moment.may_take(one, waiting)]
        await self._ask(waiting, [one for one in moment.gangs() if one.name in decision.asks], moment)
        if decision.verdict is Verdict.PREEMPT:
            where = placed(waiting, moment, chosen)
            if where is None:
                text = f"{', '.join(decision.victims)} would free GPUs, but {waiting.name} lacks other resources there."
                reason = Reason("OTHER_RESOURCES", text)
                self._once(waiting, reason)
                await self._left(waiting, reason)
            elif await self._take(waiting, chosen, decision, where, moment):
                self._state, self._taken_at_s = state, self._clock()
                return 0.0
        elif decision.verdict in (Verdict.LEAVE, Verdict.FITS):
            await self._left(waiting, decision.reasons[0])
        until_s = decision.until_s or moment.now_s + _IDLE_S
        return max(SOON_S, until_s - moment.now_s)

    async def _take(self, waiting: Gang, chosen: Sequence[Gang], decision: PreemptionDecision,
                    where: Mapping[tuple[str, str], str], moment: Moment) -> bool:  # fmt: skip
        """Tell and promise; the next pass, which sees that, evicts. False where an eviction would be refused."""
        for gang in chosen:
            if why := await self._refused(gang):
                self._stays[gang.name] = moment.now_s + self._settings.policy.hold_s
                self._once(waiting, Reason("REFUSED", f"{gang.name} cannot be evicted: {why}"))
                return False
        verdict = verdict_of(decision, moment.now_s, 0.0, {grounds_of(one)["model"] for one in chosen})
        for pod in waiting.pods:
            await self._writer.patch(pod, advised(verdict))
            await self._promise(pod, where[pod.key])
        for gang in chosen:
            why = f"{gang.name} makes room for {waiting.name}. {decision.reasons[0].message}"
            for pod in gang.pods:
                await self._writer.patch(pod, told(waiting.name, moment.now_s, why, notice_of(gang)))
            self._tell(reference(gang.pods[0]), "Preempting", why)
        self._tell(reference(waiting.pods[0]), "PreemptionChosen", decision.reasons[0].message)
        return True

    async def _refused(self, gang: Gang) -> str:
        """Why a gang cannot go, or would not come again; empty where it may."""
        if not await self._writer.outlives(gang):
            return "its Job would have failed too often to start again (backoffLimit, podFailurePolicy)"
        try:
            await asyncio.gather(*(self._writer.evict(pod, dry_run=True) for pod in gang.pods))
        except (Conflict, NotFound):
            raise
        except ApiError as error:
            return str(error)
        return ""

    async def _go_on(self, gang: Gang, awaited: bool, moment: Moment) -> bool | None:
        """A gang that was told: evict what is left of it, or let it stay. True where all of it goes, None where that is
        refused."""
        notice = next(one.evicting for one in gang.pods if one.evicting)
        # Successors of those that are gone already are not meant.
        meant = [one for one in gang.pods if one.evicting or (one.started_s or moment.now_s) <= notice.at_s]
        left = [one for one in meant if not one.going]
        broken = len(left) < notice.pods
        safe = is_safe(gang, moment)
        if broken or (awaited and safe and all(one.evicting for one in left)):
            return await self._evict(gang, left, moment, whole=not broken)
        for one in left:
            if awaited and safe and not one.evicting:
                # Somebody died while telling them.
                await self._writer.patch(
                    one, told(notice.waiting, notice.at_s, "As the others.", {**grounds_of(gang), "pods": notice.pods})
                )
            elif one.evicting and not (awaited and safe):
                await self._writer.patch(one, untold())
        return False

    async def _evict(self, gang: Gang, left: Sequence[PlainPod], moment: Moment, *, whole: bool) -> bool | None:
        try:
            for one in left[:1]:
                await self._writer.evict(one)
            whole = False
            await asyncio.gather(*(self._writer.evict(one) for one in left[1:]))
        except (Conflict, NotFound):
            raise
        except ApiError as error:
            _LOG.warning("%s cannot be evicted: %s", gang.name, error)
            self._stays[gang.name] = moment.now_s + self._settings.policy.hold_s
            for one in left if whole else ():
                await self._writer.patch(one, untold())
            return None
        return True

    async def _ask(self, waiting: Gang, gangs: Sequence[Gang], moment: Moment) -> None:
        for gang in gangs:
            saving = saving_of(gang, waiting, moment)
            why = f"{gang.name} is to make room for {waiting.name}."
            ends_s = waiting.created_s + self._settings.budget_s
            wanted = saving.request or SaveRequest.of(MINE, why, self._clock(), ends_s, waiting.name)
            uids = {one.uid for one in saving.left}
            for pod in [one for one in gang.pods if one.view.uid in uids]:
                await self._writer.patch(pod, asked(wanted))
            if uids:
                self._tell(reference(gang.pods[0]), "SaveRequested", why)

    def _mode(self, waiting: Gang) -> Mode:
        said = self._cluster.mode(waiting.pods[0])
        return Mode(said) if said in tuple(Mode) else self._settings.mode

    def _say(self, waiting: Gang, decision: PreemptionDecision) -> None:
        if decision.verdict in (Verdict.WAIT, Verdict.LEAVE):
            self._once(waiting, decision.reasons[0])

    def _once(self, waiting: Gang, reason: Reason) -> None:
        if self._said.get(waiting.name) != reason.code:
            self._said[waiting.name] = reason.code
            self._tell(reference(waiting.pods[0]), "PreemptionWaits", reason.message)
