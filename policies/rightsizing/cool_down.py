"""When a workload may be changed again: one change at a time, and not soon after the last."""

from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.units import format_span
from kopt.core.workload.rightsizing import AnyRecord, Outcome


@dataclass(frozen=True)
class CoolDown:
    """Seconds from the end of one change to the next of the workload."""

    after_kept_s: float = 1800.0
    """Any change: what comes next is compared with step times after this one."""
    after_undone_s: float = 86_400.0
    """What was undone: the same lever of the same container, or the width."""


def cooling_down(
    history: Sequence[AnyRecord], subject: str, now_s: float, settings: CoolDown = CoolDown()
) -> Reason | None:
    """Why ``subject`` may not be changed now; None where it may."""
    for record in history:
        if record.outcome is Outcome.OPEN:
            return Reason(
                "CHANGE_IS_OPEN",
                f"A change of {record.resize.subject} is neither kept nor undone; `kopt rightsize undo` takes it back.",
            )
        is_same = record.resize.subject == subject
        rest_s = settings.after_undone_s if record.outcome is Outcome.UNDONE and is_same else settings.after_kept_s
        left_s = rest_s - (now_s - (record.ended_s or record.at_s))
        if left_s > 0:
            return Reason(
                "COOLING_DOWN",
                f"The last change of {record.resize.subject} was {record.outcome}; the next one may be in "
                f"{format_span(left_s)}.",
                {"left_s": left_s},
            )
    return None
