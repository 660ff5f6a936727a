"""Labelled logs from folders: excerpts (``labels.jsonl`` beside ``logs/``) and the recorded corpus (``records.jsonl``).

Both are JSON lines, one record per log. Excerpts were labelled by readers; records by the file system (ADR 15).
"""

import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopt.core.checkpoint import LineLabel
from kopt.formats.joblog import LineSplitter

_UNTOLD = ("truncated", "next", "none", "failed", "killed")
_OURS = "MIT"
_CLOCK_S = 0.002
"""Things that happened so close to each other may have been noted in either order (ADR 15)."""


class LogDataError(ValueError):
    """A folder of labelled logs that cannot be used; the message names the file and what is wrong."""


@dataclass(frozen=True)
class Write:
    """A checkpoint being written, by the arrivals' clock; ``step`` where its name tells one."""

    unit: str
    start_s: float
    end_s: float
    step: int | None
    complete: bool = True


@dataclass(frozen=True)
class LabelledLog:
    """One log: its lines, the labels of those that were labelled (by number, from 1), and where it comes from.

    ``spans``: first and last lines during which a checkpoint was being written; ``completions``: lines by which one was
    known to be durable. ``arrivals_s`` (one per line) and ``writes`` are those of recordings; excerpts have none.
    """

    name: str
    framework: str
    lines: tuple[str, ...]
    labels: Mapping[int, LineLabel] = field(default_factory=dict)
    spans: tuple[tuple[int, int], ...] = ()
    completions: tuple[int, ...] = ()
    arrivals_s: tuple[float, ...] = ()
    writes: tuple[Write, ...] = ()
    licence: str = ""


_KIN = {
    "accelerate": "hugging face", "axolotl": "hugging face", "hf_trainer": "hugging face",
    "llama_factory": "hugging face", "ms_swift": "hugging face", "paddlenlp": "hugging face",
    "maxtext": "orbax", "mmcv": "openmmlab", "mmengine": "openmmlab", "megatron_deepspeed": "megatron",
    "nemo": "lightning", "tf_estimator": "keras",
}  # fmt: skip
"""Frameworks whose savers say the same things, because one calls the other or was copied from it."""


def family_of(framework: str) -> str:
    """What is left out together when a framework is to be unseen."""
    return "plain" if framework.startswith("plain") else _KIN.get(framework, framework)


def read_logs(folder: Path) -> list[LabelledLog]:
    """All logs of a folder of either kind. Raises LogDataError for one that is neither, or torn."""
    excerpts, records = folder / "labels.jsonl", folder / "records.jsonl"
    if excerpts.exists():
        return [_excerpt(folder, one) for one in _records(excerpts)]
    if records.exists():
        return [_recording(folder, one) for one in _records(records)]
    raise LogDataError(f"{folder} holds neither labels.jsonl (excerpts) nor records.jsonl (recordings)")


def lines_of(path: Path) -> tuple[str, ...]:
    """The lines of a log file, packed or not."""
    try:
        found = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise LogDataError(f"{path}: cannot be read ({error})") from error
    splitter = LineSplitter()
    return tuple(line.text for line in (*splitter.feed(found), *splitter.close()))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise LogDataError(f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(found, dict):
            raise LogDataError(f"{path}, line {number}: no record")
        yield found


def _labels(found: Mapping[str, str], lines: tuple[str, ...], where: str) -> dict[int, LineLabel]:
    try:
        labels = {int(number): LineLabel(label) for number, label in found.items()}
    except ValueError as error:
        raise LogDataError(f"{where}: {error}") from error
    if any(not 1 <= number <= len(lines) for number in labels):
        raise LogDataError(f"{where}: a label for a line that is not there")
    return labels


def _excerpt(folder: Path, found: dict[str, Any]) -> LabelledLog:
    lines = lines_of(folder / "logs" / Path(found["file"]).name)
    labels = _labels(found["lines"], lines, found["file"])
    spans = tuple(filter(None, (_span(one, len(lines)) for one in found["write_intervals"])))
    completions = tuple(found["completed_at"])
    return LabelledLog(
        found["file"], found["framework"], lines, labels, spans, completions, licence=found.get("licence", "")
    )


def _span(found: Mapping[str, Any], lines: int) -> tuple[int, int] | None:
    """The lines in a write: the one that told its end is not among them; None where nobody knows how it ended."""
    evidence = found["end_evidence"]
    if evidence.startswith("unknown"):
        return None
    told = not evidence.startswith(_UNTOLD)
    return found["begin"], min(found["end"] - told, lines)


def _recording(folder: Path, found: dict[str, Any]) -> LabelledLog:
    lines = lines_of(folder / f"{Path(found['name']).name}.log.gz")
    labels = _labels(found["labels"], lines, found["name"])
    arrivals = tuple(ms / 1000 for ms in found["arrivals_ms"])
    if len(arrivals) != len(lines):
        raise LogDataError(f"{found['name']}: {len(lines)} lines, but {len(arrivals)} arrivals")
    writes = tuple(
        Write(one["unit"], one["start_s"], one["end_s"], one["step"], one.get("complete", True))
        for one in found["writes"]
    )
    spans = tuple(
        (bisect_right(arrivals, one.start_s + _CLOCK_S) + 1, bisect_left(arrivals, one.end_s)) for one in writes
    )
    spans = tuple((first, last) for first, last in spans if first <= last)
    return LabelledLog(
        found["name"], found["framework"], lines, labels, spans, arrivals_s=arrivals, writes=writes, licence=_OURS
    )
