"""What a review is answered with."""

from dataclasses import dataclass

from kopt.cluster.admission.review import ALLOWED, Answer, Review, let_through
from kopt.cluster.runtime.tracing import TraceContext
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION, Workload
from kopt.controllers.admission.evaluation import Evaluation
from kopt.controllers.admission.mutating import Record


@dataclass(frozen=True)
class Admission:
    """An answer and what was decided on the way."""

    answer: Answer
    records: tuple[Record, ...] = ()
    trace: TraceContext | None = None


LET_THROUGH = Admission(ALLOWED)
UNJUDGED = "no rule was checked, and no queue, scheduler or size was added"
UNKNOWN_NAMESPACE = Admission(
    let_through("could not read its namespace in time", UNJUDGED, "Submit it again for an answer.")
)


def refused(record: Record) -> Admission:
    return Admission(Answer(refusal=record.message, audit=audit_annotations([record])), (record,))


def refused_opt_out(workload: Workload, review: Review, evaluation: Evaluation) -> Admission:
    text = (
        f"{OPT_OUT_ANNOTATION} on {workload.kind.resource.kind} {workload.namespace}/{workload.name}: "
        f"{review.user!r} may not take workloads out of the queues. Remove the annotation, or have the verb bypass "
        "on conformancepolicies.kaiwo.ai granted."
    )
    record = Record("opt-out", "NOT_ALLOWED", evaluation.queue_mode, text)
    return refused(record)


def audit_annotations(records: list[Record]) -> dict[str, str]:
    return {record.row: f"{record.mode}: {record.code}: {record.message}"[:500] for record in records}
