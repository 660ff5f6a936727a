"""One job's log as it is written: lines in, what each says and where the job is out, in constant memory.

>>> session = Session(classifier)                                  # doctest: +SKIP
>>> for label in session.read(["step 10 loss 1.2", "saved checkpoint-10"]):
...     print(label, session.status().safe)
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kopt.core.checkpoint import JobStatus, LineLabel
from kopt.formats.joblog import read_message
from kopt.models.checkpoint.judgement import is_safe, judge
from kopt.models.checkpoint.lines import CONTEXT_LINES, LABELS, Array, LineClassifier
from kopt.models.checkpoint.machine import Machine
from kopt.models.checkpoint.saved import machine_from, machine_to
from kopt.models.checkpoint.words import spoken, template
from kopt.models.checkpoint.writes import Said

BATCH = 1000
_MOST_WRITERS = 4096
_NOTHING = np.zeros((1, len(LABELS)), np.float32)


class Session:
    """``gpus``: that stop when the job is killed. ``lines``: how many were read."""

    def __init__(self, classifier: LineClassifier, gpus: int = 1) -> None:
        self.classifier = classifier
        self.gpus = gpus
        self.lines = 0
        self.machine = Machine()
        self.live = False
        # Of each writer, what its last lines said on their own, the newest last.
        self._context: dict[str, Array] = {}

    @property
    def safe(self) -> bool:
        """Whether the job may be killed after the last line."""
        return is_safe(self.machine)

    def status(self, now_s: float | None = None) -> JobStatus:
        """The job's status now: ``now_s`` is Unix time if lines came with their arrivals, else None."""
        if self.live and now_s is not None:
            self.machine.settle(now_s)
        return judge(self.machine, now_s, self.gpus, live=self.live and now_s is not None)

    def read(
        self, lines: Sequence[str], arrivals_s: Sequence[float | None] | None = None, source: str = ""
    ) -> Iterator[LineLabel]:
        """What each line says. The state after a line is there until the next one is asked for; use it all up.

        ``arrivals_s``: when each line came; without it times are those in the lines. ``source``: which of the job's
        containers printed them.
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
        writers = [self._writer(f"{source}/{message.writer}" if source else message.writer) for message in messages]
        hidden, alone = self.classifier.alone(templates)
        within = self.classifier.within(hidden, self._before(alone, writers))
        shares = (0.5 * (alone + within)).tolist()
        for number, message in enumerate(messages):
            arrived = arrivals_s[number] if arrivals_s else None
            at_s = arrived if arrived is not None else message.stamp.at_s if message.stamp else None
            self.live = arrived is not None
            self.lines += 1
            yield self.machine.advance(
                Said(self.lines, shares[number], texts[number], at_s, self.live, writers[number], templates[number])
            )

    def _writer(self, name: str) -> str:
        """The writer's name, of which there may not be any number."""
        known = self.machine.writers
        if name not in known and len(known) >= _MOST_WRITERS:
            return ""
        known.setdefault(name, 0)
        return name

    def _before(self, alone: Array, writers: Sequence[str]) -> Array:
        """Shares of the lines before each line, of the same writer: (n, CONTEXT_LINES, labels), the nearest first."""
        rows, places = [_NOTHING], dict[str, list[int]]()
        held = 1
        for writer in dict.fromkeys(writers):
            kept = self._context.get(writer)
            places[writer] = [] if kept is None else list(range(held, held + len(kept)))
            if kept is not None:
                rows.append(kept)
                held += len(kept)
        all_rows = np.concatenate([*rows, alone])
        index = np.zeros((len(writers), CONTEXT_LINES), np.int64)
        for number, writer in enumerate(writers):
            seen = places[writer]
            for back, place in enumerate(reversed(seen[-CONTEXT_LINES:])):
                index[number, back] = place
            seen.append(held + number)
        for writer, seen in places.items():
            self._context.pop(writer, None)
            self._context[writer] = all_rows[seen[-CONTEXT_LINES:]]
        return all_rows[index]

    def to_dict(self) -> dict[str, Any]:
        """All that is needed to go on elsewhere, as JSON."""
        context = {writer: np.round(rows, 4).tolist() for writer, rows in self._context.items()}
        return {"gpus": self.gpus, "lines": self.lines, "live": self.live, "context": context,
                "machine": machine_to(self.machine)}  # fmt: skip

    @classmethod
    def from_dict(cls, found: Mapping[str, Any], classifier: LineClassifier) -> "Session":
        """Goes on where ``to_dict`` was called. Raises ValueError for anything else."""
        try:
            session = cls(classifier, int(found["gpus"]))
            session.lines, session.live = int(found["lines"]), bool(found["live"])
            session.machine = machine_from(found["machine"])
            for writer, rows in found["context"].items():
                kept = np.asarray(rows, np.float32)
                if kept.shape[0] > CONTEXT_LINES or kept.shape[1:] != (len(LABELS),):
                    raise ValueError("context of another model")
                session._context[str(writer)] = kept
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"no saved session of a log ({error!r})") from error
        return session
