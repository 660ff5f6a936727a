"""Run times of many jobs as quantiles, in as many requests as they take."""

from collections.abc import Mapping
from dataclasses import astuple
from typing import TYPE_CHECKING

from kopt.core.workload.run_time import LEVELS, RunTimeQuantiles, RunTimeQuestion

if TYPE_CHECKING:
    from kopt.serving.client.client import AsyncPredictionClient


async def remaining_run_times(
    client: "AsyncPredictionClient", questions: Mapping[str, RunTimeQuestion], cluster: str = ""
) -> dict[str, RunTimeQuantiles]:
    """By name: of what runs the time that is left, of what has not begun its whole run time. What the endpoint refuses
    is left out. Raises as the client does."""
    from kopt.serving.contract.runtime_answers import MAX_JOBS

    result: dict[str, RunTimeQuantiles] = {}
    names = sorted(questions)
    for first in range(0, len(names), MAX_JOBS):
        part = {name: questions[name] for name in names[first : first + MAX_JOBS]}
        for job in (await client.run_times(part, cluster)).jobs:
            if job.remaining_seconds is not None:
                kind = part[job.id].kind
                result[job.id] = RunTimeQuantiles(LEVELS, astuple(job.remaining_seconds), (kind.queue, kind.gpus))
    return result
