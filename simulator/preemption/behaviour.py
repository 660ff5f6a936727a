"""How jobs make checkpoints: regularity from the recorded corpus, time scales from published practice.

The corpus (``benchmarks/checkpoint_corpus``) trains tiny models in seconds, so of each log only what has no unit is
used: how regularly its checkpoints come, how their writing times scatter, whether training goes on meanwhile. What has
a unit is drawn between published values:

- a checkpoint every 15 to 60 minutes: "most teams checkpoint every 15-30 minutes" (NVIDIA's technical blog on nvCOMP,
  April 2026), "the checkpoint file is saved once an hour" (Huawei MindCluster 7.3, resumable training);
- written in 10 to 156 seconds: 782 GB of a 70B model at 5 GB/s take 156 s (same blog), small ones are mostly latency;
- starting again takes 1 to 10 minutes (image, data, communicators, loading): an assumption.
"""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

_SINGLE_CHECKPOINT = 0.3
_STEADY_SHARE = 0.4
_DRAWS = 64


@dataclass(frozen=True)
class Manner:
    """What one log of the corpus shows: intervals and writing times by their median; ``asynchronous``: steps go on."""

    intervals: tuple[float, ...]
    writes: tuple[float, ...]
    asynchronous: bool = False


STEADY = (Manner((0.97, 1.0, 1.03), (0.9, 1.0, 1.1)), Manner((0.9, 1.0, 1.1), (0.9, 1.0, 1.1), asynchronous=True))
"""Where no corpus is at hand."""


@dataclass(frozen=True)
class Scales:
    """Ranges that are drawn from, evenly on a logarithmic scale, in seconds."""

    interval_s: tuple[float, float] = (900.0, 3600.0)
    write_s: tuple[float, float] = (10.0, 156.0)
    restart_s: tuple[float, float] = (60.0, 600.0)


@dataclass(frozen=True, slots=True)
class Habits:
    """One job's. ``draws`` are uniform numbers of its own, so that it does the same under every policy."""

    interval_s: float
    write_s: float
    restart_s: float
    manner: Manner
    observable: bool
    delay_s: float
    draws: tuple[float, ...]

    def draw(self, *numbers: int) -> float:
        """A number in [0, 1) that is always the same for the same numbers."""
        return self.draws[sum((index + 1) * 13 * number for index, number in enumerate(numbers)) % len(self.draws)]


def read_manners(path: Path) -> tuple[Manner, ...]:
    """Of every log in the corpus' ``records.jsonl`` with at least three checkpoints. Raises OSError, ValueError."""
    with path.open(encoding="utf-8") as file:
        manners = tuple(manner for line in file if line.strip() and (manner := _manner(json.loads(line))))
    if not manners:
        raise ValueError(f"{path}: no record has three checkpoints")
    return manners


def _manner(record: dict[str, Any]) -> Manner | None:
    writes = list(_merged(record["writes"]))
    gaps = [after[0] - before[0] for before, after in pairwise(writes)]
    lengths = [end - start for start, end in writes]
    if len(gaps) < 2 or not statistics.median(gaps) or not statistics.median(lengths):
        return None
    return Manner(_relative(gaps), _relative(lengths), _logs_steadily(record, writes))


def _merged(writes: Sequence[dict[str, float]]) -> Iterator[tuple[float, float]]:
    """Files written one right after the other are one checkpoint."""
    spans = sorted((write["start_s"], write["end_s"]) for write in writes)
    apart = _SINGLE_CHECKPOINT * (spans[-1][0] - spans[0][0]) / max(1, len(spans) - 1) if spans else 0.0
    start, end = spans[0] if spans else (0.0, 0.0)
    for span in spans[1:]:
        if span[0] - start > apart:
            yield start, end
            start, end = span
        else:
            end = max(end, span[1])
    if spans:
        yield start, end


def _relative(values: Sequence[float]) -> tuple[float, ...]:
    middle = statistics.median(values)
    return tuple(min(4.0, max(0.2, value / middle)) for value in values)


def _logs_steadily(record: dict[str, Any], spans: Sequence[tuple[float, float]]) -> bool:
    """Lines keep coming while it writes."""
    arrivals = [ms / 1000 for ms in record["arrivals_ms"]]
    begin, end, inside_s = spans[0][0], spans[-1][1], sum(end - start for start, end in spans)
    between = [at for at in arrivals if begin <= at <= end]
    inside = sum(any(start <= at < end for start, end in spans) for at in between)
    outside_s = end - begin - inside_s
    if not inside_s or outside_s <= 0 or len(between) == inside:
        return False
    return inside / inside_s >= _STEADY_SHARE * (len(between) - inside) / outside_s


def sample(
    chance: np.random.Generator, manners: Sequence[Manner], scales: Scales, observable: float, delay_s: float
) -> Habits:
    """One job's habits. ``observable``: the share whose logs or files tell of checkpoints; delays are exponential."""
    return Habits(
        interval_s=_between(chance, scales.interval_s),
        write_s=_between(chance, scales.write_s),
        restart_s=_between(chance, scales.restart_s),
        manner=manners[int(chance.integers(len(manners)))],
        observable=bool(chance.random() < observable),
        delay_s=float(chance.exponential(delay_s)),
        draws=tuple(chance.random(_DRAWS).tolist()),
    )


def _between(chance: np.random.Generator, span: tuple[float, float]) -> float:
    return math.exp(chance.uniform(math.log(span[0]), math.log(span[1])))
