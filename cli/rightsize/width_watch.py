"""Changes the width of one elastic job at a moment that is safe, and watches its throughput for each GPU.

Workers start their work again from the last checkpoint: steps count once the job is back at the step that it had.
"""

import asyncio
import math
import statistics
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.rightsize.apply import NO_INTERVAL, ApplySettings, Say, Watching, restored
from kopt.cli.rightsize.steps import Steps
from kopt.cli.rightsize.widths import WidthCandidate, against, against_wider
from kopt.cluster.checkpoints.safe_moment import status_of, until_safe
from kopt.cluster.workloads.resizing.elastic import worker_index
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.reason import Reason
from kopt.core.workload.checkpoint import JobState
from kopt.policies.rightsizing.step_times import StepTime, longest_gap_s
from kopt.policies.rightsizing.watch import Action, Decision
from kopt.policies.rightsizing.width import for_each_sample, watch_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object


_MOST_FOLLOWED = 4
_BROKEN = ("RESTARTED", "STEPS_STALLED", "PROGRESS_LOST", "WORKERS_DO_NOT_START")
"""What a job does not get over by itself."""


@dataclass(frozen=True)
class WidthApplySettings:
    """Times in seconds. ``apply.accept_s`` is for all workers to run."""

    apply: ApplySettings = field(default_factory=lambda: ApplySettings(accept_s=300.0))
    least_back_s: float = 300.0
    """To be back at the step that the job had: this, or twice what starting again was said to cost."""
    settle_s: float = 60.0
    """Without a sign for so long that the workers of a narrower job start again, they do not."""
    safe_s: float = 120.0
    """For a safe moment before a width is taken back; then it is at any."""


async def apply_width(kube: "Kube", candidate: WidthCandidate, settings: WidthApplySettings, say: Say) -> Decision:
    """Raises Refused where nothing was changed, and where a change could not be taken back."""
    proposal, job = candidate.proposal, candidate.job
    assert proposal is not None
    assert job is not None
    for_others = proposal.for_others
    watch = watch_settings(proposal.change, proposal.allowed, settings.apply.watch, for_others=for_others)
    resized = ResizedWidth(kube, job, proposal.change, time.time, why_not=lambda: against(kube, candidate))
    own = replace(
        settings,
        apply=replace(settings.apply, watch=watch),
        least_back_s=max(settings.least_back_s, 2 * proposal.rest.restart_s),
    )
    say(f"{proposal.change.text}: {proposal.reason.message}")
    container = candidate.workload.log_container
    async with Steps(kube, container, time.time() - watch.baseline_s, watch.sample_s) as steps:
        steps.follow(showing(candidate.pods))
        return await _WidthWatching(kube, candidate, resized, steps, own, say).run()


def showing(pods: "Sequence[Object]") -> "list[Object]":
    """The few whose logs show the steps of all: those of the lowest ranks."""
    return sorted(pods, key=lambda pod: (worker_index(pod), pod["metadata"]["name"]))[:_MOST_FOLLOWED]


