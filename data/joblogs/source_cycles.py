"""Logs rendered from what trainers print by their source: save cycles (``cycles.jsonl``) and single statements.

``cycles.jsonl`` has one save cycle per line, in the order of its lines, each with the role that its place relative to
the save call gives it; ``statements.jsonl`` one log statement per line. Logs that repeat a cycle with numbers, paths
and prefixes of their own are labelled like recorded ones: what is read off the source is what a reader of the log
would have to know, for example that "Saved" comes before the write in one trainer and after it in another.
"""

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.phrases import dressed, phrases

Record = Mapping[str, Any]
_L = LineLabel
_OPENING = frozenset({"ckpt_begin", "ckpt_scheduled", "ckpt_progress"})
_CLOSING = frozenset({"ckpt_end", "ckpt_finalized"})
_LABEL_OF_ROLE = {
    "ckpt_begin": _L.CKPT_BEGIN,
    "ckpt_scheduled": _L.CKPT_BEGIN,
    "ckpt_progress": _L.CKPT_PROGRESS,
    "ckpt_end": _L.CKPT_END,
    "ckpt_finalized": _L.CKPT_END,
    "ckpt_load": _L.CKPT_LOAD,
    "ckpt_remove": _L.OTHER,
    "ckpt_skip": _L.OTHER,
    "negative": _L.OTHER,
    "other": _L.OTHER,
    "train_step": _L.TRAIN_STEP,
    "eval": _L.EVAL,
}
"""Of other roles (exports after training, best metrics, heads of epochs) a line on its own does not tell the label."""
_LABEL_OF_NEGATIVE = {"train_end": _L.END, "save_failed": _L.ERROR, "dataset": _L.DATA}
_UNCLEAR = frozenset({"metrics", "results", "ckpt_trigger", "interrupted", "early_stop", "eval_wait", "timing"})
_SLOT = re.compile(r"\{([a-zA-Z_]\w*)?(?::([^{}]*))?\}")
_PATH_LIKE = re.compile(r"path|dir|file|name|save|output|ckpt|checkpoint|folder|out$|\btag", re.IGNORECASE)
_VARIANTS, _SAVES, _STEPS = 2, 3, (3, 9)
_RANKS = 3
_STEP_LINE = "step {step} loss {loss} lr {lr}"


@dataclass
class RenderedLog:
    """Lines, labels by number from 1, spans of lines in writes, and lines by which one was durable."""

    name: str
    framework: str
    source: str
    lines: list[str] = field(default_factory=list)
    labels: dict[int, LineLabel] = field(default_factory=dict)
    spans: list[tuple[int, int]] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)


def rendered_logs(cycles: Sequence[Record], statements: Sequence[Record]) -> Iterator[RenderedLog]:
    """One log per variant of a cycle, and one per repository with its single statements between lines about steps.

    The framework of a log is that of its repository's statements. Raises KeyError or TypeError for other records.
    """
    names = {str(record["repo"]): str(record["framework"]) for record in [*reversed(cycles), *reversed(statements)]}
    step_lines = {str(cycle["repo"]): str(cycle.get("step_template") or _STEP_LINE) for cycle in reversed(cycles)}
    for number, cycle in enumerate(cycles):
        for variant in range(_VARIANTS):
            name = f"source/{cycle['framework']}-{number}-{variant}"
            log = RenderedLog(name, names[str(cycle["repo"])], _source(cycle))
            _Renderer(log, random.Random(f"{number} {variant}")).cycles(cycle)
            yield log
    by_repository: dict[str, list[Record]] = defaultdict(list)
    for statement in statements:
        by_repository[str(statement["repo"])].append(statement)
    for repository, records in by_repository.items():
        log = RenderedLog(f"source/{repository}", names[repository], _source(records[0]))
        _Renderer(log, random.Random(repository)).statements(records, step_lines.get(repository, ""))
        yield log


def _source(record: Record) -> str:
    return f"{record['repo']}@{record['commit']}"


