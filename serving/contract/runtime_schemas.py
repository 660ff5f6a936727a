"""The typed requests of ``/v1/runtime``; strict."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kopt.core.workload.run_time import MAX_GPUS
from kopt.serving.contract.runtime_answers import MAX_JOBS

MAX_RUNS = 5_000
MAX_STEP_TIMES = 1_000
_MOST_S = 1e10


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Time = Annotated[float, Field(ge=-_MOST_S, le=_MOST_S, allow_inf_nan=False)]
Word = Annotated[str, Field(max_length=253)]
Job = Annotated[str, Field(min_length=1, max_length=512)]
Cluster = Annotated[str, Field(max_length=253)]
Gpus = Annotated[int, Field(ge=0, le=MAX_GPUS)]
StepTime = Annotated[float, Field(gt=0, le=1e7, allow_inf_nan=False)]


class ProgressIn(_Strict):
    """What the job's log shows."""

    step: Annotated[int, Field(ge=0, le=1 << 53)]
    steps: Annotated[int, Field(ge=1, le=1 << 53)]
    """Of the whole run; at least ``step``."""
    at_s: Time
    """When the last step was done, in Unix seconds."""
    step_seconds: Annotated[list[StepTime], Field(min_length=1, max_length=MAX_STEP_TIMES, fail_fast=True)]
    """What each of the last steps took, oldest first."""


class RunTimeRequestIn(_Strict):
    """How long will such a job run, or go on running?"""

    queue: Word
    gpus: Gpus
    name: Word = ""
    """The type of the job, what is run again and again; not the name of one object."""
    user: Word = ""
    cluster: Cluster = ""
    """Whose runs it is compared with; the caller's clusters share nothing."""
    job: Annotated[str, Field(max_length=512)] = ""
    """As it was given to ``/v1/runtime/runs``, of a job that runs."""
    started_s: Time | None = None
    """Unix seconds, of a job that runs."""
    at_s: Time | None = None
    """When it is asked, in Unix seconds; now if absent."""
    progress: ProgressIn | None = None
    deadline_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = None
    """As the header ``X-Kopt-Deadline-Ms``; the shorter counts."""


class AskedJobIn(_Strict):
    """One of many jobs; see ``RunTimeRequestIn``."""

    id: Job
    """Of the answer."""
    queue: Word
    gpus: Gpus
    name: Word = ""
    user: Word = ""
    job: Annotated[str, Field(max_length=512)] = ""
    started_s: Time | None = None
    progress: ProgressIn | None = None


class RunTimesRequest(_Strict):
    """What is left of many jobs, or how long they will run where they have not started."""

    cluster: Cluster = ""
    at_s: Time | None = None
    """When it is asked, in Unix seconds; now if absent."""
    jobs: Annotated[list[AskedJobIn], Field(min_length=1, max_length=MAX_JOBS, fail_fast=True)]
    deadline_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = None


class RunIn(_Strict):
    """One run of a job; sent when it starts, and again when it has ended."""

    job: Job
    queue: Word
    gpus: Gpus
    name: Word = ""
    user: Word = ""
    started_s: Time
    ended_s: Time | None = None
    """Absent while it goes on."""
    interrupted: bool = False
    """It was preempted or evicted at ``ended_s``; its next start is another run."""
    submitted_s: Time | None = None
    """Since when it had waited; absent where that is not known."""
    pool: Word = ""
    """The GPUs that it ran on, by their ResourceFlavor or node pool."""


class RunsRequest(_Strict):
    """Runs that started or ended. Sending again is harmless; an end that is known stays."""

    cluster: Cluster = ""
    runs: Annotated[list[RunIn], Field(min_length=1, max_length=MAX_RUNS, fail_fast=True)]
    deadline_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = None


Wait = Annotated[float, Field(ge=0, le=_MOST_S, allow_inf_nan=False)]


class StartIn(_Strict):
    """A start that was predicted by drawing run times; it is compared with the one that comes."""

    job: Job
    """The part before the slash of what ``/v1/runtime/runs`` gets of it: the uid of its Workload, or of its Job."""
    queue: Word
    at_s: Time
    """When it was predicted, in Unix seconds."""
    p50_s: Wait
    """From then on; half of the draws start by then."""
    p90_s: Wait


class StartsRequest(_Strict):
    """Predicted starts. The first of each wait is kept; sending again is harmless."""

    cluster: Cluster = ""
    starts: Annotated[list[StartIn], Field(min_length=1, max_length=MAX_JOBS, fail_fast=True)]
    deadline_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = None


RUNTIME_REQUEST = TypeAdapter(RunTimeRequestIn)
RUN_TIMES_REQUEST = TypeAdapter(RunTimesRequest)
RUNS_REQUEST = TypeAdapter(RunsRequest)
STARTS_REQUEST = TypeAdapter(StartsRequest)
