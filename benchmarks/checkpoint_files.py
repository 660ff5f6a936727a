"""May a job be stopped now, by the files of its saves: trainers' save cycles played in time, with and without logs.

    KOPT_DATA_DIR=… python -m benchmarks checkpoint-files

Each cycle of KOPT_DATA_DIR/logs/source (order, gaps and silence read off 100 trainers' source) saves ten times, about
every five minutes (by turns after a number of steps or after a time; an interval may be a tenth shorter than those
before it), while a line about a step comes every ten seconds. What the log agent would send goes to the product's own
job, which is asked every second of a write and of the time before it, and every five seconds between. A write lasts
from its first byte until its last file is whole. Half of the repositories, by a hash of their names, were looked at
while the rules were made.
"""

import hashlib
import json
import os
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.tables import markdown
from kopt.models.checkpoint.files import FileFact
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.registry.loading import load_predictor
from kopt.serving.checkpoint.job import FollowedJob

Record = Mapping[str, Any]
_SAVES, _EVERY_S, _STEP_S, _STEPS = 10, 300.0, 10.0, 10
_LOOK_S, _CONFIRM_S, _SETTLE_S = 5.0, 30.0, 10.0
_UNENDED_S = 8.0
"""Of an asynchronous write whose end nothing in the source announces."""
_BEGAN_S = 1_790_000_000.0
_SLOT = re.compile(r"\{([a-zA-Z_]\w*)?(?::([^{}]*))?\}")
WAYS = ("log", "log, volume with others", "log, own volume", "no log, own volume")


@dataclass(frozen=True)
class Save:
    """Of ``step``, from its first byte until it is whole (Unix seconds)."""

    step: int
    began_s: float
    ended_s: float
    parts: int

    def facts(self, at_s: float, *, exclusive: bool) -> Iterator[FileFact]:
        """What of it lies in the folder: its files are written one after the other."""
        each_s = (self.ended_s - self.began_s) / self.parts
        for part in range(self.parts):
            share = min(1.0, (at_s - self.began_s - part * each_s) / each_s)
            if share >= 0.0 and at_s >= self.began_s:
                written_s = min(at_s, self.began_s + (part + 1) * each_s)
                path = f"checkpoint-{self.step}/part{part}.pt"
                yield FileFact(path, int(1e6 * share), written_s, folder="pv/out", exclusive=exclusive)


@dataclass
class Played:
    """Lines with their times, and the saves."""

    lines: list[tuple[float, str]] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


@dataclass
class Score:
    """Moments in writes, and those between them once three saves were over; how many of each were called safe."""

    inside: int = 0
    unsafe: int = 0
    between: int = 0
    killable: int = 0


def played(cycle: Record, number: int) -> Played:
    """The cycle, again and again."""
    rng, result, at_s, step = random.Random(number), Played(), _BEGAN_S, 0
    step_line = str(cycle.get("step_template") or "step {step} loss {loss} lr {lr}")
    templates = {"@step_template": step_line, "@eval_template": cycle.get("eval_template") or ""}
    templates["@epoch_template"] = cycle.get("epoch_template") or ""
    began_s, ended_s = cycle["write_interval_s"]
    for _ in range(_SAVES):
        before_s = result.saves[-1].began_s if result.saves else _BEGAN_S
        begins_s = max(at_s + 1.0, before_s + _EVERY_S * rng.uniform(0.95, 1.05))
        step_s = (begins_s - at_s) / (_EVERY_S / _STEP_S + 0.5) if number % 2 else _STEP_S
        while at_s + step_s < begins_s:
            at_s, step = at_s + step_s, step + _STEPS
            result.lines.append((at_s, _filled(step_line, step, rng)))
        at_s, ends_s = begins_s, begins_s + (began_s + _UNENDED_S if ended_s is None else ended_s)
        result.saves.append(
            Save(step, begins_s + began_s, max(ends_s, begins_s + began_s + 0.5), 3 if cycle["multi_part"] else 1)
        )
        for part in cycle["cycle"]:
            at_s += float(part["gap_s_typical"] or 0.0)
            text = templates.get(part["template"], part["template"]) or ""
            result.lines += [(at_s, line) for line in _filled(text, step, rng).split("\n") if line.strip()]
        at_s = max(at_s, ends_s if not cycle["async"] else at_s)
    return result


