"""``kopt.classify_log(lines)``: what each line of a training log says, and whether the job could be killed after it.

    import kopt
    log = kopt.classify_log(open("train.log"))
    print(log.status.safe, log.status.last_durable_step, log.status.reason)

``kopt logs classify -o json`` prints ``LogLine.to_dict()``, a line each.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.core.redaction import redact
from kopt.core.settings import Settings
from kopt.core.workload.checkpoint import JobStatus, LineLabel
from kopt.formats.joblog import LineSplitter

if TYPE_CHECKING:
    from kopt.models.checkpoint.predictor import CheckpointPredictor
    from kopt.models.checkpoint.session import Session

BATCH = 1000
_PIECE = 1 << 20
_FIELDS = (
    "state",
    "safe",
    "evidence",
    "confidence",
    "step",
    "last_durable_step",
    "seconds_since_durable",
    "work_at_risk_gpu_seconds",
    "work_at_risk_low",
    "work_at_risk_high",
    "evidence_line",
    "reason",
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line, what it says, and where the job is after it. ``number`` counts from 1; ``at_s`` as far as it is known."""

    number: int
    text: str
    label: LineLabel
    status: JobStatus
    at_s: float | None

    def to_dict(self) -> dict[str, Any]:
        status = self.status.to_dict()
        return {"line": self.number, "label": self.label.value, **{name: status[name] for name in _FIELDS}}


@dataclass(frozen=True)
class ClassifiedLog:
    """All lines of a log. ``status`` is the job's after the last."""

    lines: tuple[LogLine, ...]
    status: JobStatus

    def __iter__(self) -> Iterator[LogLine]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def changes(self) -> tuple[LogLine, ...]:
        """The lines after which the state, or whether it is safe, is another than before."""
        log_lines: list[LogLine] = []
        for line in self.lines:
            if not log_lines or (line.status.state, line.status.safe) != (
                log_lines[-1].status.state,
                log_lines[-1].status.safe,
            ):
                log_lines.append(line)
        return tuple(log_lines)

    def to_dict(self) -> dict[str, Any]:
        return {"schema": "kopt/v1", "status": self.status.to_dict(), "lines": [line.to_dict() for line in self.lines]}

    def _repr_html_(self) -> str:
        """The changes as a table for notebooks; what the log says is escaped."""
        head = "".join(f"<th>{text}</th>" for text in ("line", "state", "safe", "step", "says"))
        rows = "".join(
            "<tr>"
            + "".join(
                f"<td>{escape(text)}</td>"
                for text in (
                    str(log_line.number),
                    log_line.status.state.value,
                    "yes" if log_line.status.safe else "no",
                    "–" if log_line.status.step is None else str(log_line.status.step),
                    redact(log_line.text)[:120],
                )
            )
            + "</tr>"
            for log_line in self.changes
        )
        caption = escape(f"{len(self.lines):,} lines; {self.status.reason}")
        return f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def classify_log(
    lines: Iterable[str] | str | bytes | Path,
    *,
    gpus: int = 1,
    arrivals_s: Sequence[float | None] | None = None,
    model: "str | CheckpointPredictor" = "champion",
    settings: Settings | None = None,
) -> ClassifiedLog:
    """What each line says and the job's state after it.

    ``lines``: lines, the log's whole text, or a path (``.gz`` too). ``arrivals_s``: Unix time at which each line came;
    without it times are those in the lines. ``gpus`` stop when the job is killed. ``model`` is an alias, a version,
    ``shipped`` or a loaded predictor; without a registry on this machine the shipped model answers.

    Raises OSError for a path that cannot be read, RegistryError or ArtefactError for a model that is not there.
    """
    session = (load(model, settings) if isinstance(model, str) else model).session(gpus)
    texts = _texts(lines)
    log_lines: list[LogLine] = []
    times = None if arrivals_s is None else iter(arrivals_s)
    while batch := list(itertools.islice(texts, BATCH)):
        came = None if times is None else list(itertools.islice(times, len(batch)))
        if came is not None and len(came) != len(batch):
            raise ValueError(f"there are {len(log_lines) + len(came)} arrivals, but more lines")
        log_lines += read(session, batch, came)
    now_s = None if arrivals_s is None or not log_lines else log_lines[-1].at_s
    return ClassifiedLog(tuple(log_lines), session.status(now_s))


def load(model: str = "champion", settings: Settings | None = None) -> "CheckpointPredictor":
    """The checkpoint predictor that ``model`` names, verified; MLflow is asked only where there is a registry."""
    from kopt.models.checkpoint.predictor import CheckpointPredictor
    from kopt.models.registry.loading import load_as

    return load_as(CheckpointPredictor, "checkpoint", model, settings)


def read(
    session: "Session",
    texts: Sequence[str],
    arrivals_s: Sequence[float | None] | None = None,
    *,
    changes: bool = False,
) -> Iterator[LogLine]:
    """Each line with the state after it; with ``changes`` the first, and those after which it is another. Use it all
    up."""
    labels, last = session.read(texts, arrivals_s), None
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if changes:
            now = (session.machine.state, session.safe)
            if now == last:
                continue
            last = now
        now_s = None if arrivals_s is None else arrivals_s[number]
        yield LogLine(session.lines, text, label, session.status(now_s), session.machine.last_at_s)


def pieces(path: Path) -> Iterator[bytes]:
    """A file's bytes, unpacked where it is gzip's. Raises OSError, EOFError or zlib.error where it is damaged."""
    import gzip

    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        source = gzip.GzipFile(fileobj=file) if packed else file
        while piece := source.read(_PIECE):
            yield piece


def _texts(lines: Iterable[str] | str | bytes | Path) -> Iterator[str]:
    if isinstance(lines, str | bytes | Path):
        whole: Iterable[bytes]
        if isinstance(lines, Path):
            whole = pieces(lines)
        else:
            whole = (lines.encode("utf-8", "replace") if isinstance(lines, str) else lines,)
        splitter = LineSplitter()
        for piece in whole:
            yield from (line.text for line in splitter.feed(piece))
        yield from (line.text for line in splitter.close())
        return
    # Lines of an open file have their ends still.
    yield from (line.rstrip("\r\n") for line in lines)
