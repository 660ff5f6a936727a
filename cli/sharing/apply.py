"""Carries out the steps of a change of one node, and takes them back where they lead nowhere.

Whatever ends it before its end (Ctrl-C, SIGTERM, an error) takes the change back. Only SIGKILL, or an API server that
stays away, leaves it: the record on the node is open then, and the next ``apply`` goes on, or ``undo`` takes it back.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.sharing.node import SharedNode, unfinished
from kopt.core.sharing.change import ChangeOutcome, SharingChange
from kopt.core.sharing.modes import SharingMode
from kopt.formats.sharing_terms import CONFIGURATION_LABEL
from kopt.policies.fractions.applying import NodeState, Step, in_force, missing, next_step

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube

Say = Callable[[str], None]
_APPLIED = "The node offers what was planned."


@dataclass(frozen=True)
class ApplySettings:
    """Times in seconds."""

    drain: bool = False
    drain_s: float = 600.0
    """For pods to end."""
    settle_s: float = 90.0
    """Between a new configuration and the label: kubelets bring ConfigMaps to pods within a minute and a half."""
    in_force_s: float = 300.0
    """For the plugin to offer what the configuration says."""
    poll_s: float = 2.0
    outage_s: float = 120.0
    """How long an API server that does not answer is waited for, on the way and on the way back."""


class NotReached(Exception):
    """A change that leads nowhere, and why."""


class Application:
    """One change of one node, from its record to its end."""

    def __init__(
        self, kube: "Kube", node: SharedNode, settings: ApplySettings, say: Say, *, is_recorded: bool = False
    ) -> None:
        """``is_recorded``: on the node, by a command before this one."""
        from kopt.cluster.runtime.events import EventRecorder

        self._node, self._settings, self._say = node, settings, say
        self._events = EventRecorder(kube, "kaiwo.ai/sharing", socket.gethostname())
        self._last_line = ""
        self._is_recorded = is_recorded

    async def prepared(self, change: SharingChange) -> NodeState:
        """What a change begins with. Raises Refused where it may not, and ApiError."""
        from kopt.cluster.client.api import ApiError

        state = await self._node.read(change)
        if not self._node.config_map_exists:
            raise Refused(
                f"there is no ConfigMap {'/'.join(change.config_map)} of the device plugin's configurations: install "
                "the plugin with one (the GPU operator's devicePlugin.config, the chart's config.name), or name it by "
                "--config-map"
            )
        # Without its daemon MPS offers nothing, and another mode is the way out.
        is_without_mps = change.before.mode is SharingMode.MPS and state.mps_ready is not True
        is_settled = is_without_mps or in_force(state, change.before, change.gpus)
        if state.label == change.after.label or not is_settled:
            why = missing(state, change.before, change.gpus)
            raise Refused(f"{self._node.name} does not offer yet what its label names: {why}")
        self._may_drain(state, Refused)
        try:
            await self._node.check(change)
        except ApiError as error:
            raise Refused(f"the API server does not take this change, and nothing was changed: {error}") from error
        return state

    async def may_be_undone(self, change: SharingChange) -> None:
        """Raises Refused where a change that was applied is not to be taken back, and ApiError."""
        state = await self._node.read(change)
        if state.label != change.after.label:
            raise Refused(f"others have set the label of {self._node.name} to {state.label or 'nothing'} since")
        self._may_drain(state, Refused)

    async def apply(self, change: SharingChange) -> SharingChange:
        """Goes on with a recorded change, else begins. Returns it as it ended. Raises Refused where it is left half
        done, and where another one is under way."""
        reason = "It was interrupted."
        try:
            if not self._is_recorded:
                await self._record(change)
            ended = await self._until_finished(change, ChangeOutcome.APPLIED, _APPLIED)
            await self._event("SharingApplied", f"GPUs are shared as {change.after}, before as {change.before}.")
            return ended
        except Refused:
            raise
        except NotReached as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the node is to be as before
            reason = f"It failed: {error}"
        except asyncio.CancelledError:
            # A task of its own: what cancels the change does not cancel this.
            await asyncio.shield(asyncio.create_task(self.undo(change, reason)))
            raise
        return await self.undo(change, reason)

    async def undo(self, change: SharingChange, reason: str) -> SharingChange:
        """Tries again for a while. Raises Refused with what stands."""
        from kopt.cluster.client.api import ApiError
        from kopt.cluster.runtime.backoff import Backoff

        backoff, until_s = Backoff(0.5, 10.0), time.time() + self._settings.outage_s
        self._say(f"taking it back: {reason}")
        while True:
            try:
                ended = await self._back(change, reason)
                break
            except (ApiError, NotReached) as error:
                if isinstance(error, NotReached) or time.time() >= until_s:
                    raise Refused(
                        f"{self._node.name} is left half done: {error}. "
                        f"`kopt fractions sharing undo --node {self._node.name}` goes on"
                    ) from error
                self._say(f"not taken back yet: {error}")
                await asyncio.sleep(backoff.next_s())
        await self._event("SharingUndone", f"GPUs are shared as {change.before} again. {reason}")
        return ended

    async def _record(self, change: SharingChange) -> None:
        """Before anything else is written. Raises Refused where another change has been recorded by now."""
        from kopt.cluster.client.api import Conflict

        while True:
            if unfinished(await self._node.changes()) is not None:
                raise Refused(f"another change of {self._node.name} is under way")
            try:
                await self._node.record(change)
            except Conflict:
                # The kubelet writes to the node as well.
                continue
            self._is_recorded = True
            return

    async def _back(self, change: SharingChange, reason: str) -> SharingChange:
        """As the node has it recorded; what was never recorded has changed nothing."""
        from kopt.cluster.objects.annotations import AnnotationError

        try:
            recorded = next((each for each in await self._node.changes() if each.at_s == change.at_s), None)
        except AnnotationError:
            recorded = None
        if recorded is None:
            if not self._is_recorded:
                return replace(change, outcome=ChangeOutcome.UNDONE, reason=reason)
            recorded = change
        undoing = replace(recorded, outcome=ChangeOutcome.UNDOING, reason=reason, ended_s=None)
        if recorded.outcome is ChangeOutcome.APPLIED:
            # Somebody else may have cordoned it since.
            undoing = replace(undoing, was_cordoned=self._node.is_cordoned)
        await self._node.record(undoing)
        return await self._until_finished(undoing, ChangeOutcome.UNDONE, reason)

    async def _until_finished(self, change: SharingChange, outcome: ChangeOutcome, reason: str) -> SharingChange:
        from kopt.cluster.client.api import Conflict

        began_s: dict[Step, float] = {}
        while True:
            state = await self._read(change)
            if self._node.outcome_of(change) not in (None, change.outcome):
                raise Refused(f"another command has gone on with this change of {self._node.name}")
            step = next_step(state, change)
            since_s = time.time() - began_s.setdefault(step, time.time())
            if step is Step.WAIT and since_s >= self._settings.in_force_s:
                step = self._at_timeout(state, change)
            try:
                if step is Step.FINISH:
                    return await self._node.finish(change, outcome, _now_s(), reason)
                await self._do(step, state, change, since_s)
            except Conflict as error:
                # The kubelet writes to the node as well, which is then read again.
                if step in (Step.CONFIGURE, Step.RELEASE):
                    raise NotReached(f"The ConfigMap is not as it was read: {error.message}") from error

    async def _read(self, change: SharingChange) -> NodeState:
        """An API server that is away for a while is no reason to take a change back and to drain the node again."""
        from kopt.cluster.client.api import ApiError, Unreachable
        from kopt.cluster.runtime.backoff import Backoff

        backoff, until_s = Backoff(0.5, 10.0), time.time() + self._settings.outage_s
        while True:
            try:
                return await self._node.read(change)
            except ApiError as error:
                is_away = isinstance(error, Unreachable) or error.status in (429, *range(500, 600))
                if not is_away or time.time() >= until_s:
                    raise
                self._progress(f"the API server does not answer: {error}")
                await asyncio.sleep(backoff.next_s())

    async def _do(self, step: Step, state: NodeState, change: SharingChange, since_s: float) -> None:
        if step is Step.FOREIGN:
            raise NotReached(f"Others have set its label to {state.label or 'nothing'}.")
        self._progress(meaning(step, state, change))
        match step:
            case Step.CORDON:
                await self._node.cordon()
            case Step.DRAIN:
                await self._drain(state, since_s)
            case Step.CONFIGURE:
                await self._node.configure(change)
                self._progress(f"letting it reach the plugin's pod for {self._settings.settle_s:.0f} s")
                await asyncio.sleep(self._settings.settle_s)
            case Step.LABEL:
                await self._node.label(change.goal)
            case Step.WAIT:
                await asyncio.sleep(self._settings.poll_s)
            case Step.RELEASE:
                await self._node.release(change)

    def _at_timeout(self, state: NodeState, change: SharingChange) -> Step:
        """Back it stays cordoned no longer, as nothing of it is ours any more."""
        why, span = missing(state, change.goal, change.gpus), f"{self._settings.in_force_s:.0f} s"
        if change.outcome is ChangeOutcome.OPEN:
            raise NotReached(f"Within {span} the node did not offer what was planned: {why}.")
        self._progress(f"{self._node.name} has its label of before, and does not offer that after {span}: {why}")
        return Step.RELEASE if state.holds else Step.FINISH

    async def _drain(self, state: NodeState, since_s: float) -> None:
        self._may_drain(state, NotReached)
        if since_s >= self._settings.drain_s:
            raise NotReached(f"Within {self._settings.drain_s:.0f} s these did not end: {_names(state.pods)}.")
        if kept := await self._node.evict():
            self._progress(f"not evicted yet: {_names(kept)}")
        await asyncio.sleep(self._settings.poll_s)

    def _may_drain(self, state: NodeState, error: type[Exception]) -> None:
        if not state.pods:
            return
        if not self._settings.drain:
            raise error(
                f"pods on {self._node.name} have GPUs, which they would lose: {_names(state.pods)}. End them, or let "
                "--drain evict them"
            )
        if unevictable := self._node.unevictable():
            raise error(f"these pods are not evicted from {self._node.name}: {_names(unevictable)}")

    def _progress(self, line: str) -> None:
        if line != self._last_line:
            self._last_line = line
            self._say(line)

    async def _event(self, reason: str, note: str) -> None:
        from kopt.cluster.client.resources import NODES

        self._events.record(NODES.reference("", self._node.name, self._node.uid), reason, "Sharing", note)
        await self._events.flush()


def meaning(step: Step, state: NodeState, change: SharingChange) -> str:
    """What a step does, in a few words."""
    config_map = "/".join(change.config_map)
    match step:
        case Step.CORDON:
            return "cordon the node"
        case Step.DRAIN:
            return f"evict {_names(state.pods)}"
        case Step.CONFIGURE:
            return f"add {change.after.label} to ConfigMap {config_map}"
        case Step.LABEL:
            return f"set its label {CONFIGURATION_LABEL} to {change.goal.label or 'nothing'}"
        case Step.WAIT:
            return (
                f"wait until it offers {change.gpus * change.goal.replicas}: {missing(state, change.goal, change.gpus)}"
            )
        case Step.RELEASE:
            return f"give up {change.after.label} in ConfigMap {config_map}"
        case Step.FINISH:
            return "record the end" if change.was_cordoned else "uncordon the node, and record the end"
        case Step.FOREIGN:
            return f"nothing: others have set its label to {state.label or 'nothing'}"


def _names(names: "tuple[str, ...] | list[str]") -> str:
    most = 5
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def _now_s() -> float:
    return float(int(time.time()))
