"""The typed requests and answers of ``/v1``, written before the code behind them.

Requests are strict: unknown fields, numbers as text and booleans as numbers are refused, and every list has a bound.
Gaps in a history are ``null`` (or ``NaN``). What the bounds here cannot say (times in order, demand not negative) is
checked in ``serving.histories``, with the same field paths.
"""

import itertools
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    TypeAdapter,
    model_validator,
)

from kopt.serving.contract.common import (
    DEFAULT_HORIZONS_S,
    DEFAULT_QUANTILES,
    MAX_ARGUMENTS,
    MAX_COMMAND,
    MAX_HORIZONS,
    MAX_POINTS,
    MAX_QUANTILES,
    MAX_SCRIPT,
    MAX_SERIES,
    MAX_TENANTS,
    SCHEMA,
    ReasonOut,
)

N = TypeVar("N", int, float)


def _printable(text: str) -> str:
    if not text.isprintable() or not text.strip():
        raise ValueError("a name is printable text and not blank")
    return text


def _rising(numbers: list[N]) -> list[N]:
    if any(after <= before for before, after in itertools.pairwise(numbers)):
        raise ValueError("must be in rising order without repeats")
    return numbers


Name = Annotated[str, Field(min_length=1, max_length=253), AfterValidator(_printable)]
Namespace = Annotated[str, Field(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Horizon = Annotated[int, Field(ge=60, le=86_400)]
Quantile = Annotated[float, Field(ge=0.01, le=0.999, allow_inf_nan=False)]
# fail_fast: one error for a list of a million wrong items, not a million errors.
Seconds = Annotated[float, Field(allow_inf_nan=False)]
Times = Annotated[list[Seconds], Field(min_length=1, max_length=MAX_POINTS, fail_fast=True)]
Amounts = Annotated[list[float | None], Field(min_length=1, max_length=MAX_POINTS, fail_fast=True)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SeriesIn(_Strict):
    """One service. With ``t`` and ``value`` the history counts; without them the feature store's newest row does."""

    name: Name
    t: Times | None = None
    """Start of each bucket in seconds, rising and on one step; Unix time where the calendar is to count."""
    value: Amounts | None = None
    """Demand in each bucket; null is a gap in collection, not zero."""
    in_tok: Amounts | None = None
    out_tok: Amounts | None = None
    tenants: Annotated[dict[Name, Amounts], Field(max_length=MAX_TENANTS)] | None = None
    """Demand by tenant, in the same buckets."""
    pool: Name | None = None
    """The pool of GPUs this service draws on; its own if absent. For ``/v1/recommendations``."""
    gpus: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    """GPUs the service holds now."""
    min_gpus: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """Guaranteed minimum, never lent."""

    @model_validator(mode="after")
    def _times_and_values_together(self) -> "SeriesIn":
        if (self.t is None) != (self.value is None):
            raise ValueError("t and value come together, or neither does")
        return self


class DemandRequest(_Strict):
    """Forecast the demand of services, and of GPUs where ``capacity_per_gpu`` is given."""

    series: Annotated[list[SeriesIn], Field(min_length=1, max_length=MAX_SERIES)]
    unit: Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_printable)] = "requests"
    capacity_per_gpu: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)] | None = None
    """What one GPU serves in one bucket of the history, in its unit: value / capacity_per_gpu = GPUs."""
    horizons_s: Annotated[
        list[Horizon],
        Field(min_length=1, max_length=MAX_HORIZONS, default=list(DEFAULT_HORIZONS_S)),
        AfterValidator(_rising),
    ]
    quantiles: Annotated[
        list[Quantile],
        Field(min_length=1, max_length=MAX_QUANTILES, default=list(DEFAULT_QUANTILES)),
        AfterValidator(_rising),
    ]
    now_s: Annotated[float, Field(ge=-1e12, le=1e12, allow_inf_nan=False)] | None = None
    """The caller's time on the clock of ``t``; with it, metrics that have gone stale are noticed."""
    replay: bool = False
    """A question about a moment that has passed: answered by the model, but no part of the record of predictions."""


DEMAND_REQUEST = TypeAdapter(DemandRequest)


