"""What a PairwiseBenchmark's status says, and the account of what its tests have cost."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text, texts
from kopt.controllers.pairwise.test_selection import Plan
from kopt.core.hardware.pairwise import Health, MeasuredPair
from kopt.core.times import stamp

RUNNING = "Running"
_ACTIVE = ("Measuring", "UpToDate")
_MOST_COUNTED = 512


@dataclass(frozen=True)
class Account:
    """GPU-seconds of a UTC day, and the tests (uids of Jobs) that are in it and may still be there."""

    day: str
    gpu_s: int = 0
    counted: tuple[str, ...] = ()

    def charged(self, costs: Iterable[tuple[str, float]]) -> "Account":
        """With what these tests have cost, each once."""
        new = {uid: cost for uid, cost in costs if uid not in self.counted}
        return Account(self.day, self.gpu_s + round(sum(new.values())), (*self.counted, *new)[-_MOST_COUNTED:])

    def without(self, existing: Collection[str]) -> "Account":
        """Tests whose Jobs are gone cannot be charged again."""
        return Account(self.day, self.gpu_s, tuple([name for name in self.counted if name in existing]))


def account_of(document: Object, now_s: float) -> Account:
    """Today's; a new day begins with nothing spent."""
    today, budget = stamp(now_s)[:10], mapping(document, "status", "budget")
    spent = at(budget, "gpuSeconds") if text(budget, "day") == today else 0
    return Account(today, spent if isinstance(spent, int) else 0, texts(budget, "counted"))


def budget_status(account: Account) -> Object:
    return {"day": account.day, "gpuSeconds": account.gpu_s, "counted": list(account.counted)}


def status_for(
    document: Object,
    plan: Plan,
    measured: Iterable[MeasuredPair],
    sick: Collection[str],
    running: int,
    account: Account,
    error: str,
    now_s: float,
) -> Object:
    """``sick`` nodes count where they take part. Times of conditions change only with what they say."""
    pairs, part = set(plan.pairs), {name for pair in plan.pairs for name in pair}
    own = [measured_pair for measured_pair in measured if measured_pair.nodes in pairs]
    due = plan.due(now_s)
    return {
        "observedGeneration": document["metadata"].get("generation", 0),
        "nodes": len(part),
        "measured": max(0, len(plan.pairs) - due - running),
        "due": due,
        "running": running,
        "slowPairs": len({measured_pair.nodes for measured_pair in own if measured_pair.health is Health.SLOW}),
        "failedPairs": len({measured_pair.nodes for measured_pair in own if measured_pair.health is Health.FAILED}),
        "degradedNodes": len(part & set(sick)),
        "lastError": error[:1024],
        "budget": budget_status(account),
        "conditions": [_condition(document, plan.state, plan.why, now_s)],
    }


def last_error(document: Object) -> str:
    return text(document, "status", "lastError")


def _condition(document: Object, reason: str, message: str, now_s: float) -> Object:
    result: Object = {"type": RUNNING, "status": str(reason in _ACTIVE), "reason": reason, "message": message[:1024]}
    before = next((item for _, item in items(document, "status", "conditions") if text(item, "type") == RUNNING), None)
    same = before is not None and text(before, "status") == result["status"]
    when = text(before, "lastTransitionTime") if same else ""
    return result | {"lastTransitionTime": when or stamp(now_s)}
