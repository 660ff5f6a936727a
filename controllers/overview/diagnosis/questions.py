"""Whose run times decide when a workload starts: everything that holds GPUs, and everything that waits for them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.progress import progress_of
from kopt.cluster.workloads.runs import kind_of_pods, kind_of_workload, run_of_workload
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.starts import RunTimes
from kopt.core.reason import Reason
from kopt.core.scheduling.diagnosis import PredictedStart, StartEstimate
from kopt.core.times import seconds_or_none
from kopt.core.workload.run_time import RunTimeQuestion


class NoPredictions(Exception):
    """Nobody answers questions about run times now; ``reason`` is for the reader."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.message)
        self.reason = reason


class Predictions(Protocol):
    """Who knows run times. Both methods raise NoPredictions."""

    async def run_times(self, questions: Mapping[str, RunTimeQuestion]) -> RunTimes:
        """By the name of the workload; what nothing is known of is left out."""
        ...

    async def calibrated(self, starts: Sequence[PredictedStart]) -> Mapping[str, StartEstimate]:
        """Predicted starts, by job, as those of their queues before came true. They are kept for that."""
        ...


def questions_of(books: ClusterBooks, now_s: float) -> dict[str, RunTimeQuestion]:
    """By ``namespace/name`` of a workload, as in ``RunTimes``. Nothing in the objects makes this raise."""
    result: dict[str, RunTimeQuestion] = {}
    for key, workload in books.workloads.items():
        document = workload.document
        run = run_of_workload(document)
        if run is not None and run.ended_s is None:
            progress = progress_of([pod for pod, _ in books.bound.get("/".join(key), ())])
            result["/".join(key)] = RunTimeQuestion(run.kind, now_s, min(run.started_s, now_s), progress, run.job)
            continue
        queue = books.local_queues.get((key[0], workload.queue), "")
        if (kind := kind_of_workload(document, queue)) is not None:
            result["/".join(key)] = RunTimeQuestion(kind, now_s)
    pods_by_name: dict[str, list[Object]] = defaultdict(list)
    for name, bound in books.bound.items():
        pods_by_name[name] += [pod for pod, _ in bound]
    for pod in books.unplaced:
        pods_by_name[books.name_of(pod)].append(pod)
    for name, pods in pods_by_name.items():
        kind = None if name in result else kind_of_pods(pods, name.partition("/")[2])
        if kind is not None:
            begun = [since_s for pod in pods if (since_s := seconds_or_none(text(mapping(pod, "status"), "startTime")))]
            since_s = min([*begun, now_s]) if begun else None
            result[name] = RunTimeQuestion(kind, now_s, since_s, progress_of(pods) if begun else None)
    return result
