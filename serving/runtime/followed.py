"""The runs of the clusters that a replica is asked about, in memory, by the model that answers. Used by one thread."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.prediction import ModelVersion
from kopt.core.workload.run_time import JobRun
from kopt.features.job_history import JobHistory, in_order
from kopt.models.runtime.cluster_runs import ClusterRuns, Outcome
from kopt.models.runtime.predictor import RunTimePredictor
from kopt.serving.http.sharing import KeptByCaller
from kopt.serving.runtime.table import RunTable

MOST_CLUSTERS = 32
MOST_READ = 20_000
"""Runs of a cluster that are read; older ones say little."""
_ANSWERED = 2_000
"""Of the runs that are read at once so many of the newest are answered again, which is what calibrates intervals."""


LATE_S = 600.0
"""What is told later than this after what is known already is put in its place: all is read again. So replicas answer
the same, whatever came to which of them first."""


@dataclass
class _Followed:
    change: int = 0
    newest_s: float = -math.inf
    """The last start or end that was read."""
    by_version: dict[ModelVersion, ClusterRuns] = field(default_factory=dict)


@dataclass(frozen=True)
class Changed:
    """What was new of a cluster: its runs by alias, those that changed (all of them: ``is_whole``), the number of the
    last change, and the last start or end (Unix seconds)."""

    by_alias: Mapping[str, ClusterRuns]
    runs: Sequence[JobRun]
    last: int
    newest_s: float
    is_whole: bool


class FollowedClusters:
    def __init__(self, table: RunTable, most: int = MOST_CLUSTERS) -> None:
        self._table = table
        self._kept: KeptByCaller[str, _Followed] = KeptByCaller(most)

    def knows(self, owner: str, cluster: str) -> bool:
        """Whether runs of it have been read."""
        followed = self._kept.get(owner, cluster)
        return followed is not None and followed.change > 0

    def has(self, owner: str, cluster: str, version: ModelVersion) -> bool:
        """Whether its runs are at hand, by this version of the model."""
        followed = self._kept.get(owner, cluster)
        return followed is not None and followed.change > 0 and version in followed.by_version

    def catch_up(
        self,
        owner: str,
        cluster: str,
        models: dict[str, RunTimePredictor],
        ended: Callable[[str, RunTimePredictor, Outcome], None] | None = None,
        changed: Callable[[Changed], None] | None = None,
    ) -> dict[str, ClusterRuns]:
        """A cluster's runs as the table has them, by the alias of each model; ``ended`` gets the answers about runs
        whose end was not known before, ``changed`` what was new. Blocks. Raises DatabaseError."""
        followed = self._kept.get(owner, cluster)
        versions = [model.version for model in models.values()]
        if followed is None or any(version not in followed.by_version for version in versions):
            # All over: what a new model would have answered about each run is not in what an old one has kept.
            followed = _Followed(by_version={model.version: model.cluster_runs() for model in models.values()})
        changes = self._table.since(owner, cluster, followed.change, MOST_READ)
        is_new = followed.change > 0
        if is_new and any(_last_s(run) < followed.newest_s - LATE_S for run in changes.runs):
            followed = _Followed(by_version={model.version: model.cluster_runs() for model in models.values()})
            changes, is_new = self._table.since(owner, cluster, 0, MOST_READ), False
        followed.change = changes.last
        followed.newest_s = max([followed.newest_s, *map(_last_s, changes.runs)])
        # A model that fails half way leaves nothing behind: the next question reads all over.
        self._kept.pop(owner, cluster)
        result = {}
        for alias, model in models.items():
            runs = result[alias] = followed.by_version[model.version]
            for outcome in runs.observe(changes.runs, answer_last=_ANSWERED) if changes.runs else ():
                if is_new and ended is not None:
                    ended(alias, model, outcome)
        self._kept.put(owner, cluster, followed)
        if changes.runs and changed is not None:
            changed(Changed(result, changes.runs, followed.change, followed.newest_s, is_whole=not is_new))
        return result

    def history(self, owner: str, cluster: str) -> JobHistory:
        """A cluster's runs as the table has them, without a model. Blocks. Raises DatabaseError."""
        result = JobHistory()
        for _, has_ended, run in in_order(self._table.since(owner, cluster, 0, MOST_READ).runs):
            (result.end if has_ended else result.start)(run)
        return result


def _last_s(run: JobRun) -> float:
    return run.started_s if run.ended_s is None else run.ended_s
