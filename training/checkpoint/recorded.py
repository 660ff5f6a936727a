"""Recorded jobs as labelled logs: when a checkpoint was written is what its folder shows, and never what a line says.

The files tell when each write began and ended. A message that comes with every one of them, on the same side, and
nowhere else in the log, says that a write begins, goes on or has ended; it must speak of saving as well, as evaluation
comes before every save of many trainers. All other lines but those that count steps stay without a label.
"""

import gzip
import hashlib
import json
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.labelled import Write
from kopt.models.checkpoint.files import FolderWatch
from kopt.models.checkpoint.line_facts import step_of_progress
from kopt.serving.checkpoint.recording import RecordedJob

_LEAST_WRITES, _LEAST_LINES, _LEAST_STEPS = 2, 10, 5
_AGAIN_S = 15.0
"""What was written again under its name changes after a longer rest than this; folders are looked at every 5 s."""
_NEAR_S, _CLOCK_S = 10.0, 0.5
"""How long before the first and after the last change of its files a line may speak of a write."""
_MOST_OF = 0.6
"""With so many of the writes since its first one a message comes that is about them."""
_BEGIN, _END = LineLabel.CKPT_BEGIN, LineLabel.CKPT_END
_SAVING = re.compile(
    r"sav(?:e|ing)|check-?point|ckpt|writ(?:e|ing|ten)|snapshot|export|dump|serializ|persist|upload|保存|сохран|speicher"
    r"|enregistr|guarda",
    re.IGNORECASE,
)
_ELSE = re.compile(
    r"remov|delet|prun|expir|evict|rotat|clean|load|restor|resum|fail|error|abort|not saved", re.IGNORECASE
)
"""What comes with each save as well, and is none."""
_EVALUATION = re.compile(r"eval|valid|\btest", re.IGNORECASE)
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*|\b[0-9a-f]{7,}\b")
_RUN = re.compile(r"(?:[-_.](?:[0-9a-z]{5,10}|\d+))+$")


class NotLabelled(ValueError):
    """A recording from which nothing can be learned; the message says why."""


def record_of(job: RecordedJob) -> dict[str, Any]:
    """The job as a record of ``records.jsonl``. Raises NotLabelled."""
    if len(job.lines) < _LEAST_LINES:
        raise NotLabelled(f"it has fewer than {_LEAST_LINES} lines")
    writes = _writes(job)
    if len(writes) < _LEAST_WRITES:
        raise NotLabelled(f"fewer than {_LEAST_WRITES} of its writes were seen from their beginning")
    labels = _labels(job.lines, writes)
    if not labels:
        raise NotLabelled("no line of it comes with its writes alone, and none counts steps")
    begun_s = job.lines[0][0]
    return {
        "name": name_of(job),
        "framework": f"own {_RUN.sub('', job.job.rpartition('/')[2]) or job.job}",
        "writes": [
            vars(replace(write, start_s=write.start_s - begun_s, end_s=write.end_s - begun_s)) for write in writes
        ],
        "arrivals_ms": [round((at_s - begun_s) * 1000) for at_s, _ in job.lines],
        "labels": {str(number): label.value for number, label in sorted(labels.items())},
    }


