"""Verifies one plan at a time, applies it step by step, and restores the state before where a step fails.

After each step the driver is read back and has to report what ``core.node_plan.steps.after`` says. Killed at any time,
``recover`` goes on where the journal and the hardware agree, and restores the state before where they do not.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kopt.agents.node_executor.hardware import Hardware, HardwareError
from kopt.agents.node_executor.journal import Journal, JournalPlan
from kopt.core.dsse import Envelope, UntrustedKeyError, WrongTypeError, envelope_document, envelope_of
from kopt.core.node_plan.plan import NodePlan, envelope_digest, verified_plan
from kopt.core.node_plan.state import NodeState
from kopt.core.node_plan.steps import Step, StepError, UnknownVerbError, all_after, is_restored, steps_between
from kopt.core.reason import Reason
from kopt.core.signing_keys import SigningError
from kopt.core.untrusted import UnreadableError, printable

_LOG = logging.getLogger(__name__)
OTHER_AUTHORITIES = {
    "nvidia.com/mig.config": "NVIDIA's mig-manager",
    "dcm.amd.com/gpu-config-profile": "AMD's device config manager",
}
"""Labels of a node by which others partition its GPUs."""
_SPARE_ATTEMPTS = 4
_LONGEST_MESSAGE_CHARS = 500


class Phase(StrEnum):
    """How a plan ended."""

    REFUSED = "Refused"
    APPLIED = "Applied"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"
    """The state before could not be restored either."""


@dataclass(frozen=True)
class Outcome:
    """Of one envelope; ``sequence`` is 0 where its plan has not begun."""

    phase: Phase
    reason: Reason
    digest: str = ""
    sequence: int = 0


@dataclass(frozen=True)
class OwnNode:
    """The node as the API server has it now."""

    name: str
    uid: str
    labels: Mapping[str, str] = field(default_factory=dict)


class _RefusedError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(code, printable(message, _LONGEST_MESSAGE_CHARS))


class _StepFailedError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reason = Reason(code, printable(message, _LONGEST_MESSAGE_CHARS))


class Executor:
    """Of one node. ``keys`` gives the public keys that are trusted now. Not for use by several threads at once."""

    def __init__(
        self,
        hardware: Hardware,
        journal: Journal,
        keys: Callable[[], tuple[Ed25519PublicKey, ...]],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._hardware, self._journal, self._keys, self._now = hardware, journal, keys, now

    def last(self) -> Outcome | None:
        """How the last plan that began has ended; None where none has."""
        plan = self._journal.plan
        if plan is None or plan.outcome is None:
            return None
        return Outcome(Phase(plan.phase), plan.outcome, plan.digest, plan.sequence)

    def recover(self) -> Outcome | None:
        """Finishes or undoes a plan that was interrupted; None where there was none.

        Raises HardwareError where the GPUs cannot be read: it has to be tried again then. Raises JournalError.
        """
        recorded = self._journal.plan
        if recorded is None or recorded.outcome is not None:
            return None
        try:
            plan, at = self._resumable(recorded)
        except _StepFailedError as error:
            return self._undone(recorded, error.reason)
        _LOG.info("plan %s goes on with step %d of %d", recorded.digest[:12], at + 1, len(plan.steps))
        return self._applied(recorded, plan, at)

    def handle(self, document: object, node: OwnNode) -> Outcome:
        """Verifies and applies what stands on the object of this node. Raises HardwareError where the GPUs cannot be
        read, and JournalError where the journal cannot be written: ``recover`` comes next, as a plan may have begun."""
        digest = ""
        try:
            envelope = _envelope(document)
            digest = envelope_digest(envelope)
            last = self.last()
            if last is not None and last.digest == digest:
                return last
            plan, before = self._accepted(envelope, node)
        except _RefusedError as error:
            return Outcome(Phase.REFUSED, error.reason, digest)
        self._journal.begin(digest, plan.sequence, envelope_document(envelope), before)
        recorded = self._journal.plan
        assert recorded is not None
        return self._applied(recorded, plan, 0)

    def _accepted(self, envelope: Envelope, node: OwnNode) -> tuple[NodePlan, NodeState]:
        plan = self._verified(envelope)
        if (plan.node, plan.node_uid) != (node.name, node.uid):
            its_node = f"{plan.node[:80]} ({plan.node_uid[:40]})"
            raise _RefusedError("NODE_PLAN_WRONG_NODE", f"it is for node {its_node}; this is {node.name} ({node.uid})")
        if plan.sequence <= self._journal.sequence:
            message = f"its sequence {plan.sequence} is not above {self._journal.sequence}, which has begun before"
            raise _RefusedError("NODE_PLAN_REPLAYED", message)
        now_s = self._now()
        if not plan.issued_at_s - 300 <= now_s < plan.expires_at_s:
            late_s = now_s - plan.expires_at_s
            text = f"it expired {late_s:.0f} s ago" if late_s >= 0 else "it was signed in the future"
            raise _RefusedError("NODE_PLAN_EXPIRED", text)
        other = next((name for label, name in OTHER_AUTHORITIES.items() if node.labels.get(label)), None)
        if other is not None:
            raise _RefusedError("NODE_PLAN_OTHER_AUTHORITY", f"{other} partitions this node's GPUs, by its label")
        before = self._hardware.read()
        if before.digest != plan.state_before:
            message = f"the GPUs are in state {before.digest[:12]}, the plan is for {plan.state_before[:12]}"
            raise _RefusedError("NODE_PLAN_STATE_CHANGED", message)
        try:
            all_after(before, plan.steps)
        except StepError as error:
            raise _RefusedError("NODE_PLAN_IMPOSSIBLE", str(error)) from error
        for step in plan.steps:
            if users := self._hardware.users(step):
                raise _RefusedError("NODE_PLAN_IN_USE", f"{step}: in use by {', '.join(users[:4])}")
        return plan, before

    def _verified(self, envelope: Envelope) -> NodePlan:
        try:
            return verified_plan(envelope, self._keys())
        except WrongTypeError as error:
            raise _RefusedError("NODE_PLAN_WRONG_TYPE", str(error)) from error
        except UntrustedKeyError as error:
            raise _RefusedError("NODE_PLAN_UNKNOWN_KEY", str(error)) from error
        except SigningError as error:
            raise _RefusedError("NODE_PLAN_FORGED", str(error)) from error
        except UnknownVerbError as error:
            raise _RefusedError("NODE_PLAN_UNKNOWN_VERB", str(error)) from error
        except UnreadableError as error:
            raise _RefusedError("NODE_PLAN_UNREADABLE", str(error)) from error

    def _resumable(self, recorded: JournalPlan) -> tuple[NodePlan, int]:
        """The plan and the number of its next step, where the journal and the GPUs agree on it."""
        if recorded.undoing is not None:
            raise _StepFailedError(recorded.undoing.code, recorded.undoing.message)
        try:
            plan = self._verified(_envelope(recorded.envelope))
            states = all_after(recorded.before, plan.steps)
        except _RefusedError as error:
            raise _StepFailedError("NODE_PLAN_INTERRUPTED", f"its signature does not count any more: {error}") from None
        except StepError as error:
            raise _StepFailedError("NODE_PLAN_INTERRUPTED", str(error)) from None
        if self._now() >= plan.expires_at_s:
            raise _StepFailedError("NODE_PLAN_INTERRUPTED", "it was interrupted and has expired since")
        now = self._hardware.read()
        for at in (recorded.begun, recorded.begun - 1):
            if 0 <= at < len(states) and states[at] == now:
                return plan, at
        message = f"it was interrupted in step {recorded.begun}, which is done in part"
        raise _StepFailedError("NODE_PLAN_INTERRUPTED", message)

    def _applied(self, recorded: JournalPlan, plan: NodePlan, at: int) -> Outcome:
        states = all_after(recorded.before, plan.steps)
        try:
            for number in range(at, len(plan.steps)):
                self._step(number, plan.steps[number], states[number + 1])
        except _StepFailedError as error:
            return self._undone(recorded, error.reason)
        count = len(plan.steps)
        message = f"{count} step{'s' * (count > 1)} applied and read back; state {states[-1].digest[:12]}"
        return self._ended(recorded, Phase.APPLIED, Reason("NODE_PLAN_APPLIED", message))

    def _step(self, number: int, step: Step, expected: NodeState) -> None:
        """Raises _StepFailedError."""
        try:
            if users := self._hardware.users(step):
                raise _StepFailedError("NODE_PLAN_IN_USE", f"{step}: in use by {', '.join(users[:4])}")
            self._journal.step(number)
            self._hardware.apply(step)
            now = self._hardware.read()
        except HardwareError as error:
            raise _StepFailedError("NODE_STEP_FAILED", f"step {number + 1}, {step}: {error}") from error
        if now != expected:
            message = f"step {number + 1}, {step}: the driver reports success, and another state than it leads to"
            raise _StepFailedError("NODE_STEP_NOT_VERIFIED", message)

    def _undone(self, recorded: JournalPlan, why: Reason) -> Outcome:
        """Restores the state before. Raises HardwareError where the GPUs cannot be read."""
        if recorded.undoing is None:
            self._journal.undo(why)
        _LOG.warning("plan %s is undone: %s", recorded.digest[:12], why.message)
        now, last_error = self._hardware.read(), ""
        for _ in range(len(recorded.before.gpus) * 16 + _SPARE_ATTEMPTS):
            if is_restored(now, recorded.before):
                return self._ended(recorded, Phase.ROLLED_BACK, why)
            try:
                self._hardware.apply(steps_between(now, recorded.before)[0])
            except (HardwareError, StepError) as error:
                if last_error == str(error):
                    break
                last_error = str(error)
            now = self._hardware.read()
        message = f"{why.message}; the state before could not be restored: {last_error or 'the driver reports another'}"
        return self._ended(recorded, Phase.FAILED, Reason("NODE_ROLLBACK_FAILED", message[:_LONGEST_MESSAGE_CHARS]))

    def _ended(self, recorded: JournalPlan, phase: Phase, reason: Reason) -> Outcome:
        self._journal.end(phase, reason)
        _LOG.info("plan %s: %s, %s", recorded.digest[:12], phase, reason.message)
        return Outcome(phase, reason, recorded.digest, recorded.sequence)


def _envelope(document: object) -> Envelope:
    """Raises _RefusedError."""
    if not isinstance(document, Mapping):
        raise _RefusedError("NODE_PLAN_UNREADABLE", "there is no envelope")
    try:
        return envelope_of(document)
    except UnreadableError as error:
        raise _RefusedError("NODE_PLAN_UNREADABLE", str(error)) from error
