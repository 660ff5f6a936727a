"""The typed requests of ``/v1/checkpoint``, written before the code behind them; strict."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter

MAX_LINES = 10_000
"""Of one request; agents send a thousand."""
MAX_FILES = 4000
MAX_LISTINGS = 16
_LATEST_S = 1e11


def _printable(text: str) -> str:
    if not text.isprintable() or (text and not text.strip()):
        raise ValueError("a name is printable text and not blank")
    return text


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


UnixSeconds = Annotated[float, Field(ge=0, le=_LATEST_S, allow_inf_nan=False)]
Named = Annotated[str, Field(max_length=512), AfterValidator(_printable)]


class LineIn(_Strict):
    """A line and when it came (Unix seconds); null where nobody knows, which leaves the time in the line itself."""

    text: str
    at: UnixSeconds | None = None


def _line_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "text"
    return "line" if isinstance(value, dict | LineIn) else None


AnyLine = Annotated[Annotated[str, Tag("text")] | Annotated[LineIn, Tag("line")], Discriminator(_line_kind)]


class FileIn(_Strict):
    """An entry of a checkpoint folder; ``path`` is relative to it."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    bytes: Annotated[int, Field(ge=0, le=1 << 62)]
    modified_at: Annotated[float, Field(ge=-_LATEST_S, le=_LATEST_S, allow_inf_nan=False)]
    is_folder: bool = False
    folder: Annotated[str, Field(max_length=4096)] = ""
    """The folder's name where it was looked for in a volume, and counts once a checkpoint in it names a step that the
    job was at; empty where the job's owner named it."""
    ephemeral: bool = False
    """Whether it is gone with its pod, as in an emptyDir: it shows a write, and is no checkpoint to go back to."""
    exclusive: bool = False
    """Whether no other job writes into its volume: saves that were alike are the job's, whatever they are called."""


class ListingIn(_Strict):
    """What one looker saw in the job's checkpoint folders."""

    by: Annotated[Named, Field(min_length=1)]
    """Who looked, as the uid of a pod: each one's last listing counts beside those of the others."""
    files: Annotated[list[FileIn], Field(max_length=MAX_FILES, fail_fast=True)] | None = None
    """Null: still what this looker listed last."""
    at: UnixSeconds | None = None
    """When; now if absent."""


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
    """What lies in the job's checkpoint folder, where only one process looks at it."""
    files_at: UnixSeconds | None = None
    """When it was listed; now if absent. Without ``files``: when it was seen to be as it was listed last."""
    listings: Annotated[list[ListingIn], Field(max_length=MAX_LISTINGS, fail_fast=True)] = []
    """What lies in its checkpoint folders, where several look or nobody said where they are."""
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