def name_of(job: RecordedJob) -> str:
    """A name for its file, of which no other job has the same."""
    digest = hashlib.sha256(f"{job.owner}\0{job.job}".encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', job.job).strip('-')[:80]}-{digest}"


def merge_records(folder: Path, jobs: Iterable[tuple[RecordedJob, Mapping[str, Any]]]) -> int:
    """Put jobs into a folder of labelled logs, in the place of what was kept of them before; returns how many it has.

    Raises OSError, and ValueError for an index that cannot be read; either leaves the index as it was.
    """
    index = folder / "records.jsonl"
    texts = index.read_text(encoding="utf-8").splitlines() if index.exists() else []
    records = {record["name"]: record for record in map(json.loads, texts)}
    for job, record in jobs:
        log = "".join(f"{_flattened(text)}\n" for _, text in job.lines)
        (folder / f"{record['name']}.log.gz").write_bytes(gzip.compress(log.encode("utf-8"), mtime=0))
        records[record["name"]] = record
    fresh = index.with_suffix(".new")
    fresh.write_text("".join(f"{json.dumps(record)}\n" for record in records.values()), encoding="utf-8")
    fresh.replace(index)
    return len(records)


def _flattened(text: str) -> str:
    return " ".join(text.splitlines()) if text.splitlines() != [text] else text


def _writes(job: RecordedJob) -> list[Write]:
    """Every write of a checkpoint that began after its looker looked first, in order; ``end_s`` is the last change."""
    result: list[Write] = []
    watches: dict[str, FolderWatch] = {}
    latest: dict[tuple[str, str], tuple[float, int | None]] = {}
    for listing in job.listings:
        is_first = listing.by not in watches
        watch = watches.setdefault(listing.by, FolderWatch())
        watch.observe(listing.files, listing.at_s)
        for name, unit in watch.units.items():
            key = (listing.by, name)
            last_s, index = latest.get(key, (-math.inf, None))
            # All of it is newer: the same name was written again.
            again = unit.first_s > last_s and unit.last_s - last_s > _AGAIN_S
            if again and not is_first:
                result.append(Write(name, unit.first_s, unit.last_s, unit.step, not unit.temporary))
                index = len(result) - 1
            elif index is not None and unit.last_s > last_s:
                result[index] = replace(result[index], end_s=unit.last_s, complete=not unit.temporary)
            latest[key] = (unit.last_s, index)
    return sorted(result, key=lambda write: write.start_s)


def _labels(lines: Sequence[tuple[float, str]], writes: Sequence[Write]) -> dict[int, LineLabel]:
    messages: defaultdict[str, list[int]] = defaultdict(list)
    for number, (_, text) in enumerate(lines, 1):
        messages[_NUMBERS.sub("0", text).strip()].append(number)
    labels: dict[int, LineLabel] = {}
    of_writes: list[tuple[LineLabel, float, list[int]]] = []
    for numbers in messages.values():
        text = lines[numbers[0] - 1][1]
        times = [lines[number - 1][0] for number in numbers]
        if len(numbers) >= _LEAST_WRITES and _SAVING.search(text) and not _ELSE.search(text):
            label, offset_s = _of_write(times, writes)
            of_writes += [] if label is None else [(label, offset_s, numbers)]
        elif len(numbers) > max(_LEAST_STEPS, 2 * len(writes)) and _counts_steps(lines, numbers):
            labels |= dict.fromkeys(numbers, LineLabel.TRAIN_STEP)
    # Of several messages the first begins a write and the last ends it.
    begins = min((offset_s for label, offset_s, _ in of_writes if label is _BEGIN), default=0.0)
    ends = max((offset_s for label, offset_s, _ in of_writes if label is _END), default=0.0)
    for label, offset_s, numbers in of_writes:
        between = (label is _BEGIN and offset_s > begins) or (label is _END and offset_s < ends)
        labels |= dict.fromkeys(numbers, LineLabel.CKPT_PROGRESS if between else label)
    return labels


def _of_write(times: Sequence[float], writes: Sequence[Write]) -> tuple[LineLabel | None, float]:
    """What a message says that came at these times, and how many seconds after the beginning of a write it came, or
    after its end; None where it comes with few writes, elsewhere, or on both sides.

    A write is seen to begin only when its files are looked at, so that what comes once for each begins it even where
    some of it was written already.
    """
    starts = [write.start_s for write in writes]
    sides, beside, offsets_s = set[LineLabel](), list[int](), list[float]()
    for at_s in times:
        after = bisect_right(starts, at_s)
        gap_s, index = min((_gap_s(at_s, writes[n]), n) for n in (after - 1, after) if 0 <= n < len(writes))
        if gap_s > _NEAR_S:
            return None, 0.0
        write, side = writes[index], _side(at_s, writes[index])
        beside.append(index)
        sides.add(side)
        offsets_s.append(at_s - (write.end_s if side is _END else write.start_s))
    if len(set(beside)) < _MOST_OF * (len(writes) - beside[0]):
        return None, 0.0
    if len(set(beside)) < len(beside):
        return (LineLabel.CKPT_PROGRESS if sides == {LineLabel.CKPT_PROGRESS} else None), 0.0
    return (_END if sides == {_END} else None if _END in sides else _BEGIN), median(offsets_s)


def _gap_s(at_s: float, write: Write) -> float:
    return max(0.0, write.start_s - at_s, at_s - write.end_s)


def _side(at_s: float, write: Write) -> LineLabel:
    if at_s >= write.end_s - _CLOCK_S:
        return _END
    return _BEGIN if at_s <= write.start_s else LineLabel.CKPT_PROGRESS


def _counts_steps(lines: Sequence[tuple[float, str]], numbers: Sequence[int]) -> bool:
    text = lines[numbers[0] - 1][1]
    if _EVALUATION.search(text) or _SAVING.search(text):
        return False
    steps = [step_of_progress(lines[number - 1][1]) for number in numbers]
    counted = [step for step in steps if step is not None]
    return len(counted) == len(steps) and counted == sorted(counted) and len(set(counted)) > len(counted) // 2
