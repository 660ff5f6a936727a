"""``kopt.what_if``: what waits and use would have been with other GPUs, on the jobs that really ran.

    import kopt
    answer = kopt.what_if("jobs.csv", gpus={"h100": 64}, add_gpus={"h100": 16})
    answer.check.is_trusted, answer.figure("mean wait").change     # seconds; a table in a notebook

``kopt capacity what-if -o json`` prints ``to_dict()``.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.core.settings import Settings
from kopt.core.workload.run_time import JobRun
from kopt.sdk.run_time import runs_of
from kopt.serving.base.environment import load_settings
from kopt.simulator.what_if.answer import WhatIf
from kopt.simulator.what_if.jobs import history_of
from kopt.simulator.what_if.replay import Order, Pool
from kopt.simulator.what_if.study import Cluster, changed, study

if TYPE_CHECKING:
    from kopt.serving.client.blocking import PredictionClient

_DEADLINE_S = 30.0


def what_if(
    jobs: Sequence[JobRun] | str | Path | None = None,
    *,
    gpus: Mapping[str, int],
    add_gpus: Mapping[str, int] | None = None,
    remove_gpus: Mapping[str, int] | None = None,
    moves: Mapping[str, str] | None = None,
    quotas: Mapping[str, int] | None = None,
    quotas_now: Mapping[str, int] | None = None,
    prices: Mapping[str, float] | None = None,
    order: str = "",
    by_user: bool = False,
    cluster: str = "",
    settings: Settings | None = None,
) -> WhatIf:
    """Figures as it is and as it would be, with intervals.

    ``jobs`` are of one cluster, or a table of them (``data.jobs.runs`` says its columns), by default those that the
    endpoint was sent of ``cluster``. ``gpus`` are those that each pool had, ``prices`` of a GPU-hour. ``order`` is
    fifo, best-effort, backfill or fair, by default the one that agrees best with the recorded waits. Raises
    WhatIfError, TraceError for a table that is none, RunTimeError, OSError, EndpointFailure.
    """
    as_is = Cluster({name: Pool(number, quotas_now or {}) for name, number in gpus.items()}, prices=prices or {})
    would_be = changed(as_is, add=add_gpus, remove=remove_gpus, moves=moves, quotas=quotas)
    if jobs is None:
        runs: Sequence[JobRun] = _all_of_endpoint(settings or load_settings(), cluster)
    else:
        runs = runs_of(Path(jobs), cluster) if isinstance(jobs, str | Path) else jobs
    return study(history_of(runs), as_is, would_be, order=Order(order) if order else None, by_user=by_user)


def pages_of_endpoint(client: "PredictionClient", cluster: str) -> Iterator[list[JobRun]]:
    """All jobs that it was sent of a cluster, in the order in which they became known. Raises as ``client.runs`` does,
    and RunTimeError."""
    page = client.runs(cluster)
    while page.runs:
        yield [item.run for item in page.runs]
        page = client.runs(cluster, page.last)


def _all_of_endpoint(settings: Settings, cluster: str) -> list[JobRun]:
    from kopt.serving.client.blocking import PredictionClient

    with PredictionClient(settings.endpoint, deadline_s=_DEADLINE_S) as client:
        return [run for page in pages_of_endpoint(client, cluster) for run in page]