class _WidthWatching(Watching):
    def __init__(
        self,
        kube: "Kube",
        candidate: WidthCandidate,
        resized: ResizedWidth,
        steps: Steps,
        settings: WidthApplySettings,
        say: Say,
    ) -> None:
        super().__init__(kube, candidate.workload.reference, resized, steps, settings.apply, say, grows=True)
        self._kube, self._candidate, self._job, self._change = kube, candidate, resized, resized.resize
        self._times_s, self._before = settings, steps.last

    def _unsafe(self, pods: "list[Object]") -> str:
        """Only a moment that the log agent calls safe will do: what was done since the last checkpoint is lost."""
        status = status_of(pods, time.time())
        if status is None:
            return "nothing tells when it is safe to start its workers again: deploy the log agent (kopt logtail)"
        return "" if status.safe else f"it is not safe to start its workers again ({status.state.lower()})"

    async def _changed(self) -> Decision:
        pods = await self._job.read()
        if why := self._unsafe(pods):
            return Decision(Action.UNDO, Reason("MOMENT_PASSED", f"It was not begun: {why}."), NO_INTERVAL)
        self._before = self._steps.last
        return await super()._changed()

    def _refusal(self, why: str) -> Reason:
        return Reason("WORKERS_DO_NOT_START", f"Its workers do not all run: {why}.")

    async def _prepared(self) -> Decision | None:
        """Until the job has started again and done the step that it had, within its bound."""
        before, began_s, back_s = self._before, time.time(), self._times_s.least_back_s
        assert before is not None
        # A job that goes on beside a worker that waits for it for ever looks the same, but for its start.
        settled_s = math.inf if self._change.after > self._change.before else began_s + self._times_s.settle_s
        usual_s = longest_gap_s(self._steps.times) * self._settings.watch.stalled_after
        while True:
            pods = await self._job.read()
            if (over := await self._over(pods)) is not None:
                return over
            self._steps.follow(showing(pods))
            self._steps.annotated(pods)
            now_s, last = time.time(), self._steps.last
            again_s = self._steps.again_s(self._applied_s, usual_s)
            # Workers of before go on until they notice; a program that need not start again is there at once.
            since_s = again_s if again_s is not None else settled_s
            is_there = last is not None and last.step >= before.step
            if last is not None and is_there and last.at_s >= since_s:
                self._count_restarts(pods)
                return None
            if now_s - began_s >= back_s:
                if last is not None and is_there and last.at_s > began_s:
                    text = (
                        f"It went on for {back_s:.0f} s without starting again: nothing shows that the worker joined."
                    )
                    return Decision(Action.UNDO, Reason("WORKER_NOT_JOINED", text), NO_INTERVAL)
                text = f"It is not back at step {before.step} within {back_s:.0f} s of all workers' start."
                return Decision(Action.UNDO, Reason("PROGRESS_LOST", text), NO_INTERVAL)
            await asyncio.sleep(self._settings.poll_s)

    async def _over(self, pods: "list[Object]") -> Decision | None:
        document = await self._job.document()
        if document is None:
            return await super()._over([])
        width = await self._job.width()
        if width != self._change.after:
            text = f"Others have set its width to {width}: it is left to them."
            return Decision(Action.UNDO, Reason("CHANGED_BY_OTHERS", text), NO_INTERVAL)
        return None

    async def _decided(self) -> Decision:
        decision = await super()._decided()
        before = [each.seconds for each in self._steps.times if each.end_s <= self._applied_s]
        after = [each.seconds for each in self._steps.times if each.start_s >= self._effective_s]
        if before and after:
            self._job.step_seconds = statistics.median(before), statistics.median(after)
        return decision

    async def _undo(self, decision: Decision) -> Decision:
        """At a safe moment, if one comes soon. GPUs that were given to others are not taken back from them."""
        if not self._job.is_begun:
            await restored(self._job, decision.reason.message, self._settings.undo_s, self._say)
            return decision
        if decision.reason.code == "CHANGED_BY_OTHERS":
            return await super()._undo(decision)
        proposal = self._candidate.proposal
        if proposal is not None and proposal.for_others and (why := await self._given_away()):
            reason = Reason("GAVE_WAY", f"{decision.reason.message} It is not widened again: {why}")
            stays = replace(decision, action=Action.KEEP, reason=reason)
            self._say(reason.message)
            await self._keep(stays)
            return stays
        await self._until_safe(is_broken=decision.reason.code in _BROKEN)
        return await super()._undo(decision)

    async def _given_away(self) -> str:
        """Why GPUs that were given to others stay theirs; empty where none needs them."""
        from kopt.cluster.client.api import ApiError

        assert self._candidate.job is not None
        try:
            why = await against_wider(self._kube, self._candidate.pods, self._candidate.job)
        except ApiError as error:
            return f"nothing tells whether workloads are pending ({error})."
        return "" if why is None else why.message

    async def _until_safe(self, *, is_broken: bool) -> None:
        """Waits for one, for a while: putting the width back starts workers again. For a job that is broken only until
        a checkpoint is written; without a word of the log agent's, not at all."""
        bound_s = self._times_s.safe_s
        await until_safe(
            self._job.read,
            bound_s,
            self._settings.poll_s,
            suffices=lambda status: status.safe or (is_broken and status.state is not JobState.CKPT_WRITING),
            say=lambda: self._say(f"waiting for a safe moment to take it back, for {bound_s:.0f} s at most"),
        )

    def _times(self) -> list[StepTime]:
        return for_each_sample(self._steps.times, self._applied_s, self._change)


def select_width(candidates: "list[WidthCandidate]", workload: str) -> WidthCandidate:
    """Raises Refused with the reason where there is no change."""
    if not candidates:
        raise Refused(f"no pod of a workload {workload} with GPUs runs there; `kopt rightsize plan` lists them")
    result = candidates[0]
    if isinstance(result.result, Reason):
        raise Refused(f"the width is not changed: {result.result.message}")
    return result
