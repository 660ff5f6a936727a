"""Changes the width of one elastic job at a moment that is safe, and watches its throughput for each GPU.

Workers start their work again from the last checkpoint: steps count once the job is back at the step that it had.
"""

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.rightsize.apply import NO_INTERVAL, ApplySettings, Say, Watching
from kopt.cli.rightsize.steps import Steps
from kopt.cli.rightsize.widths import WidthCandidate, status_of
from kopt.cluster.workloads.resizing.width import ResizedWidth
from kopt.core.reason import Reason
from kopt.policies.rightsizing.step_times import StepTime, longest_gap_s
from kopt.policies.rightsizing.watch import Action, Decision
from kopt.policies.rightsizing.width import for_each_sample, watch_settings

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object


@dataclass(frozen=True)
class WidthApplySettings:
    """Times in seconds. ``apply.accept_s`` is for all workers to run."""

    apply: ApplySettings = field(default_factory=lambda: ApplySettings(accept_s=300.0))
    least_back_s: float = 300.0
    """To be back at the step that the job had: this, or twice what starting again was said to cost."""
    settle_s: float = 60.0
    """Without a sign that workers start again for so long, they do not."""


async def apply_width(kube: "Kube", candidate: WidthCandidate, settings: WidthApplySettings, say: Say) -> Decision:
    """Raises Refused where nothing was changed, and where a change could not be taken back."""
    proposal, job = candidate.proposal, candidate.job
    assert proposal is not None
    assert job is not None
    watch = watch_settings(proposal.change, proposal.allowed, settings.apply.watch)
    own = ApplySettings(watch, settings.apply.accept_s, settings.apply.poll_s, settings.apply.undo_s)
    resized = ResizedWidth(kube, job, proposal.change, time.time)
    back_s = max(settings.least_back_s, 2 * proposal.rest.restart_s)
    say(f"{proposal.change.text}: {proposal.reason.message}")
    container = candidate.workload.log_container
    async with Steps(kube, container, time.time() - watch.baseline_s, watch.sample_s) as steps:
        steps.follow(candidate.pods)
        return await _WidthWatching(
            kube, candidate.workload.reference, resized, steps, own, say, back_s, settings.settle_s
        ).run()


class _WidthWatching(Watching):
    def __init__(
        self,
        kube: "Kube",
        reference: "Object",
        resized: ResizedWidth,
        steps: Steps,
        settings: ApplySettings,
        say: Say,
        back_s: float,
        settle_s: float,
    ) -> None:
        super().__init__(kube, reference, resized, steps, settings, say, grows=True)
        self._job, self._change, self._back_s, self._settle_s = resized, resized.resize, back_s, settle_s

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
        return await super()._changed()

    def _refusal(self, why: str) -> Reason:
        return Reason("WORKERS_DO_NOT_START", f"Its workers do not all run: {why}.")

    async def _prepared(self) -> Decision | None:
        """Until the job has started again and done the step that it had, within its bound."""
        before = self._steps.last
        assert before is not None
        began_s = time.time()
        usual_s = longest_gap_s(self._steps.times) * self._settings.watch.stalled_after
        while True:
            pods = await self._job.read()
            if (over := await self._over(pods)) is not None:
                return over
            self._steps.follow(pods)
            self._steps.annotated(pods)
            now_s, last = time.time(), self._steps.last
            again_s = self._steps.again_s(self._applied_s, usual_s)
            # Workers of before go on until they notice; a program that need not start again is there at once.
            since_s = again_s if again_s is not None else began_s + self._settle_s
            if last is not None and last.step >= before.step and last.at_s >= since_s:
                self._count_restarts(pods)
                return None
            if now_s - self._applied_s >= self._back_s:
                text = f"It is not back at step {before.step} within {self._back_s:.0f} s of its change."
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
