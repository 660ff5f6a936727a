"""The latest decisions, for ``/explain``: why this node, why not the others."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.cluster.resources import Key
from kopt.controllers.extender.fleet import Placement
from kopt.core.decision import Mode
from kopt.policies.placement.choose import explain
from kopt.policies.placement.feasible import SENTENCES, Refusal


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

    @property
    def summary(self) -> str:
        """One sentence."""
        return explain(self.placement.choice)[0].message

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
            "gpu_indices": list(self.gpus or choice.gpus),
            "resource": self.placement.pool,
            "score": choice.score,
            "breakdown": dict(choice.breakdown),
            "considered": choice.considered,
            "feasible": choice.feasible,
            "runner_ups": [
                {"node": one.node, "score": one.score, "breakdown": dict(one.breakdown)} for one in choice.runner_ups
            ],
            "rejected": _rejected(choice.rejected),
            "reasons": [reason.to_dict() for reason in explain(choice)],
            "planned_together": self.together,
            "error": self.error,
        }


class DecisionLog:
    """The latest decision of each of the ``most`` latest pods."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._decisions: OrderedDict[Key, PodDecision] = OrderedDict()

    def note(self, decision: PodDecision) -> None:
        self._decisions[decision.pod] = decision
        self._decisions.move_to_end(decision.pod)
        if len(self._decisions) > self._most:
            self._decisions.popitem(last=False)

    def find(self, pod: Key) -> PodDecision | None:
        return self._decisions.get(pod)

    def ended(self, pod: Key, uid: str, outcome: str, node: str = "", gpus: tuple[int, ...] = (),
              error: str = "") -> PodDecision | None:  # fmt: skip
        """Note what became of a pod's latest decision."""
        found = self._decisions.get(pod)
        if found is None or found.uid != uid:
            return None
        found = replace(found, outcome=outcome, node=node, gpus=gpus, error=error)
        self._decisions[pod] = found
        return found


def _rejected(counts: Mapping[Refusal, int]) -> list[dict[str, Any]]:
    return [{"code": code.name, "nodes": count, "reason": SENTENCES[code]} for code, count in counts.items()]
