"""What the trainers truly did, from the files that they keep about themselves."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Write:
    """From before the first byte until all of it was durable, which it never was where ``durable_s`` is infinite."""

    step: int
    began_s: float
    durable_s: float = math.inf

    def is_under_way(self, began_s: float, ended_s: float) -> bool:
        """Throughout that time."""
        return self.began_s <= began_s and ended_s <= self.durable_s


@dataclass
class Life:
    """One process, from its start until it was killed; times are seconds of the monotonic clock."""

    started_s: float
    resumed_step: int = 0
    broken: list[str] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    @property
    def torn(self) -> bool:
        """It ended in a write."""
        return bool(self.writes) and self.writes[-1].durable_s == math.inf


def lives(record: Path) -> list[Life]:
    """The processes that kept ``record``, in order. A last line that is cut off is left out."""
    result: list[Life] = []
    for line in record.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        match entry["event"]:
            case "start":
                result.append(Life(entry["at"]))
            case "begin":
                result[-1].writes.append(Write(entry["step"], entry["at"]))
            case "durable":
                begun = result[-1].writes.pop()
                result[-1].writes.append(Write(begun.step, begun.began_s, entry["at"]))
            case "resumed":
                result[-1].resumed_step = entry["step"]
            case "broken":
                result[-1].broken.append(f"{entry['name']}: {entry['error']}")
    return result


@dataclass(frozen=True)
class Kills:
    """Of one trainer: how many, how many of them in a write, and after how many it went on from less than was durable
    (or could not load what was)."""

    count: int
    torn: int
    set_back: int


def kills_of(history: list[Life]) -> Kills:
    """The last life goes on."""
    torn, set_back, durable = 0, 0, 0
    for life, later in pairwise(history):
        durable = max(durable, *durable_steps(life.writes), 0)
        torn += life.torn
        # One that was killed before it could look for a checkpoint has not resumed, but neither has it lost anything.
        looked = bool(later.resumed_step or later.broken or later.writes)
        set_back += looked and (later.resumed_step < durable or bool(later.broken))
    return Kills(max(0, len(history) - 1), torn, set_back)


def durable_steps(writes: Iterable[Write]) -> list[int]:
    return [write.step for write in writes if write.durable_s < math.inf]
