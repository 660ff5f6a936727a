"""Applies one change of one workload, watches its steps, and keeps the change or takes it back.

Whatever ends the watch before a decision (Ctrl-C, SIGTERM, an error) takes the change back, too. Only SIGKILL, or an
API server that stays away, leaves it: the annotation on the pods then says that it is open, and ``kopt rightsize undo``
takes it back.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from kopt.cli.errors import Refused
from kopt.cli.rightsize.steps import Steps
from kopt.cluster.workloads.resizing.pods import NotDone, ResizedPods
from kopt.core.reason import Reason
from kopt.core.workload.rightsizing import Change, Outcome
from kopt.policies.rightsizing.interval import Slowdown
from kopt.policies.rightsizing.step_times import StepTime
from kopt.policies.rightsizing.watch import (
    Action,
    Decision,
    Since,
    Watched,
    WatchSettings,
    evaluate,
    too_few_steps,
    watched,
)

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.client.resources import Object
    from kopt.controllers.rightsizing.candidates import Candidate

Say = Callable[[str], None]
_WRITING = "CKPT_WRITING"
NO_INTERVAL = Slowdown(-1.0, 0.0, float("inf"))


@dataclass(frozen=True)
class ApplySettings:
    """Times in seconds."""

    watch: WatchSettings = WatchSettings()
    accept_s: float = 60.0
    """For the kubelets to make the change."""
    poll_s: float = 10.0
    undo_s: float = 120.0
    """How long taking it back is tried again where the API server does not answer."""


class Resized(Protocol):
    """What is changed: the pods of a workload, or an elastic job."""

    @property
    def resize(self) -> Change: ...

    async def read(self) -> "list[Object]":
        """The pods that run."""

    async def check(self) -> None: ...

    async def open(self, at_s: float) -> None: ...

    async def apply(self) -> None: ...

    async def refusal(self, within_s: float) -> str: ...

    async def restore(self, reason: str) -> list[NotDone]: ...

    async def finish(self, outcome: Outcome, reason: str) -> None: ...

    def commands(self) -> list[str]: ...


async def apply(kube: "Kube", candidate: "Candidate", settings: ApplySettings, say: Say) -> Decision:
    """Raises Refused where nothing was changed, and where a change could not be taken back."""
    assert candidate.resize is not None
    pods = ResizedPods(kube, candidate.pods, candidate.resize, time.time)
    since_s = time.time() - settings.watch.baseline_s
    async with Steps(kube, candidate.log_container, since_s, settings.watch.sample_s) as steps:
        steps.follow(candidate.pods[:1])
        grows = candidate.resize.freed < 0
        return await Watching(kube, candidate.workload.reference, pods, steps, settings, say, grows=grows).run()


class Watching:
    """One change, from the steps before it to its end."""

    def __init__(
        self,
        kube: "Kube",
        reference: "Object",
        resized: Resized,
        steps: Steps,
        settings: ApplySettings,
        say: Say,
        *,
        grows: bool,
    ) -> None:
        """``reference``: of the workload, as events hold it. ``grows``: it is given more."""
        from kopt.cluster.runtime.events import EventRecorder

        self._reference, self._resized, self._steps = reference, resized, steps
        self._settings, self._say, self._resize, self._grows = settings, say, resized.resize, grows
        self._events = EventRecorder(kube, "kaiwo.ai/rightsize", socket.gethostname())
        self._applied_s = self._effective_s = 0.0
        self._restarts: dict[str, int] = {}

    async def run(self) -> Decision:
        from kopt.cluster.client.api import ApiError

        await self._baseline()
        try:
            await self._resized.check()
            self._applied_s = float(int(time.time()))
            await self._resized.open(self._applied_s)
        except ApiError as error:
            raise Refused(f"the API server does not take this change, and nothing was changed: {error}") from error
        decision = Decision(Action.UNDO, Reason("INTERRUPTED", "The watch was ended."), NO_INTERVAL)
        try:
            decision = await self._changed()
        except ApiError as error:
            decision = replace(decision, reason=Reason("INTERRUPTED", f"The watch failed: {error}"))
        finally:
            if decision.action is Action.KEEP:
                await self._keep(decision)
            else:
                # A task of its own: what cancels the watch does not cancel this.
                decision = await asyncio.shield(asyncio.create_task(self._undo(decision)))
        return decision

    async def _baseline(self) -> None:
        """Waits until enough is known of the steps before. Raises Refused where it never is."""
        watch = self._settings.watch
        until_s = time.time() + watch.baseline_s
        while True:
            pods = await self._resized.read()
            if not pods:
                raise Refused("no pod of the workload runs any more")
            self._steps.annotated(pods)
            why = too_few_steps([each.seconds for each in self._steps.times], watch)
            unsafe = self._unsafe(pods)
            if why is None and not unsafe:
                break
            if time.time() >= until_s:
                raise Refused(why.message if why else unsafe)
            if self._steps.caught_up and why:
                self._say(f"{len(self._steps.times)} of {watch.least_samples} observations of step times")
            await asyncio.sleep(self._settings.poll_s if self._steps.caught_up else 0.2)
        self._count_restarts(pods)

    def _count_restarts(self, pods: "list[Object]") -> None:
        """Those so far are not the change's."""
        from kopt.cluster.workloads.pod_resize import restarts_of

        self._restarts = {pod["metadata"]["name"]: restarts_of(pod) for pod in pods}

    def _unsafe(self, pods: "list[Object]") -> str:
        """Why nothing is changed now, though steps are known; empty where it may be."""
        from kopt.agents.logtail.annotator import STATE
        from kopt.cluster.objects.fields import text

        is_writing = any(text(pod, "metadata", "annotations", STATE) == _WRITING for pod in pods)
        return "a checkpoint is being written, for longer than usual" if is_writing else ""

    async def _changed(self) -> Decision:
        await self._resized.apply()
        self._event("ResizeApplied", f"{self._resize.text} and watched.")
        if why := await self._resized.refusal(self._settings.accept_s):
            return Decision(Action.UNDO, self._refusal(why), NO_INTERVAL)
        if (decision := await self._prepared()) is not None:
            return decision
        self._effective_s = time.time()
        self._say(f"{self._resize.text}; in effect after {self._effective_s - self._applied_s:.0f} s")
        return await self._decided()

    def _refusal(self, why: str) -> Reason:
        """Of a change that does not come into effect."""
        return Reason("KUBELET_REFUSES", f"The node refuses it: {why}.")

    async def _prepared(self) -> Decision | None:
        """Waits until steps can be compared, once the change is in effect; a decision where they never can."""
        return None

    async def _over(self, pods: "list[Object]") -> Decision | None:
        """A decision where nothing is left to be watched."""
        return None if pods else Decision(Action.KEEP, Reason("WORKLOAD_ENDED", "The workload ended."), NO_INTERVAL)

    async def _decided(self) -> Decision:
        windows = 0
        while True:
            await asyncio.sleep(self._settings.poll_s)
            pods = await self._resized.read()
            if (over := await self._over(pods)) is not None:
                return over
            self._steps.annotated(pods)
            seen = self._watched(pods)
            decision = evaluate(seen, self._settings.watch)
            if decision.action is not Action.WATCH:
                return decision
            if seen.elapsed_s // self._settings.watch.window_s > windows:
                windows = int(seen.elapsed_s // self._settings.watch.window_s)
                self._say(f"{seen.elapsed_s:.0f} s, {len(seen.after)} observations: {decision.reason.message}")

    def _watched(self, pods: "list[Object]") -> Watched:
        from kopt.cluster.workloads.pod_resize import restarts_of

        restarts = sum(max(0, restarts_of(pod) - self._restarts.get(pod["metadata"]["name"], 0)) for pod in pods)
        since = Since(self._applied_s, self._effective_s, restarts, grows=self._grows)
        return watched(self._times(), self._steps.last_s, since, time.time(), self._settings.watch)

    def _times(self) -> list[StepTime]:
        """What is compared."""
        return self._steps.times

    async def _keep(self, decision: Decision) -> None:
        from kopt.cluster.client.api import ApiError

        try:
            await self._resized.finish(Outcome.KEPT, decision.reason.message)
        except ApiError as error:
            raise Refused(f"the change is kept, and in its history it still stands as open: {error}") from error
        self._event("ResizeKept", f"{self._resize.text}, kept. {decision.reason.message}")
        await self._events.flush()

    async def _undo(self, decision: Decision) -> Decision:
        """Tries again for a while; how it ended. Raises Refused with what stands."""
        not_done = await restored(self._resized, decision.reason.message, self._settings.undo_s, self._say)
        self._event("ResizeUndone", f"{self._resize.text}, undone. {decision.reason.message}")
        await self._events.flush()
        for each in not_done:
            self._say(f"{each.name} was left as it is: {each.why}")
        return decision

    def _event(self, reason: str, note: str) -> None:
        self._events.record(self._reference, reason, "Rightsizing", note)


async def restored(resized: Resized, reason: str, within_s: float, say: Say) -> list[NotDone]:
    """Takes a change back, again and again where the API server does not answer. Raises Refused with what stands."""
    from kopt.cluster.client.api import ApiError
    from kopt.cluster.runtime.backoff import Backoff

    backoff, until_s = Backoff(0.5, 10.0), time.time() + within_s
    say("taking the change back")
    while True:
        try:
            return await resized.restore(reason)
        except ApiError as error:
            if time.time() >= until_s:
                lines = "; ".join(resized.commands())
                raise Refused(
                    f"the change stands, as it could not be taken back for {within_s:.0f} s ({error}). "
                    f"`kopt rightsize undo` does it, or: {lines}"
                ) from error
            say(f"not taken back yet: {error}")
            await asyncio.sleep(backoff.next_s())