class _Renderer:
    """Appends lines to a log."""

    def __init__(self, log: RenderedLog, rng: random.Random) -> None:
        self._log, self._rng, self._style = log, rng, rng.random()
        self._step, self._every = rng.randrange(5000), rng.choice((10, 50, 100, 500))
        self._unannounced = False

    def cycles(self, cycle: Record) -> None:
        """Training with a few saves, each one as the cycle says."""
        step_line = str(cycle.get("step_template") or _STEP_LINE)
        parts = [part for part in cycle["cycle"] if part["template"]]
        for _ in range(_SAVES):
            self._train(step_line, self._rng.randint(*_STEPS))
            if cycle.get("eval_template") and self._rng.random() < 0.6:
                self._print(str(cycle.get("eval_template")), _L.EVAL)
            self._save(cycle, parts, step_line)
        self._train(step_line, self._rng.randint(*_STEPS))

    def _save(self, cycle: Record, parts: Sequence[Record], step_line: str) -> None:
        templates = {"@step_template": step_line, "@eval_template": cycle.get("eval_template") or ""}
        templates["@epoch_template"] = cycle.get("epoch_template") or ""
        last_end = max((number for number, part in enumerate(parts) if part["role"] in _CLOSING), default=None)
        last_opening = max((number for number, part in enumerate(parts) if part["role"] in _OPENING), default=None)
        first_line = last_line = 0
        for number, part in enumerate(parts):
            role, text = str(part["role"]), templates.get(part["template"], str(part["template"]))
            label = _LABEL_OF_ROLE.get(role)
            if (role in _CLOSING and number != last_end) or (role in _OPENING and first_line):
                # The end of a part, or another part: the checkpoint is whole at the last end.
                label = _L.CKPT_PROGRESS
            ranks = _RANKS if str(part.get("printed_by") or "").startswith("every") else 1
            for rank in range(ranks):
                self._print(text, label, rank=rank)
                if role in _OPENING and (last_end is None or number < last_end):
                    last_line = len(self._log.lines)
                    first_line = first_line or last_line
            # Only the next activity of the writer shows the end of a write that nothing announces, as in excerpts.
            self._unannounced |= number == last_opening and last_end is None and not cycle.get("async")
            if last_end == number:
                self._log.completions.append(len(self._log.lines))
                last_line = len(self._log.lines) - 1
            self._step += role == "train_step"
        if first_line:
            self._log.spans.append((first_line, last_line))

    def statements(self, records: Sequence[Record], step_line: str) -> None:
        """Each statement on its own, with training before and after it."""
        for record in self._rng.sample(list(records), len(records)):
            kind = str(record.get("negative_kind"))
            label = _LABEL_OF_NEGATIVE.get(kind) or _LABEL_OF_ROLE.get(str(record["role"]))
            if label is None or kind in _UNCLEAR:
                continue
            self._train(step_line, self._rng.randint(1, 3))
            self._print(str(record["template"]), label, fields=record.get("fields") or ())
        self._train(step_line, 2)

    def _train(self, step_line: str, lines: int) -> None:
        for _ in range(lines):
            self._step += max(1, self._every // 10)
            self._print(step_line or phrases().render(_L.TRAIN_STEP, self._rng), _L.TRAIN_STEP)

    def _print(self, template: str, label: LineLabel | None, *, rank: int = 0, fields: Iterable[str] = ()) -> None:
        names = iter(fields)
        message = _SLOT.sub(lambda slot: self._filled(slot[1] or next(names, ""), slot[2] or "", rank), template)
        first = True
        for text in message.split("\n"):
            if not text.strip() and first:
                continue
            # The same job dresses its lines alike; a bar stands in front of some only.
            style = random.Random(self._style if self._rng.random() < 0.9 else self._rng.random())
            self._log.lines.append(dressed(text, label or _L.OTHER, style) if first else text)
            if first and label is not None:
                self._log.labels[len(self._log.lines)] = label
            if self._unannounced and label in (_L.TRAIN_STEP, _L.EVAL):
                self._log.completions.append(len(self._log.lines))
                self._unannounced = False
            first = False

    def _filled(self, name: str, form: str, rank: int) -> str:
        rng = self._rng
        if name == "rank" or name.endswith("_rank"):
            return str(rank)
        if name in ("path", "") or (name not in _VALUES and _PATH_LIKE.search(name)):
            return phrases().fill("path", rng)
        value = _VALUES[name](rng, self._step) if name in _VALUES else self._step
        try:
            return format(value, form)
        except ValueError:
            return str(value)


_VALUES: Mapping[str, Callable[[random.Random, int], float | str]] = {
    "step": lambda rng, step: step,
    "step0": lambda rng, step: max(0, step - 100),
    "iter": lambda rng, step: step,
    "i": lambda rng, step: step % 100,
    "max": lambda rng, step: step + rng.randrange(100_000),
    "n": lambda rng, step: rng.randrange(100, 900),
    "epoch": lambda rng, step: step // 1000,
    "maxep": lambda rng, step: step // 1000 + rng.randrange(1, 50),
    "epf": lambda rng, step: round(step / 1000, 2),
    "loss": lambda rng, step: round(rng.uniform(0.5, 3), 4),
    "lr": lambda rng, step: "2.0e-05",
    "g": lambda rng, step: round(rng.uniform(0.1, 2), 3),
    "m": lambda rng, step: round(rng.uniform(0, 1), 4),
    "ppl": lambda rng, step: round(rng.uniform(5, 30), 2),
    "s": lambda rng, step: round(rng.uniform(1, 9), 2),
    "ms": lambda rng, step: rng.randrange(100, 900),
    "D": lambda rng, step: "2026-11-02",
    "T": lambda rng, step: "10:11:12",
    "US": lambda rng, step: "10:11:12.123456",
    "hms": lambda rng, step: "00:12:30",
    "pct": lambda rng, step: rng.randrange(100),
    "unix": lambda rng, step: 1_790_000_000 + step,
}
"""The cycles' placeholders."""
