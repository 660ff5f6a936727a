"""The latest decisions, for ``/explain``: why this node, why not the others."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.cluster.client.resources import Key
from kopt.core.decision import Mode
from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.core.hardware.node_selection import NodeSelectionPolicy, UtilisationHistory
from kopt.core.reason import Reason
from kopt.core.units import format_span
from kopt.policies.placement.choose import Choice, explain
from kopt.policies.placement.feasible import SENTENCES, Refusal
from kopt.policies.placement.fleet import Placement

_LONGEST_MESSAGE = 1024
"""Characters of an event's note, by its schema."""


@dataclass(frozen=True, slots=True)
class PodDecision:
    """What was decided for one pod, and what became of it (``outcome``: offered, refused, observed, bound, failed)."""

    pod: Key
    uid: str
    at_s: float
    mode: Mode
    placement: Placement
    outcome: str = "offered"
    node: str = ""
    gpus: tuple[int, ...] = ()
    error: str = ""
    together: int = 1
    """Pods that were planned with it, itself included."""
    followed: str = ""
    """Whether the pod has the GPUs that were chosen (`Followed`), once its node has said what it has."""
    allocation: DeviceAllocation | None = None
    more: tuple[Reason, ...] = ()
    """Of degraded nodes, and of where the other pods of its gang are."""

    @property
    def summary(self) -> str:
        """What was chosen, and what kept it from another node; an event's note."""
        result = " ".join(reason.message for reason in (explain(self.placement.choice)[0], *self.more))
        return result if len(result) <= _LONGEST_MESSAGE else f"{result[: _LONGEST_MESSAGE - 1]}…"

    @property
    def has(self) -> tuple[int, ...]:
        """The GPUs that the pod has, as far as its node has said so; else those that were chosen."""
        allocated = self.allocation.gpus if self.allocation is not None and self.allocation.whole else None
        return allocated or self.gpus or self.placement.choice.gpus

    def to_dict(self) -> dict[str, Any]:
        """The document of ``/explain``."""
        choice = self.placement.choice
        return {
            "schema": "kopt/v1",
            "pod": "/".join(self.pod),
            "uid": self.uid,
            "at_s": self.at_s,
            "mode": self.mode.value,
            "outcome": self.outcome,
            "node": self.node or choice.node,
            "gpu_indices": list(self.has),
            "chosen_gpu_indices": list(self.gpus or choice.gpus),
            "followed": self.followed or None,
            "devices": list(self.allocation.devices) if self.allocation is not None else [],
            "resource": self.placement.pool,
            "score": choice.score,
            "breakdown": dict(choice.breakdown),
            "considered": choice.considered,
            "feasible": choice.feasible,
            "runner_ups": [
                {"node": ranked.node, "score": ranked.score, "breakdown": dict(ranked.breakdown)}
                for ranked in choice.runner_ups
            ],
            "rejected": _rejected(choice.rejected),
            "reasons": [reason.to_dict() for reason in (*explain(choice), *self.more)],
            "planned_together": self.together,
            "error": self.error,
        }


class DecisionLog:
    """The latest decision of each of the ``most`` latest pods."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._decisions: OrderedDict[Key, PodDecision] = OrderedDict()

    def record(self, decision: PodDecision) -> None:
        self._decisions[decision.pod] = decision
        self._decisions.move_to_end(decision.pod)
        if len(self._decisions) > self._most:
            self._decisions.popitem(last=False)

    def find(self, pod: Key) -> PodDecision | None:
        return self._decisions.get(pod)

    def ended(
        self, pod: Key, uid: str, outcome: str, node: str = "", gpus: tuple[int, ...] = (), error: str = ""
    ) -> PodDecision | None:
        """Note what became of a pod's latest decision."""
        pod_decision = self._decisions.get(pod)
        if pod_decision is None or pod_decision.uid != uid:
            return None
        pod_decision = replace(pod_decision, outcome=outcome, node=node, gpus=gpus, error=error)
        self._decisions[pod] = pod_decision
        return pod_decision

    def allocated(self, pod: Key, followed: str, allocation: DeviceAllocation, *, differs: bool = False) -> PodDecision:
        """Note what the node gave a pod whose decision is here."""
        decision = self._decisions[pod]
        more = (*decision.more, of_others(decision, allocation)) if differs else decision.more
        decision = replace(decision, followed=followed, allocation=allocation, more=more)
        self._decisions[pod] = decision
        return decision


def of_others(decision: PodDecision, allocation: DeviceAllocation) -> Reason:
    """The node gave a pod other GPUs than those that were chosen."""
    selected, allocated = (", ".join(map(str, gpus)) for gpus in (decision.gpus, allocation.gpus or ()))
    text = f"Node {decision.node} gave the pod GPUs {allocated} in place of {selected}, which were selected."
    return Reason("GPUS_DIFFER", text, {"node": decision.node, "chosen": selected, "given": allocated})


def _rejected(counts: Mapping[Refusal, int]) -> list[dict[str, Any]]:
    return [{"code": code.name, "nodes": count, "reason": SENTENCES[code]} for code, count in counts.items()]


def of_degraded(choice: Choice, text: Callable[[str], str]) -> tuple[Reason, ...]:
    """Degraded nodes that had room: the selected one, or those that were avoided, and what is wrong with
    them (``text``)."""
    if choice.node in choice.impaired:
        why = f"Node {choice.node} is degraded and was selected, as no healthy node can take the pod: "
        return (Reason("DEGRADED_TAKEN", f"{why}{text(choice.node or '')}.", {"node": str(choice.node)}),)
    what = "was avoided" if choice.node else "does not meet the requirements"
    return tuple(
        Reason("DEGRADED_AVOIDED", f"Node {name} is degraded and {what}: {text(name)}.", {"node": name})
        for name in choice.impaired
    )


def of_weights(choice: Choice, policy: NodeSelectionPolicy, history: UtilisationHistory) -> Reason:
    """By which weights the node was selected, and how busy it and the next one were, where that is weighed."""
    weights = ", ".join(f"{name} {weight:g}" for name, weight in policy.weights.by_field().items())
    text = f"Weights in GPUs by NodeSelectionPolicy {policy.name}: {weights}."
    if policy.weights.utilisation_history:
        names = [str(choice.node), *(ranked.node for ranked in choice.runner_ups[:1])]
        shares = ", ".join(f"{name} {_use(name, history)}" for name in names)
        text += f" GPUs in use over the last {format_span(policy.window_s)}: {shares}."
    return Reason("NODE_WEIGHTS", text, {"policy": policy.name, **policy.weights.by_field()})


def _use(node: str, history: UtilisationHistory) -> str:
    if not history.of:
        return "not measured"
    return f"{history.get(node):.0%}" + ("" if node in history.of else " (not measured: the mean of the others)")