class PushRequest(_Strict):
    """Complete buckets of five minutes of one service's demand, for the feature store."""

    t: Times
    """Start of each bucket: Unix seconds, multiples of 300, rising, none that has not ended yet."""
    value: Amounts
    """Demand in each bucket; null where it is unknown, which takes nothing away that is known."""


PUSH_REQUEST = TypeAdapter(PushRequest)
SERVICE_NAME: TypeAdapter[str] = TypeAdapter(Name)


Word = Annotated[str, Field(max_length=MAX_COMMAND)]


class ScriptWorkload(_Strict):
    """A script's text. It is parsed in a confined process and never run by the endpoint."""

    script: Annotated[str, Field(min_length=1, max_length=MAX_SCRIPT)]
    arguments: Annotated[list[Word], Field(max_length=MAX_ARGUMENTS)] = []
    name: Name = "script.py"


def _workload_kind(value: Any) -> str:
    if isinstance(value, str):
        return "command"
    if isinstance(value, list):
        return "words"
    is_script = isinstance(value, ScriptWorkload) or (isinstance(value, dict) and "script" in value)
    return "script" if is_script else "manifest"


WorkloadIn = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_COMMAND), Tag("command")]
    | Annotated[list[Word], Field(min_length=1, max_length=MAX_ARGUMENTS), Tag("words")]
    | Annotated[ScriptWorkload, Tag("script")]
    | Annotated[dict[str, Any], Tag("manifest")],
    Discriminator(_workload_kind),
]


StepGpus = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}$")]
StepSeconds = Annotated[float, Field(gt=0, lt=1e7, allow_inf_nan=False)]


class SizingRequest(_Strict):
    """How much GPU memory a workload needs."""

    workload: WorkloadIn
    """A command line, its words, a script's text, or a manifest: a pod, a pod template or what holds one."""
    profile: dict[str, Any] | None = None
    """A dry run (``kopt profile -o json``); remembered for the job type."""
    trace: dict[str, Any] | None = None
    """What the script's run on a fake device said (``models.sizing.summary``); remembered for the job type."""
    gpu: Annotated[str, Field(min_length=1, max_length=120)] | None = None
    """The GPU it is meant for; else the workload's node selector, else an A100 with 80 GB."""
    world_size: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Processes, where the workload does not say."""
    nodes: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """Pods of an MPI job that its command's processes are spread over; with ``slots_per_node``."""
    slots_per_node: Annotated[int, Field(ge=1, le=65_536)] | None = None
    """The most processes that ``mpirun`` starts on each of them (an MPIJob's ``slotsPerWorker``)."""
    name: Name | None = None
    """How recommendations call it; the manifest's name if absent."""
    namespace: Namespace | None = None
    """Where it runs. What was sent for a namespace counts for all who ask about it, the admission webhook among them;
    where callers authenticate, who tells needs the right to patch its Jobs, and who asks to list them. Without one,
    what the caller sent itself counts."""
    executor: Literal["none", "kai", "hami", "volcano"] | None = None
    """What hands out shares of a GPU in its cluster; absent: not known."""
    scaling: bool = False
    """Whether to wait, within the deadline, for how many of its GPUs are useful; else that is in the answer once it is
    known."""
    threshold: Annotated[float, Field(gt=0, le=1)] = 0.7
    """The marginal efficiency from which a GPU is useful."""
    measured_steps: Annotated[dict[StepGpus, StepSeconds], Field(max_length=16)] = {}
    """Seconds of a step in the job's own runs by number of GPUs: the curve follows them. Remembered for jobs that train
    the same model on the same batches and GPUs."""


SIZING_REQUEST = TypeAdapter(SizingRequest)


class StatusResponse(BaseModel):
    schema_: Literal["kopt/v1"] = Field(SCHEMA, alias="schema")
    status: Literal["live", "ready", "not ready"]
    reasons: list[ReasonOut] = []


class FieldErrorOut(BaseModel):
    field: str
    """Dotted path in the request: ``series.0.value.17``."""
    message: str


class ProblemOut(BaseModel):
    """An RFC 9457 problem document (``application/problem+json``)."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    """The detail once more, under the name that the Open Inference Protocol gives it."""
    errors: list[FieldErrorOut] = []