def _filled(template: str, step: int, rng: random.Random) -> str:
    values: dict[str, Any] = {
        "step": step,
        "iter": step,
        "i": step % 100,
        "epoch": step // 300,
        "rank": 0,
        "max": 10_000,
    }
    values |= {"loss": round(rng.uniform(0.5, 3), 4), "lr": "2e-05", "path": "/out/run", "m": 0.71, "n": 256, "s": 1.4}

    def fill(slot: "re.Match[str]") -> str:
        value = values.get(slot[1] or "", 7)
        try:
            return format(value, slot[2] or "")
        except ValueError:
            return str(value)

    return _SLOT.sub(fill, template)


def score(trainer: Played, way: str, predictor: CheckpointPredictor) -> Score:
    """Plays it to a job, and asks."""
    job, result, before = FollowedJob(predictor.session()), Score(), None
    looks, exclusive = way != "log", "own" in way
    lines = iter(trainer.lines if not way.startswith("no log") else [(_BEGAN_S, "GPU available: True (cuda)")])
    line = next(lines, None)
    sent_s = changed_s = 0.0
    for now_s in _moments(trainer):
        while line is not None and line[0] <= now_s:
            job.read_lines([line[1]], [line[0]], "pod/main", None, line[0])
            line = next(lines, None)
        if looks and now_s % _LOOK_S == 0.0:
            facts = [fact for save in trainer.saves for fact in save.facts(now_s, exclusive=exclusive)]
            if facts != before:
                job.list_folder(facts, now_s, "uid")
                before, sent_s, changed_s = facts, now_s, now_s
            elif facts and now_s - sent_s >= (_SETTLE_S if now_s - changed_s < 40.0 else _CONFIRM_S):
                job.confirm_folder(now_s, "uid")
                sent_s = now_s
        safe = job.status(now_s).safe
        if any(save.began_s <= now_s < save.ended_s for save in trainer.saves):
            result.inside += 1
            result.unsafe += safe
        elif now_s > trainer.saves[2].ended_s and now_s % _LOOK_S == 0.0:
            result.between += 1
            result.killable += safe
    return result


def _moments(trainer: Played) -> Iterator[float]:
    """Every look, and every second of writes and of what lies shortly before."""
    for second in range(int(trainer.saves[-1].ended_s - _BEGAN_S) + 200):
        now_s = _BEGAN_S + second
        if now_s % _LOOK_S == 0.0 or any(save.began_s - 5.0 <= now_s <= save.ended_s + 1.0 for save in trainer.saves):
            yield now_s


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table; 1 where files alone called a moment of a write safe."""
    cycles_file = Path(os.environ.get("KOPT_DATA_DIR", "")) / "logs" / "source" / "cycles.jsonl"
    if not cycles_file.is_file():
        print("save cycles are not here: set KOPT_DATA_DIR", file=sys.stderr)
        return 2
    predictor = load_predictor("checkpoint", "shipped")
    assert isinstance(predictor, CheckpointPredictor)
    scores: dict[tuple[bool, bool, str], list[Score]] = {}
    for number, text in enumerate(cycles_file.read_text().splitlines()):
        cycle = json.loads(text)
        other = hashlib.sha256(str(cycle["repo"]).encode()).digest()[0] % 2 == 1
        trainer = played(cycle, number)
        for way in WAYS:
            result = score(trainer, way, predictor)
            scores.setdefault((other, bool(cycle["silent_saver"]), way), []).append(result)
            if result.unsafe and arguments:
                print(way, cycle["framework"], result, file=sys.stderr)
    print(report(scores))
    return int(any(item.unsafe for (_, _, way), items in scores.items() if way == WAYS[-1] for item in items))


def report(scores: Mapping[tuple[bool, bool, str], Sequence[Score]]) -> str:
    """Markdown: a row for each way and half."""
    head = [
        "half; trainers",
        "evidence",
        "trainers safe in a write",
        "moments in writes safe",
        "between writes: killable",
    ]
    rows = []
    for (other, silent, way), items in sorted(scores.items(), key=lambda item: (*item[0][:2], WAYS.index(item[0][2]))):
        inside, between = sum(item.inside for item in items), sum(item.between for item in items)
        rows.append(
            [
                f"{'other' if other else 'looked at'}; {'silent' if silent else 'others'}",
                way,
                f"{sum(item.unsafe > 0 for item in items)} of {len(items)}",
                f"{sum(item.unsafe for item in items)} of {inside:,}",
                f"{sum(item.killable for item in items) / max(1, between):.1%}",
            ]
        )
    return markdown(head, rows)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
