"""A diagnosis in lines for people."""

from kopt.controllers.overview.text import since, span
from kopt.core.scheduling.diagnosis import Diagnosis, StartEstimate


def sentences(diagnosis: Diagnosis, now_s: float) -> list[str]:
    """What binds, what would help, when it starts; headings only where something follows."""
    lines = []
    if diagnosis.causes:
        lines.append(f"What binds ({diagnosis.scheduler}):")
        for cause in diagnosis.causes:
            lines.append(f"  {cause.code}{since(cause.since_s, now_s)}: {cause.message}")
    if diagnosis.changes:
        lines.append("It would run with any of these, each tried on the cluster as it is:")
        lines += [f"  {change.message}" for change in diagnosis.changes]
    start = start_sentence(diagnosis.start)
    return [*lines, start] if start else lines


def start_sentence(start: StartEstimate) -> str:
    """``It starts in 12 min (half of the draws), in 40 min (nine of ten).``"""
    why = f" {start.reason.message}" if start.reason is not None else ""
    if start.p50_s is None:
        return f"When it starts is not known.{why}" if why else ""
    p90 = "nobody knows when in nine of ten" if start.p90_s is None else f"nine of ten: in {span(start.p90_s)}"
    return f"Expected start: in {span(start.p50_s)} ({p90}).{why}"
