"""Labelled logs and made-up jobs → sequences of messages to learn from."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.labelled import LabelledLog
from kopt.data.joblogs.scenarios import Scenario
from kopt.formats.joblog import read_message
from kopt.models.checkpoint.classifier.lines import CONTEXT_LINES
from kopt.models.checkpoint.classifier.tokens import spoken, template

_CHUNK = 40
_ENOUGH = 3
"""Times that one template with one label is learned from in a log: logs repeat themselves."""
_MADE_LINES = 30
_FRAMEWORK_WEIGHT = 4.0


@dataclass(frozen=True)
class Lines:
    """Consecutive lines of one process: messages, their labels (None: not labelled) and what each weighs."""

    messages: tuple[str, ...]
    labels: tuple[LineLabel | None, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class LogTable:
    """What there is to learn from: lines of ``logs``, and lines of so many made-up jobs beside them."""

    logs: tuple[LabelledLog, ...]
    made: int = 700
    seed: int = 0

    def __len__(self) -> int:
        return sum(len(log.labels) for log in self.logs)

    def sequences(self) -> list[Lines]:
        """All of it; what is rare in a framework weighs more. Raises ValueError without a labelled line."""
        if not self.logs and not self.made:
            raise ValueError("no labelled line to learn from")
        counts = Counter((log.framework, label) for log in self.logs for label in log.labels.values())
        lines: list[Lines] = []
        for log in self.logs:
            weights = {
                label: _FRAMEWORK_WEIGHT / counts[log.framework, label] ** 0.5 for label in set(log.labels.values())
            }
            lines += _chunks(log, weights)
        return [*lines, *_made_up(self.made, self.seed)]


def _chunks(log: LabelledLog, weights: Mapping[LineLabel, float]) -> Iterator[Lines]:
    """A log's lines by writer, in pieces that begin with the lines before them."""
    by_writer: dict[str, list[tuple[str, LineLabel | None]]] = defaultdict(list)
    occurrences: Counter[tuple[str, LineLabel]] = Counter()
    for number, line in enumerate(log.lines, 1):
        message = read_message(line)
        text, label = spoken(message), log.labels.get(number)
        if label is not None:
            kind = (template(text), label)
            occurrences[kind] += 1
            label = label if occurrences[kind] <= _ENOUGH else None
        by_writer[message.writer].append((text, label))
    for lines in by_writer.values():
        for piece in _pieces(lines):
            labels = tuple(label for _, label in piece)
            weighed = tuple(weights.get(line_label, 0.0) if line_label else 0.0 for line_label in labels)
            yield Lines(tuple(text for text, _ in piece), labels, weighed)


def _pieces(lines: list[tuple[str, LineLabel | None]]) -> Iterator[list[tuple[str, LineLabel | None]]]:
    """Labelled lines with the lines of context before them; all others are dropped."""
    wanted = [number for number, (_, label) in enumerate(lines) if label is not None]
    first = wanted[0] if wanted else 0
    for here, following in zip_longest(wanted, wanted[1:]):
        if following is None or following - here > CONTEXT_LINES or here - first >= _CHUNK:
            context = [(text, None) for text, _ in lines[max(0, first - CONTEXT_LINES) : first]]
            yield [*context, *lines[first : here + 1]]
            first = following


def _made_up(jobs: int, seed: int) -> Iterator[Lines]:
    rng = random.Random(seed)
    for _ in range(jobs):
        lines = Scenario(rng).lines(_MADE_LINES)
        if lines:
            texts = tuple(spoken(read_message(text)) for text, _ in lines)
            yield Lines(texts, tuple(label for _, label in lines), (1.0,) * len(lines))
