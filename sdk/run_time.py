"""``kopt.run_time(runs, queue, gpus)``: how long a job will run, by a table of what ran before, without a server.

import kopt
answer = kopt.run_time("jobs.csv", "research", 8, user="ada")
print(answer.run_seconds, answer.reasons[0].message)
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.core.settings import Settings
from kopt.core.workload.run_time import (
    JobKind,
    JobRun,
    RunTimeAnswer,
    RunTimeError,
    RunTimeQuestion,
    StepProgress,
)

if TYPE_CHECKING:
    from kopt.models.runtime.predictor import RunTimePredictor


def run_time(
    runs: Sequence[JobRun] | str | Path,
    queue: str,
    gpus: int,
    *,
    name: str = "",
    user: str = "",
    at_s: float | None = None,
    started_s: float | None = None,
    progress: StepProgress | None = None,
    cluster: str = "",
    model: "str | RunTimePredictor" = "champion",
    settings: Settings | None = None,
) -> RunTimeAnswer:
    """Quantiles of the run and of what is left of it, in seconds.

    ``runs`` are of one cluster, or a table of them (``data.jobs.runs`` says its columns; ``cluster`` names one of
    several in it). ``at_s`` is when it is asked, by default when the last of the runs started or ended;
    ``started_s`` says since when the job runs, ``progress`` what its log shows. Raises RunTimeError for a question
    that cannot be, TraceError for a table that is none, OSError.
    """
    from kopt.models.runtime.loading import load_run_time
    from kopt.models.runtime.predictor import RunTimeRequest

    history = runs_of(Path(runs), cluster) if isinstance(runs, str | Path) else runs
    predictor = load_run_time(model, settings) if isinstance(model, str) else model
    memory = predictor.cluster_runs()
    memory.observe(history, answer_last=2_000)
    if at_s is None:
        at_s = max((run.started_s if run.ended_s is None else run.ended_s for run in history), default=time.time())
        at_s = max(at_s, at_s if started_s is None else started_s)
    question = RunTimeQuestion(JobKind(queue, gpus, name, user), at_s, started_s, progress)
    return predictor.answer(RunTimeRequest(question, memory))


def runs_of(path: Path, cluster: str = "") -> Sequence[JobRun]:
    """The runs of one cluster of a table; of the only one by default. Raises as ``run_time`` does."""
    from kopt.data.jobs.runs import read_runs

    by_cluster = read_runs(path)
    if cluster in by_cluster or not by_cluster:
        return by_cluster.get(cluster, ())
    if len(by_cluster) > 1 or (cluster and "" not in by_cluster):
        raise RunTimeError(f"{path} has runs of {', '.join(sorted(by_cluster))}; name one of these clusters")
    return next(iter(by_cluster.values()))
