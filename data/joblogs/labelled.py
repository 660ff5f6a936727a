"""Labelled logs from folders: excerpts (``labels.jsonl`` beside ``logs/``), the recorded corpus (``records.jsonl``),
and what trainers print by their source (``cycles.jsonl``, ``statements.jsonl``).

All are JSON lines. Excerpts were labelled by readers; records by the file system (ADR 15); lines of the source by their
place relative to the save call (ADR 57).
"""

import gzip
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.source_cycles import rendered_logs
from kopt.formats.joblog import LineSplitter

_UNREPORTED = ("truncated", "next", "none", "failed", "killed")
_OURS = "MIT"
_CLOCK_S = 0.002
"""Things that happened so close to each other may have been noted in either order (ADR 15)."""


INDEXES = ("labels.jsonl", "records.jsonl", "cycles.jsonl")
"""What a folder of labelled logs holds, by its kind."""


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
    ``source``: repository and commit of the statements that a log was rendered from.
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
    source: str = ""


_KIN = {
    "accelerate": "hugging face",
    "axolotl": "hugging face",
    "cogvideo": "hugging face",
    "diffusers": "hugging face",
    "fsdp_qlora": "hugging face",
    "hf_trainer": "hugging face",
    "llama_factory": "hugging face",
    "lmflow": "hugging face",
    "ms_swift": "hugging face",
    "paddlenlp": "hugging face",
    "peft": "hugging face",
    "qlora": "hugging face",
    "sentence_transformers": "hugging face",
    "simpletuner": "hugging face",
    "trl": "hugging face",
    "gpt_neox": "deepspeed",
    "openrlhf": "deepspeed",
    "easylm": "orbax",
    "levanter": "orbax",
    "t5x": "orbax",
    "maxtext": "orbax",
    "mmcv": "openmmlab",
    "mmengine": "openmmlab",
    "openpcdet": "openmmlab",
    "megatron_deepspeed": "megatron",
    "mindformers": "mindspore",
    "nemo": "lightning",
    "tensor2tensor": "keras",
    "tf_estimator": "keras",
    "yolov5": "ultralytics",
}
"""Frameworks whose savers say the same things, because one calls the other or was copied from it."""


def family_of(framework: str) -> str:
    """What is left out together when a framework is to be unseen."""
    return "plain" if framework.startswith("plain") else _KIN.get(framework, framework)


def read_logs(folder: Path) -> list[LabelledLog]:
    """All logs of a folder of any kind. Raises LogDataError for one that is of none, or torn."""
    excerpts, records, cycles = (folder / name for name in INDEXES)
    if excerpts.exists():
        return [_read(_excerpt, folder, record, excerpts) for record in _records(excerpts)]
    if records.exists():
        return [_read(_recording, folder, record, records) for record in _records(records)]
    if cycles.exists():
        return _rendered(cycles, folder / "statements.jsonl")
    raise LogDataError(
        f"{folder} holds neither labels.jsonl (excerpts) nor records.jsonl (recordings) nor cycles.jsonl (source)"
    )


def _rendered(cycles: Path, statements: Path) -> list[LabelledLog]:
    records = [list(_records(path)) if path.exists() else [] for path in (cycles, statements)]
    try:
        return [
            LabelledLog(
                log.name,
                log.framework,
                tuple(log.lines),
                log.labels,
                tuple(log.spans),
                tuple(log.completions),
                source=log.source,
            )
            for log in rendered_logs(*records)
        ]
    except KeyError as error:
        raise LogDataError(f"{cycles} or {statements}: a record has no {error.args[0]!r}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise LogDataError(f"{cycles} or {statements}: a field is of another type ({error})") from error


def _read(
    read: Callable[[Path, dict[str, Any]], LabelledLog], folder: Path, record: dict[str, Any], path: Path
) -> LabelledLog:
    try:
        return read(folder, record)
    except KeyError as error:
        name = str(record.get("file", record.get("name", "a record")))
        raise LogDataError(f"{path}, {name}: no {error.args[0]!r}") from error
    except (AttributeError, TypeError) as error:
        name = str(record.get("file", record.get("name", "a record")))
        raise LogDataError(f"{path}, {name}: a field is of another type ({error})") from error


def lines_of(path: Path) -> tuple[str, ...]:
    """The lines of a log file, packed or not."""
    try:
        result = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise LogDataError(f"{path}: cannot be read ({error})") from error
    splitter = LineSplitter()
    return tuple(line.text for line in (*splitter.feed(result), *splitter.close()))


def _records(path: Path) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            result = json.loads(text)
        except ValueError as error:
            raise LogDataError(f"{path}, line {number}: no JSON ({error})") from error
        if not isinstance(result, dict):
            raise LogDataError(f"{path}, line {number}: no record")
        yield result


def _labels(result: Mapping[str, str], lines: tuple[str, ...], where: str) -> dict[int, LineLabel]:
    try:
        labels = {int(number): LineLabel(label) for number, label in result.items()}
    except ValueError as error:
        raise LogDataError(f"{where}: {error}") from error
    if any(not 1 <= number <= len(lines) for number in labels):
        raise LogDataError(f"{where}: a label for a line that is not there")
    return labels


def _excerpt(folder: Path, result: dict[str, Any]) -> LabelledLog:
    lines = lines_of(folder / "logs" / Path(result["file"]).name)
    labels = _labels(result["lines"], lines, result["file"])
    spans = tuple(filter(None, (_span(item, len(lines)) for item in result["write_intervals"])))
    completions = tuple(result["completed_at"])
    return LabelledLog(
        result["file"], str(result["framework"]), lines, labels, spans, completions, licence=result.get("licence", "")
    )


def _span(result: Mapping[str, Any], lines: int) -> tuple[int, int] | None:
    """The lines in a write without the line that reports its end; None if it is unknown how it ended."""
    evidence = result["end_evidence"]
    if evidence.startswith("unknown"):
        return None
    reported = not evidence.startswith(_UNREPORTED)
    return result["begin"], min(result["end"] - reported, lines)


def _recording(folder: Path, result: dict[str, Any]) -> LabelledLog:
    lines = lines_of(folder / f"{Path(result['name']).name}.log.gz")
    labels = _labels(result["labels"], lines, result["name"])
    arrivals = tuple(ms / 1000 for ms in result["arrivals_ms"])
    if len(arrivals) != len(lines):
        raise LogDataError(f"{result['name']}: {len(lines)} lines, but {len(arrivals)} arrivals")
    writes = tuple(
        Write(item["unit"], item["start_s"], item["end_s"], item["step"], item.get("complete", True))
        for item in result["writes"]
    )
    spans = tuple(
        (bisect_right(arrivals, write.start_s + _CLOCK_S) + 1, bisect_left(arrivals, write.end_s)) for write in writes
    )
    spans = tuple((first, last) for first, last in spans if first <= last)
    return LabelledLog(
        result["name"], result["framework"], lines, labels, spans, arrivals_s=arrivals, writes=writes, licence=_OURS
    )
