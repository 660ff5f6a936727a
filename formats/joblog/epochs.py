"""Epochs of a training run by its log: when each began and ended, how many steps it made, and how fast it read data.

Read are ``Epoch 3``, ``Epoch [3/10]``, ``epoch: 3``, ``'epoch': 2.57`` (a part of an epoch belongs to it), counters of
steps and progress bars as ``progress`` reads them, and rates such as ``1234.5 samples/s``, ``tokens_per_second: 9.1e4``
or ``812 img/sec``. Lines need a date with a time, or a time of arrival.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from kopt.formats.joblog.progress import counted_steps
from kopt.formats.joblog.stamps import Precision, find_stamp

_EPOCH = re.compile(r"(?<![\w-])epoch\b['\"]?[\s:=\[(#]{0,6}(?P<epoch>\d{1,6}(?:\.\d+)?)", re.IGNORECASE)
_VALUE = r"(?P<value>\d[\d,]{0,14}(?:\.\d+)?(?:e[+-]?\d{1,2})?)\s?(?P<scale>[kM])?"
_OF = r"(?P<of>samples?|sequences?|seqs?|examples?|images?|imgs?|tokens?|toks?)"
_RATE = re.compile(rf"{_VALUE}\s?{_OF}\s?(?:/\s?s(?:ec(?:onds?)?)?|per second)\b", re.IGNORECASE)
_NAMED_RATE = re.compile(
    rf"\b\w{{0,20}}?{_OF}(?:_per_sec(?:ond)?|/s(?:ec(?:ond)?)?)\b['\"]?\s?[:=]\s?{_VALUE}", re.IGNORECASE
)
_SCALES = {None: 1.0, "k": 1e3, "m": 1e6}
_LOOKED_AT, MOST_EPOCHS = 2_000, 100_000


@dataclass(frozen=True)
class Epoch:
    """Unix seconds. ``steps`` is 0 where none were counted; rates are means of what its lines say, None without any."""

    number: int
    start_s: float
    end_s: float
    steps: int = 0
    samples_per_s: float | None = None
    tokens_per_s: float | None = None


@dataclass
class _Part:
    number: int
    start_s: float
    end_s: float
    steps: int = 0
    rates: dict[str, list[float]] = field(default_factory=lambda: {"samples": [], "tokens": []})


class EpochReader:
    """Reads a log line by line. An epoch lasts until a line of another one; an epoch that is begun again, after a
    restart, is told twice."""

    def __init__(self) -> None:
        self._parts: list[_Part] = []
        self._step: dict[int, int] = {}
        self._at_s: float | None = None

    def read(self, text: str, arrived_s: float | None = None) -> None:
        """One line; without a time of its own it is of the time of the line before."""
        text = text.rsplit("\r", 1)[-1][:_LOOKED_AT]
        stamp = None if arrived_s is not None else find_stamp(text)
        if stamp is not None and stamp.precision is Precision.FULL:
            arrived_s = stamp.at_s
        if arrived_s is not None:
            self._at_s = arrived_s if self._at_s is None else max(self._at_s, arrived_s)
        if self._at_s is None:
            return
        for match in _EPOCH.finditer(text):
            self._begin(int(float(match["epoch"])), self._at_s)
        if self._parts:
            part = self._parts[-1]
            part.end_s = self._at_s
            part.steps += self._advanced(text)
            for name, rate in _rates(text):
                part.rates[name].append(rate)

    def epochs(self) -> tuple[Epoch, ...]:
        """In the order of the log."""
        return tuple(
            Epoch(
                part.number,
                part.start_s,
                part.end_s,
                part.steps,
                _mean(part.rates["samples"]),
                _mean(part.rates["tokens"]),
            )
            for part in self._parts
        )

    def _begin(self, number: int, at_s: float) -> None:
        if self._parts and self._parts[-1].number == number:
            return
        if len(self._parts) < MOST_EPOCHS:
            if self._parts:
                self._parts[-1].end_s = at_s
            self._parts.append(_Part(number, at_s, at_s))

    def _advanced(self, text: str) -> int:
        """Steps since the line before, by the counter that is there; one that starts over begins at 0."""
        result = 0
        for step, total in counted_steps(text):
            before = self._step.get(total)
            self._step[total] = step
            # The first number that is seen says nothing of how many were made since the line before.
            result = max(result, 0 if before is None else step - before if step >= before else step)
        return result


def read_epochs(lines: Iterable[str]) -> tuple[Epoch, ...]:
    """Of a whole log."""
    reader = EpochReader()
    for line in lines:
        reader.read(line)
    return reader.epochs()


def _rates(text: str) -> Iterable[tuple[str, float]]:
    for match in (*_RATE.finditer(text), *_NAMED_RATE.finditer(text)):
        rate = float(match["value"].replace(",", "")) * _SCALES[match["scale"] and match["scale"].lower()]
        if 0 < rate < math.inf:
            yield ("tokens" if match["of"].lower().startswith("tok") else "samples"), rate


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
