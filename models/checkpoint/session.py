"""One job's log as it is written: lines in, the label of each and the job's state out, in constant memory.

>>> session = Session(classifier)                                  # doctest: +SKIP
>>> for label in session.read(["step 10 loss 1.2", "saved checkpoint-10"]):
...     print(label, session.status().safe)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kopt.core.workload.checkpoint import JobStatus, LineLabel
from kopt.formats.joblog import read_message
from kopt.models.checkpoint.classified_line import ClassifiedLine
from kopt.models.checkpoint.classifier.lines import CONTEXT_LINES, LABELS, Array, LineClassifier
from kopt.models.checkpoint.classifier.tokens import spoken, template
from kopt.models.checkpoint.kill_safety import evaluate, is_safe
from kopt.models.checkpoint.state_machine import StateMachine

BATCH = 1000
_NOTHING = np.zeros((1, len(LABELS)), np.float32)


class Session:
    """``gpus`` stop when the job is killed; ``lines``: how many were read.

    ``files`` and ``alone`` are as ``evaluate`` takes them.
    """

    def __init__(self, classifier: LineClassifier, gpus: int = 1) -> None:
        self.classifier = classifier
        self.gpus = gpus
        self.lines = 0
        self.machine = StateMachine()
        self.live = self.files = self.alone = False
        # By writer, the shares of its last lines on their own, the newest last.
        self._context: dict[str, Array] = {}

    @property
    def safe(self) -> bool:
        """Whether the job may be killed after the last line."""
        return is_safe(self.machine, live=self.live, files=self.files, alone=self.alone)

    def status(self, now_s: float | None = None) -> JobStatus:
        """The job's status now: ``now_s`` is Unix time if lines came with their arrivals, else None."""
        if self.live and now_s is not None:
            self.machine.settle(now_s)
        live = self.live and now_s is not None
        return evaluate(self.machine, now_s, self.gpus, live=live, files=self.files, alone=self.alone)

    def read(
        self, lines: Sequence[str], arrivals_s: Sequence[float | None] | None = None, source: str = ""
    ) -> Iterator[LineLabel]:
        """The label of each line. The state after a line lasts until the next one is requested; exhaust the iterator.

        ``arrivals_s``: when each line came; without it the times in the lines are used. ``source``: which of the
        job's containers printed them.
        """
        for start in range(0, len(lines), BATCH):
            part = lines[start : start + BATCH]
            yield from self._batch(part, arrivals_s[start : start + BATCH] if arrivals_s else None, source)

    def _batch(
        self, lines: Sequence[str], arrivals_s: Sequence[float | None] | None, source: str
    ) -> Iterator[LineLabel]:
        messages = [read_message(line) for line in lines]
        texts = [spoken(message) for message in messages]
        templates = [template(text) for text in texts]
        names = [f"{source}/{message.writer}" if source else message.writer for message in messages]
        writers = [self.machine.admit_writer(name) for name in names]
        hidden, alone = self.classifier.alone(templates)
        within = self.classifier.within(hidden, self._before(alone, writers))
        shares = (0.5 * (alone + within)).tolist()
        for number, message in enumerate(messages):
            arrived = arrivals_s[number] if arrivals_s else None
            at_s = arrived if arrived is not None else message.stamp.at_s if message.stamp else None
            self.live = arrived is not None
            self.lines += 1
            line = ClassifiedLine(self.lines, shares[number], texts[number], at_s, self.live)
            line.writer, line.template = writers[number], templates[number]
            yield self.machine.advance(line)

    def _before(self, alone: Array, writers: Sequence[str]) -> Array:
        """Shares of the lines before each line, of the same writer: (n, CONTEXT_LINES, labels), the nearest first."""
        rows, positions = [_NOTHING], dict[str, list[int]]()
        count = 1
        for writer in dict.fromkeys(writers):
            kept = self._context.get(writer)
            positions[writer] = [] if kept is None else list(range(count, count + len(kept)))
            if kept is not None:
                rows.append(kept)
                count += len(kept)
        all_rows = np.concatenate([*rows, alone])
        index = np.zeros((len(writers), CONTEXT_LINES), np.int64)
        for number, writer in enumerate(writers):
            earlier = positions[writer]
            for back, position in enumerate(reversed(earlier[-CONTEXT_LINES:])):
                index[number, back] = position
            earlier.append(count + number)
        for writer, earlier in positions.items():
            self._context.pop(writer, None)
            self._context[writer] = all_rows[earlier[-CONTEXT_LINES:]]
        return all_rows[index]

    def to_dict(self, redact: Callable[[str], str] = str) -> dict[str, Any]:
        """All that is needed to go on elsewhere, as JSON; ``redact`` is applied to lines that are evidence."""
        context = {writer: np.round(rows, 4).tolist() for writer, rows in self._context.items()}
        return {
            "gpus": self.gpus,
            "lines": self.lines,
            "live": self.live,
            "context": context,
            "machine": self.machine.to_dict(redact),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], classifier: LineClassifier) -> "Session":
        """Goes on where ``to_dict`` was called. Raises ValueError for anything else."""
        try:
            session = cls(classifier, int(document["gpus"]))
            session.lines, session.live = int(document["lines"]), bool(document["live"])
            session.machine = StateMachine.from_dict(document["machine"])
            for writer, rows in document["context"].items():
                kept = np.asarray(rows, np.float32)
                if kept.shape[0] > CONTEXT_LINES or kept.shape[1:] != (len(LABELS),):
                    raise ValueError("context of another model")
                session._context[str(writer)] = kept
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a saved session of a log ({error!r})") from error
        return session
