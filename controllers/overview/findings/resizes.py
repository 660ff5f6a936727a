"""Changes of a job's CPU, memory and width while it ran, and what came of each."""

from collections.abc import Iterator

from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.fields import at
from kopt.cluster.objects.resize_history import changes_of
from kopt.controllers.overview.findings import order as ranks
from kopt.controllers.overview.job import Finding, JobSnapshot
from kopt.controllers.overview.text import ago, sentence
from kopt.core.units import counted
from kopt.core.workload.rightsizing import AnyRecord, Outcome, WidthChange

_MOST, _LONGEST = 3, 200
_ENDS = {Outcome.KEPT: "it stays", Outcome.UNDONE: "it was taken back"}


def resized(job: JobSnapshot) -> Iterator[Finding]:
    """The newest changes of the pods that it has, and of its width; one for all pods that bear it."""
    bearing: dict[tuple[float, str], list[AnyRecord]] = {}
    # A pod may be the root itself.
    objects = {str(at(each, "metadata", "uid")): each for each in (job.root.document, *job.pods)}
    for document in objects.values():
        try:
            records = changes_of(document)
        except AnnotationError:
            continue
        for record in records:
            bearing.setdefault((record.at_s, record.resize.text), []).append(record)
    for at_s, change in sorted(bearing, reverse=True)[:_MOST]:
        yield _finding(change, bearing[at_s, change], job)


def _finding(change: str, records: list[AnyRecord], job: JobSnapshot) -> Finding:
    open_ = next((record for record in records if record.outcome is Outcome.OPEN), None)
    record = open_ or records[0]
    of = "" if isinstance(record.resize, WidthChange) else f", of {counted(len(records), 'pod')}"
    began = f"Its {change[:_LONGEST]}{of}, {ago(record.at_s, job.now_s)}"
    if open_ is not None:
        text = f"{began}: its steps are being watched, and it is taken back where they are slower."
        return Finding(ranks.REQUESTED, "RESIZE_OPEN", text, job.root.label, record.at_s)
    text = f"{began}; {_ENDS[record.outcome]}. {sentence(record.reason) if record.reason else ''}".rstrip()
    return Finding(ranks.HISTORY, "RESIZED", text, job.root.label, record.at_s)
