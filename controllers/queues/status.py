"""The status of a KaiwoQueue."""

from collections.abc import Sequence
from datetime import UTC, datetime

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, text
from kopt.core.scheduling.queue_tree import Engine, NotExpressible

APPLIED = "Applied"
_LONGEST_CHARS = 1024
_MOST_FINDINGS = 256


def status_of(
    document: Object, engine: Engine, findings: Sequence[NotExpressible], applied: tuple[bool, str, str], now_s: float
) -> Object:
    """``applied``: whether its queues are as declared, with the condition's reason and message. The time of the last
    change is kept while nothing changes."""
    is_applied, reason, message = applied
    status = "True" if is_applied else "False"
    conditions = (item for _, item in items(document, "status", "conditions"))
    before: Object = next((item for item in conditions if text(item, "type") == APPLIED), {})
    since = text(before, "lastTransitionTime") if text(before, "status") == status else ""
    stamp = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {
        "type": APPLIED,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST_CHARS],
        "lastTransitionTime": since or stamp,
    }
    return {
        "observedGeneration": at(document, "metadata", "generation") or 0,
        "engine": engine.value,
        "notExpressible": [
            {"code": it.code, "path": it.path[:_LONGEST_CHARS], "text": it.text[:_LONGEST_CHARS]}
            for it in findings[:_MOST_FINDINGS]
        ],
        "conditions": [condition],
    }
