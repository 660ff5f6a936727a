"""Whole jobs made up from phrases: lines in an order in which trainers print them, in one style each.

What a line means depends on the lines before it: the second "Saving …" in a row is a file of the same checkpoint, a
line of code is an error below a traceback's head. A job keeps its words: it says the same thing the same way.
"""

import random
from collections.abc import Iterator

from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.phrases import Phrases, dressed, phrases

LabelledText = tuple[str, LineLabel]
_L = LineLabel
_TRACEBACK = "Traceback (most recent call last):"


class Scenario:
    """One made-up job: ``lines`` yields what it says."""

    def __init__(self, rng: random.Random, source: Phrases | None = None) -> None:
        self._rng = rng
        self._phrases = source or phrases()
        self._dress = rng.random()
        self._seeds: dict[LineLabel, list[int]] = {}

    def lines(self, most: int) -> list[LabelledText]:
        """At most so many lines, from the start or from somewhere in the middle."""
        rng = self._rng
        result: list[LabelledText] = []
        if rng.random() < 0.5:
            result += self._some(_L.STARTUP, 1, 8) + self._some(_L.OTHER, 0, 6) + self._some(_L.DATA, 0, 5)
            result += self._some(_L.CKPT_LOAD, 0, 2) + self._some(_L.STARTUP, 0, 4)
        while len(result) < most and rng.random() < 0.93:
            result += self._round()
        if rng.random() < 0.3:
            result += self._some(_L.END, 1, 3)
        return result[:most]

    def _round(self) -> list[LabelledText]:
        rng = self._rng
        result = self._some(_L.TRAIN_STEP, 1, 6)
        if rng.random() < 0.3:
            result += self._some(_L.EVAL, 1, 4)
        if rng.random() < 0.12:
            result += self._some(_L.OTHER, 1, 4)
        if rng.random() < 0.6:
            result += self._write()
        if rng.random() < 0.06:
            result += self._failure()
        return result

    def _write(self) -> list[LabelledText]:
        """Begin, files, end; each may be missing, and files said like a beginning are files all the same."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.2:
            return self._some(_L.CKPT_BEGIN, 1, 1)
        if kind < 0.35:
            return self._some(_L.CKPT_END, 1, 1)
        result = self._some(_L.CKPT_BEGIN, 1, 1)
        if kind < 0.8:
            result += self._some(_L.CKPT_PROGRESS, 0, 6)
        if rng.random() < 0.15:
            result += [(text, _L.CKPT_PROGRESS) for text, _ in self._some(_L.CKPT_BEGIN, 1, 2)]
        if rng.random() < 0.1:
            result += [(text, _L.CKPT_PROGRESS) for text, _ in self._some(_L.CKPT_END, 1, 2)]
        return result + self._some(_L.CKPT_END, 0 if kind > 0.7 else 1, 1)

    def _failure(self) -> list[LabelledText]:
        rng = self._rng
        if rng.random() < 0.2:
            return self._some(_L.OOM, 1, 1)
        if rng.random() < 0.3:
            return self._some(_L.ERROR, 1, 3)
        return list(self._traceback())

    def _traceback(self) -> Iterator[LabelledText]:
        rng = self._rng
        yield _TRACEBACK, _L.ERROR
        for _ in range(rng.randrange(1, 6)):
            yield f'  File "{self._phrases.fill("pyfile", rng)}", line {rng.randrange(3000)}, in main', _L.ERROR
            # Code of any kind is quoted in a traceback, training and saving too.
            code = self._phrases.fill("code", rng)
            yield f"    {code}", _L.ERROR
            if rng.random() < 0.3:
                yield " " * rng.randrange(4, 20) + "^" * rng.randrange(4, 40), _L.ERROR
        yield f"{self._phrases.fill('error_name', rng)}: {self._phrases.render(_L.OTHER, rng)}", _L.ERROR

    def _some(self, label: LineLabel, least: int, most: int) -> list[LabelledText]:
        return [self._labelled(label) for _ in range(self._rng.randint(least, most))]

    def _labelled(self, label: LineLabel) -> LabelledText:
        """A job has few ways to say one thing: a phrase is chosen again by its seed, with numbers of its own."""
        seeds = self._seeds.setdefault(
            label, [self._rng.randrange(1 << 30) for _ in range(self._rng.choice((1, 2, 4)))]
        )
        many = label in (_L.STARTUP, _L.OTHER, _L.DATA, _L.ERROR, _L.CKPT_PROGRESS)
        rng = random.Random(self._rng.randrange(1 << 30) if many else self._rng.choice(seeds))
        message = self._phrases.render(label, rng)
        style = random.Random(int(self._dress * 1e9))
        return dressed(message, label, style if self._rng.random() < 0.9 else self._rng), label
