"""The patches of Workloads; every hold says how it is undone."""

import json

from kopt.cluster.client.resources import KUEUE_WORKLOADS, Object
from kopt.cluster.holds.hold import hold, pass_on
from kopt.cluster.objects.custom.reservation import WAITS_ANNOTATION
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION, notice_text
from kopt.controllers.reservations.views import HOLDER, MINE, ObservedWorkload
from kopt.core.scheduling.eviction import Cause, Notice
from kopt.core.times import stamp

_LONGEST = 900


def kept_from_start(each: ObservedWorkload, why: str, now_s: float) -> Object:
    """The patch that keeps a pending Workload from starting. Raises HoldError."""
    return _held(each, why, now_s)


def stopped(each: ObservedWorkload, for_whom: str, why: str, now_s: float) -> Object:
    """The patch that stops a running Workload, with the notice that says for whom. Raises HoldError."""
    changes = _held(each, why, now_s)
    notice = Notice(MINE, Cause.PREEMPTED, for_whom, now_s, why[:_LONGEST])
    changes["metadata"]["annotations"][EVICTING_ANNOTATION] = notice_text(notice, each.workload.uid)
    return changes


def released(each: ObservedWorkload) -> Object:
    """The patch that lets it start again, or makes the next holder hold it."""
    changes = pass_on(KUEUE_WORKLOADS, each.document)
    annotations = changes["metadata"].get("annotations") or {}
    changes["metadata"]["annotations"] = annotations | {EVICTING_ANNOTATION: None, WAITS_ANNOTATION: None}
    return changes


def _held(each: ObservedWorkload, why: str, now_s: float) -> Object:
    changes = hold(KUEUE_WORKLOADS, each.document, HOLDER)
    reason = {"reason": why[:_LONGEST], "since": stamp(now_s)}
    changes["metadata"]["annotations"][WAITS_ANNOTATION] = json.dumps(reason, ensure_ascii=False)
    return changes
