"""What the status of a NodeSelectionPolicy says: whether it is in force, and whose use is not known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.conditions import condition
from kopt.cluster.objects.custom.node_selection_policy import StoredPolicy
from kopt.cluster.objects.fields import text
from kopt.core.times import stamp
from kopt.core.units import counted, format_span

ACCEPTED, MEASURED = "Accepted", "UtilisationMeasured"
_LONGEST_CHARS = 1024
_NO_SERIES = (
    "Prometheus has no recorded sums of the nodes (node:kopt_gpu_busy_ratio:sum, node:kopt_gpus_installed:sum): load "
    "the rules of `kopt alerts rules`."
)
_ALONE = "the other weights decide alone"
_MOST_NAMED, _MOST_LISTED = 3, 20


@dataclass(frozen=True)
class Usage:
    """What is known of the nodes' use. ``problem`` is a reason and a message where Prometheus gave no answer."""

    nodes: int = 0
    unmeasured: Sequence[str] = ()
    usual: float = 0.0
    problem: tuple[str, str] | None = None


def status_of(stored: StoredPolicy, in_force: StoredPolicy | None, usage: Usage, now_s: float) -> dict[str, Any]:
    """The whole status; times of conditions that have not turned are kept."""
    status, reason, message = _accepted(stored, in_force)
    conditions = [_condition(stored, ACCEPTED, status, reason, message, now_s)]
    unmeasured: list[str] | None = None
    if stored is in_force and stored.policy is not None:
        conditions.append(_condition(stored, MEASURED, *_measured(stored, usage), now_s))
        if stored.policy.weights.utilisation_history:
            unmeasured = sorted(usage.unmeasured)
    return {
        "observedGeneration": stored.generation,
        # A merge patch removes what is null.
        "unmeasuredNodes": None if unmeasured is None else len(unmeasured),
        "unmeasured": None if unmeasured is None else unmeasured[:_MOST_LISTED],
        "conditions": conditions,
    }


def is_written(stored: StoredPolicy, status: Object) -> bool:
    return all(stored.status.get(name) == value for name, value in status.items())


def _accepted(stored: StoredPolicy, in_force: StoredPolicy | None) -> tuple[str, str, str]:
    if stored.error:
        counts = f"NodeSelectionPolicy {in_force.name} is in force" if in_force else "the defaults count"
        return "False", "Invalid", f"{stored.error}. Until then {counts}."
    if in_force is not None and stored is not in_force:
        why = (
            f"NodeSelectionPolicy {in_force.name} is older and in force, and a cluster has one: delete one of the two."
        )
        return "False", "AnotherInForce", why
    return "True", "InForce", "The extender selects nodes by these weights."


def _measured(stored: StoredPolicy, usage: Usage) -> tuple[str, str, str]:
    assert stored.policy is not None
    if not stored.policy.weights.utilisation_history:
        return "Unknown", "NotWeighed", "The weight of utilisationHistory is 0: use is not read."
    if usage.problem is not None:
        reason, message = usage.problem
        return "False", reason, f"{message}. Until then {_ALONE}."
    over = f"over the last {format_span(stored.policy.window_s)}"
    if not usage.unmeasured:
        return "True", "Measured", f"The use of {counted(usage.nodes, 'node')} is known {over}."
    if len(usage.unmeasured) == usage.nodes:
        return "False", "NoSeries", f"{_NO_SERIES} Until then {_ALONE}."
    names = ", ".join(sorted(usage.unmeasured)[:_MOST_NAMED])
    more = len(usage.unmeasured) - _MOST_NAMED
    listed = f"{names} and {more} more" if more > 0 else names
    number = f"{len(usage.unmeasured)} of {counted(usage.nodes, 'node')}"
    text = f"The use of {number} is not known {over}, and counts as the mean of the others: {listed}."
    return "False", "SomeNodesUnmeasured", text


def _condition(stored: StoredPolicy, kind: str, status: str, reason: str, message: str, now_s: float) -> Object:
    before = condition({"status": stored.status}, kind)
    since = text(before, "lastTransitionTime") if text(before, "status") == status else ""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST_CHARS],
        "observedGeneration": stored.generation,
        "lastTransitionTime": since or stamp(now_s),
    }
