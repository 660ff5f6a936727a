"""The typed requests and answers of ``/v1/checkpoint``, written before the code behind them; strict."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

from kopt.serving.contract.common import SCHEMA, ModelOut

MAX_LINES = 10_000
"""Of one request; agents send a thousand."""
MAX_FILES = 4000
_LATEST_S = 1e11


def _printable(text: str) -> str:
    if not text.isprintable() or (text and not text.strip()):
        raise ValueError("a name is printable text and not blank")
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


Moment = Annotated[float, Field(ge=0, le=_LATEST_S, allow_inf_nan=False)]
Named = Annotated[str, Field(max_length=512), AfterValidator(_printable)]


class LineIn(_Strict):
    """A line and when it came (Unix seconds); null where nobody knows, which leaves the time in the line itself."""

    text: str
    at: Moment | None = None


def _line_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "line" if isinstance(value, dict | LineIn) else None


AnyLine = Annotated[Annotated[str, Tag("text")] | Annotated[LineIn, Tag("line")], Discriminator(_line_kind)]


class FileIn(_Strict):
    """An entry of the checkpoint folder; ``path`` is relative to it."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    bytes: Annotated[int, Field(ge=0, le=1 << 62)]
    modified_at: Annotated[float, Field(ge=-_LATEST_S, le=_LATEST_S, allow_inf_nan=False)]
    is_folder: bool = False


class CheckpointRequest(_Strict):
    """Lines of a job's log, in their order; none asks for its state now."""

    job: Annotated[Named, Field(min_length=1)]
    """``namespace/name``. What is known of a job is kept for the caller who sends its lines."""
    source: Named = ""
    """Which of the job's containers printed the lines: ``pod/container``."""
    first: Annotated[int, Field(ge=1, le=1 << 53)] | None = None
    """Number of the first line given here, counted per source since its log began. With it sending again is harmless,
    and lines that never came are noticed. Without it the lines follow those before."""
    lines: Annotated[list[AnyLine], Field(max_length=MAX_LINES, fail_fast=True)] = []
    """Texts came just now; ``{"text", "at"}`` says when."""
    gpus: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None
    """That stop when the job is killed; 1 until it is said."""
    files: Annotated[list[FileIn], Field(max_length=MAX_FILES, fail_fast=True)] | None = None
    """What lies in the job's checkpoint folder."""
    files_at: Moment | None = None
    """When it was listed; now if absent."""
    annotations: (
        Annotated[
            dict[Annotated[str, Field(max_length=512)], Annotated[str, Field(max_length=4096)]], Field(max_length=256)
        ]
        | None
    ) = None
    """Of the job's pods: ``kaiwo.ai/last-checkpoint-time`` and ``-step`` count as a durable checkpoint."""
    deadline_ms: Annotated[float, Field(ge=0, le=60_000, allow_inf_nan=False)] | None = None
    """As the header ``X-Kopt-Deadline-Ms``; the shorter counts."""


CHECKPOINT_REQUEST = TypeAdapter(CheckpointRequest)


class JobStatusOut(BaseModel):
    """``core.checkpoint.JobStatus``: where the job is, may it be killed now, and what would be lost. Times are Unix
    seconds; nulls where nothing is known. Intervals hold nine times in ten."""

    state: str
    safe: bool
    """A durable checkpoint exists, no write is open, and the state is known."""
    evidence: bool
    confidence: float
    step: int | None
    last_durable_step: int | None
    last_durable_at: float | None
    seconds_since_durable: float | None
    work_at_risk_gpu_seconds: float | None
    work_at_risk_low: float | None
    work_at_risk_high: float | None
    next_safe_seconds: float | None
    next_safe_low: float | None
    next_safe_high: float | None
    next_checkpoint_seconds: float | None
    next_checkpoint_low: float | None
    next_checkpoint_high: float | None
    evidence_line: int | None
    """Counts the lines that were read of all sources, from 1."""
    evidence_text: str
    """Cut and without what looks like a secret."""
    reason: str
    writers: int
    last_durable_claimed: bool
    """The job's own pods say by annotation that there is this checkpoint; no line of the log has shown it."""


class CheckpointResponse(JobStatusOut):
    schema_: Literal["kopt/v1"] = Field(SCHEMA, alias="schema")
    job: str
    lines: int
    """Read so far, of all sources."""
    next: dict[str, int]
    """Number of the line that is expected next, per source."""
    missed: dict[str, int]
    """Lines that never came, per source. Until the next durable checkpoint the job is not called safe."""
    notes: list[str]
    """What was sent but could not be used."""
    model: ModelOut
    fallback: bool


class ChangeOut(BaseModel):
    """A moment at which the job's state, or whether it is safe, became another."""

    at: float
    state: str
    safe: bool
    line: int | None
    text: str


class JobOut(JobStatusOut):
    job: str
    heard_at: float
    """When the job was last heard of."""
    gpus: float
    lines: int
    missed: dict[str, int]
    changes: list[ChangeOut]
    """The longest-lasting states and all around writes, oldest first; bounded."""


class CheckpointsResponse(BaseModel):
    schema_: Literal["kopt/v1"] = Field(SCHEMA, alias="schema")
    jobs: list[JobOut]
    """Heard of within a day, the latest first."""
    now: float
