"""The status of a KaiwoQueue."""

from collections.abc import Sequence

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, text
from kopt.core.scheduling.queue_tree import Engine, NotExpressible
from kopt.core.times import seconds_or_none, stamp
from kopt.policies.queues.reclaim import LONGEST_S, ReclaimDecision

APPLIED, RECLAIMING = "Applied", "Reclaiming"
_MEANINGS = {
    "NOTHING_WAITS": "No workload waits for the queue's own quota.",
    "IN_GRACE": "A workload waits for the queue's own quota; borrowers have their grace.",
    "BACKS_OFF": "A workload waits for the queue's own quota; some was taken back a short time ago.",
    "IN_MIN_RUNTIME": "A workload waits for the queue's own quota; borrowers are in their minimum run time.",
    "NO_VICTIMS": "A workload waits for the queue's own quota; no workloads that may be evicted free it.",
    "SAVES_FIRST": "A workload waits for the queue's own quota; borrowers save a checkpoint first.",
    "COMES_FREE": "A workload waits for the queue's own quota; borrowers were evicted for it, and end.",
    "RECLAIMS": "A workload waits for the queue's own quota: borrowers are evicted for it.",
}
_LONGEST_CHARS = 1024
_MOST_FINDINGS = 256


def status_of(
    document: Object,
    engine: Engine,
    findings: Sequence[NotExpressible],
    applied: tuple[bool, str, str],
    now_s: float,
    reclaim: ReclaimDecision | None = None,
) -> Object:
    """``applied``: whether its queues are as declared, with the condition's reason and message; ``reclaim``: of a queue
    that takes its quota back after a grace. Times of changes are kept while nothing changes."""
    conditions = [_condition(document, APPLIED, *applied, now_s)]
    last = text(document, "status", "lastReclaimTime")
    if reclaim is not None:
        conditions.append(_condition(document, RECLAIMING, reclaim.reclaims, *_reason_texts(reclaim), now_s))
        begun = seconds_or_none(last)
        if reclaim.reclaims and (begun is None or now_s - begun >= LONGEST_S):
            last = stamp(now_s)
    result = {
        "observedGeneration": at(document, "metadata", "generation") or 0,
        "engine": engine.value,
        "notExpressible": [
            {"code": it.code, "path": it.path[:_LONGEST_CHARS], "text": it.text[:_LONGEST_CHARS]}
            for it in findings[:_MOST_FINDINGS]
        ],
        "conditions": conditions,
    }
    return result | ({"lastReclaimTime": last} if last else {})


def _reason_texts(reclaim: ReclaimDecision) -> tuple[str, str]:
    """Kubernetes' form of a reason; the seconds that pass are left out, as each would be another status."""
    return reclaim.reason.code.title().replace("_", ""), _MEANINGS[reclaim.reason.code]


def _condition(document: Object, kind: str, is_true: bool, reason: str, message: str, now_s: float) -> Object:
    status = "True" if is_true else "False"
    conditions = (item for _, item in items(document, "status", "conditions"))
    before: Object = next((item for item in conditions if text(item, "type") == kind), {})
    since = text(before, "lastTransitionTime") if text(before, "status") == status else ""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST_CHARS],
        "lastTransitionTime": since or stamp(now_s),
    }
