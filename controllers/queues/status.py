"""The status of a KaiwoQueue."""

from collections.abc import Sequence

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, text
from kopt.controllers.queues.advising import UNREAD, StandingAdvice
from kopt.core.scheduling.queue_tree import Engine, NotExpressible
from kopt.core.times import seconds_or_none, stamp
from kopt.core.units import format_gpus
from kopt.policies.queues.advice import QuotaAdvice
from kopt.policies.queues.reclaim import PACE, Pace, ReclaimDecision

APPLIED, RECLAIMING, ADVISED = "Applied", "Reclaiming", "Advised"
_MEANINGS = {
    "NOTHING_WAITS": "No workload waits for the queue's own quota.",
    "OWN_QUOTA_IN_USE": "What waits does not fit into what the queue's own workloads leave of its quota.",
    "NO_FAIR_SHARING": "Only quota is taken back: Kueue's Configuration has no fairSharing: what is freed goes by age.",
    "IN_GRACE": "A workload waits for the queue's own quota; borrowers have their grace.",
    "BACKS_OFF": "A workload waits for the queue's own quota or share; borrowers went a short time ago.",
    "IN_MIN_RUNTIME": "A workload waits for the queue's own quota; borrowers are in their minimum run time.",
    "NO_VICTIMS": "A workload waits for the queue's own quota; no workloads that may be evicted free it.",
    "SAVES_FIRST": "A workload waits for the queue's own quota or share; borrowers save a checkpoint first.",
    "COMES_FREE": "A workload waits for the queue's own quota or share; borrowers were evicted for it, and end.",
    "RECLAIMS": "A workload waits for the queue's own quota or share: borrowers are evicted for it.",
}
_LONGEST_CHARS = 1024
_MOST_FINDINGS, _MOST_ADVICE = 256, 64


def status_of(
    document: Object,
    engine: Engine,
    findings: Sequence[NotExpressible],
    applied: tuple[bool, str, str],
    now_s: float,
    reclaim: ReclaimDecision | None = None,
    advice: StandingAdvice | None = None,
    pace: Pace = PACE,
) -> Object:
    """``applied``: whether its queues are as declared, with the condition's reason and message; ``reclaim``: of a queue
    that takes its quota back after a grace; ``advice``: where quotas are advised. Times of changes are kept while
    nothing changes."""
    conditions = [_condition(document, APPLIED, *applied, now_s)]
    last = text(document, "status", "lastReclaimTime")
    if reclaim is not None:
        conditions.append(_condition(document, RECLAIMING, reclaim.reclaims, *_reason_texts(reclaim), now_s))
        begun = seconds_or_none(last)
        if reclaim.reclaims and (begun is None or now_s - begun >= pace.pause_s):
            last = stamp(now_s)
    conditions += _advised(document, advice, now_s)
    rows = _advice_rows(document, advice)
    result = {
        "observedGeneration": at(document, "metadata", "generation") or 0,
        "engine": engine.value,
        "notExpressible": [
            {"code": it.code, "path": it.path[:_LONGEST_CHARS], "text": it.text[:_LONGEST_CHARS]}
            for it in findings[:_MOST_FINDINGS]
        ],
        "conditions": conditions,
    }
    result |= {"quotaAdvice": rows} if rows else {}
    return result | ({"lastReclaimTime": last} if last else {})


def _advised(document: Object, advice: StandingAdvice | None, now_s: float) -> list[Object]:
    if advice is UNREAD:
        before = (item for _, item in items(document, "status", "conditions"))
        return [item for item in before if text(item, "type") == ADVISED]
    return (
        [] if advice is None else [_condition(document, ADVISED, advice.is_read, advice.reason, advice.message, now_s)]
    )


def _advice_rows(document: Object, advice: StandingAdvice | None) -> list[Object]:
    if advice is UNREAD:
        return [item for _, item in items(document, "status", "quotaAdvice")]
    name = text(document, "metadata", "name")
    rows = () if advice is None else advice.by_queue.get(name, ())
    return [_advice_row(each) for each in rows[:_MOST_ADVICE]]


def _advice_row(each: QuotaAdvice) -> Object:
    interval = {"from": each.low, "to": each.high}
    return {
        "pool": each.pool,
        "resource": each.resource,
        "quota": format_gpus(each.quota),
        "advised": format_gpus(each.advised),
        **{key: format_gpus(milli) for key, milli in interval.items() if milli is not None},
        "hoursAbove": f"{each.above_before:.0%}",
        "hoursAboveAdvised": f"{each.above_after:.0%}",
        "code": each.reason.code,
        "text": each.reason.message[:_LONGEST_CHARS],
    }


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
