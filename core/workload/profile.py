"""A dry run as a document: what kind of job ran, and what its processes were seen to use.

The unit is the *job type*: jobs of one type need the same, so a profile of one is reused for the others until it
expires. The document is flat: a reader of ``core.workload.sizing.WorkloadProfile`` finds that type's fields by their
names.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from kopt.core.units import Bytes
from kopt.core.workload.sizing import SCHEMA, WorkloadProfile

_MOST_BYTES = 1 << 50
_LONGEST_TEXT = 4096
LONGEST_COMMAND = 8192
"""Characters of a command that is kept with what it needed."""
_ANY = "*"

# What differs from run to run of the same job: where it writes, how its parts find each other, what it is called.
# As an option, or as an override of a configuration: --output_dir=…, trainer.output_dir=….
_PER_RUN = re.compile(
    r"(-{1,2}|(\w+\.)*)(output[_-]?(dir|path|folder|file)?|out[_-]?dir|log[_-]?(dir|path|file)|logging[_-]dir|save([_-](dir|path))?"
    r"|(checkpoint|ckpt)s?[_-](dir|path)|run[_-]?(name|id)|exp(eriment)?[_-]?(name|id)|job[_-]?(name|id)|tag"
    r"|wandb[_-]\w+|master[_-](addr|port)|rdzv[_-](id|endpoint)|node[_-]rank|seed|resume\w*)",
    re.IGNORECASE,
)
# One token, as --max-tokens and the like decide the memory.
_SECRET = re.compile(
    r"-{1,2}([\w-]*(secret|password|passwd|credential|api[_-]?key|access[_-]?key)[\w-]*|([\w-]*[_-])?token)",
    re.IGNORECASE,
)
_STAMP = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-?\d{2}-?\d{2}([T_-]?\d{2}[:-]?\d{2}([:-]?\d{2})?)?Z?",
    re.IGNORECASE,
)


_OUT_OF_MEMORY = re.compile(
    r"(cuda|hip|gpu|device)\b.{0,40}\bout of memory|OutOfMemoryError: (CUDA|HIP|GPU)|(cuda|hip)ErrorOutOfMemory"
    r"|hipErrorOutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|RESOURCE_EXHAUSTED: Out of memory"
    r"|Failed to (CUDA )?calloc|vram exhausted",
    re.IGNORECASE,
)


def says_out_of_memory(text: str) -> bool:
    """Whether output of a program says that GPU memory ran out: PyTorch, CUDA, HIP, cuBLAS, JAX and TensorFlow."""
    return _OUT_OF_MEMORY.search(text) is not None


def normalised_command(command: Sequence[str]) -> tuple[str, ...]:
    """The command without what differs between runs of one job type, nor secrets: these values become ``*``.

    Batch sizes, sequence lengths, precision and every other option stay as they are: they decide the memory.
    """
    result: list[str] = []
    hides_next = False
    for part in command:
        name, equals, _ = part.partition("=")
        if hides_next and not part.startswith("--"):
            result.append(_ANY)
            hides_next = False
            continue
        hidden = bool(_PER_RUN.fullmatch(name) or _SECRET.fullmatch(name)) and bool(equals or name[:1] == "-")
        hides_next = hidden and not equals
        result.append(f"{name}={_ANY}" if hidden and equals else _undated(part))
    return tuple(result)


def _undated(part: str) -> str:
    """Without time stamps; a bare number of eight digits is none but a size."""
    name, equals, value = part.rpartition("=")
    return part if value.isdecimal() else f"{name}{equals}{_STAMP.sub(_ANY, value)}"


@dataclass(frozen=True)
class JobType:
    """Image digest (or reference), command, GPU model (empty: any), GPUs per process group.

    ``command`` is normalised here. Raises ValueError without a command or a process.
    """

    image: str
    command: tuple[str, ...]
    gpu: str = ""
    world_size: int = 1

    def __post_init__(self) -> None:
        if not self.command or self.world_size < 1:
            raise ValueError("a job type has a command and at least one process")
        object.__setattr__(self, "command", normalised_command(self.command))

    @property
    def digest(self) -> str:
        """32 hexadecimal digits that tell job types apart and nothing about them."""
        parts = json.dumps([self.image, self.command, self.gpu, self.world_size], separators=(",", ":"))
        return hashlib.sha256(parts.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Spread:
    """Quantiles of a share over the run, from the first use of the GPU on; 0 to 1."""

    p50: float
    p95: float
    largest: float

    def __post_init__(self) -> None:
        if not 0 <= self.p50 <= self.p95 <= self.largest <= 1:
            raise ValueError(f"quantiles {self.p50}, {self.p95}, {self.largest} of a share do not rise from 0 to 1")

    def to_dict(self) -> dict[str, float]:
        return {"p50": round(self.p50, 4), "p95": round(self.p95, 4), "max": round(self.largest, 4)}


@dataclass(frozen=True)
class DryRun:
    """What was seen of a run. ``profile`` is the part that estimates are corrected by.

    ``capped``: it ran at the GPU's limit, so the need may be larger than what was seen. ``out_of_memory``: the run
    itself said so. ``total_bytes`` is the GPU's memory, ``gpus`` how many GPUs its processes used, ``world_size`` the
    processes of the dry run (the job's own number stands in its type), ``job_type`` that type's digest.
    """

    profile: WorkloadProfile
    job_type: str = ""
    gpus: int = 1
    world_size: int = 1
    total_bytes: Bytes | None = None
    reserved_bytes: Bytes | None = None
    activity: Spread | None = None
    bandwidth: Spread | None = None
    capped: bool = False
    out_of_memory: bool = False
    exit_status: int | None = None
    warnings: tuple[str, ...] = field(default=())

    @property
    def usable(self) -> bool:
        """Whether the peak is a need: seen at all, and not cut off by the GPU's limit."""
        return self.profile.peak_bytes > 0 and not self.capped and not self.out_of_memory

    def to_dict(self) -> dict[str, Any]:
        spreads = {"activity_quantiles": self.activity, "bandwidth_quantiles": self.bandwidth}
        return {
            "schema": SCHEMA,
            **self.profile.to_dict(),
            "job_type": self.job_type,
            "gpus": self.gpus,
            "world_size": self.world_size,
            "total_bytes": self.total_bytes,
            "reserved_bytes": self.reserved_bytes,
            **{name: spread.to_dict() if spread else None for name, spread in spreads.items()},
            "capped": self.capped,
            "out_of_memory": self.out_of_memory,
            "exit_status": self.exit_status,
            "warnings": list(self.warnings),
        }


def read_dry_run(document: Any) -> DryRun:
    """A dry run from its document, which a user's container may have written: ValueError for whatever cannot be."""
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise ValueError(f"not a profile: an object with schema {SCHEMA!r} is expected")
    warnings = document.get("warnings") or []
    if not isinstance(warnings, list) or len(warnings) > 20:
        raise ValueError("warnings are a short list of sentences")
    return DryRun(
        read_profile(document),
        _text(document, "job_type"),
        _count(document, "gpus", 1),
        _count(document, "world_size", 1),
        _memory(document, "total_bytes"),
        _memory(document, "reserved_bytes"),
        _spread(document, "activity_quantiles"),
        _spread(document, "bandwidth_quantiles"),
        _flag(document, "capped"),
        _flag(document, "out_of_memory"),
        _whole(document, "exit_status"),
        tuple([str(warning)[:_LONGEST_TEXT] for warning in warnings]),
    )


def read_profile(document: Mapping[str, Any]) -> WorkloadProfile:
    """The fields of a WorkloadProfile out of a document that may have more. Raises ValueError."""
    required = {
        field.name for field in fields(WorkloadProfile) if field.name in ("gpu", "peak_bytes", "duration_s", "samples")
    }
    if missing := sorted(required - document.keys()):
        raise ValueError(f"a profile needs {', '.join(missing)}")
    return WorkloadProfile(
        _text(document, "gpu"),
        _memory(document, "peak_bytes") or Bytes(0),
        _real(document, "duration_s") or 0.0,
        _count(document, "samples"),
        _flag(document, "steady"),
        _real(document, "activity"),
        _real(document, "bandwidth"),
        _whole(document, "steps"),
        _text(document, "source"),
    )


def _text(document: Mapping[str, Any], name: str) -> str:
    result = document.get(name) or ""
    if not isinstance(result, str) or len(result) > _LONGEST_TEXT:
        raise ValueError(f"{name} is no text of at most {_LONGEST_TEXT} characters")
    return result


def _flag(document: Mapping[str, Any], name: str) -> bool:
    result = document.get(name, False)
    if not isinstance(result, bool):
        raise ValueError(f"{name} is true or false, not {str(result)[:60]!r}")
    return result


def _whole(document: Mapping[str, Any], name: str) -> int | None:
    result = document.get(name)
    if result is not None and (isinstance(result, bool) or not isinstance(result, int) or abs(result) > _MOST_BYTES):
        raise ValueError(f"{name} is a whole number, not {str(result)[:60]!r}")
    return result


def _count(document: Mapping[str, Any], name: str, default: int = 0) -> int:
    result = _whole(document, name)
    if result is not None and result < 0:
        raise ValueError(f"{name} cannot be {result}")
    return default if result is None else result


def _memory(document: Mapping[str, Any], name: str) -> Bytes | None:
    result = _whole(document, name)
    if result is not None and result < 0:
        raise ValueError(f"{name} cannot be {result} bytes")
    return None if result is None else Bytes(result)


def _real(document: Mapping[str, Any], name: str) -> float | None:
    result = document.get(name)
    if result is None:
        return None
    if isinstance(result, bool) or not isinstance(result, int | float) or not math.isfinite(result):
        raise ValueError(f"{name} is a number, not {str(result)[:60]!r}")
    return float(result)


def _spread(document: Mapping[str, Any], name: str) -> Spread | None:
    result = document.get(name)
    if result is None:
        return None
    if not isinstance(result, Mapping):
        raise ValueError(f"{name} is an object with p50, p95 and max")
    parts = [_real(result, item) for item in ("p50", "p95", "max")]
    if None in parts:
        raise ValueError(f"{name} needs p50, p95 and max")
    return Spread(*[part or 0.0 for part in parts])
