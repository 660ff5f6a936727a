"""Epochs of a training run by its log: when each began and ended, how many steps it made, and how fast it read data.

Read are ``Epoch 3``, ``Epoch [3/10]``, ``epoch: 3``, ``'epoch': 2.57`` (a part of an epoch belongs to it), counters of
steps and progress bars as ``progress`` reads them, and rates such as ``1234.5 samples/s``, ``tokens_per_second: 9.1e4``
or ``812 img/sec``. Lines need a date with a time, or a time of arrival.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kopt.formats.joblog.progress import counted_steps
from kopt.formats.joblog.stamps import Precision, find_stamp

_EPOCH = re.compile(r"(?<![\w-])epoch\b['\"]?[\s:=\[(#]{0,6}(?P<epoch>\d{1,6}(?:\.\d+)?)", re.IGNORECASE)
_VALUE = r"(?<![\d.,])(?P<value>\d[\d,]{0,14}(?:\.\d+)?(?:e[+-]?\d{1,2})?)\s?(?P<scale>[kM])?"
_OF = r"(?P<of>samples?|sequences?|seqs?|examples?|images?|imgs?|tokens?|toks?)"
_RATE = re.compile(rf"{_VALUE}\s?{_OF}\s?(?:/\s?s(?:ec(?:onds?)?)?|per second)\b", re.IGNORECASE)
_NAMED_RATE = re.compile(rf"{_OF}(?:_per_sec(?:ond)?|/s(?:ec(?:ond)?)?)\b['\"]?\s?[:=]\s?{_VALUE}", re.IGNORECASE)
_SCALES = {None: 1.0, "k": 1e3, "m": 1e6}
_LOOKED_AT, MOST_EPOCHS, _MOST_COUNTERS = 2_000, 100_000, 16


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
class _Rate:
    total: float = 0.0
    count: int = 0

    def add(self, rate: float) -> None:
        self.total, self.count = self.total + rate, self.count + 1

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass
class _Part:
    number: int
    start_s: float
    end_s: float
    steps: int
    samples: _Rate
    tokens: _Rate

    @classmethod
    def of(cls, number: int, at_s: float) -> "_Part":
        return cls(number, at_s, at_s, 0, _Rate(), _Rate())

    @property
    def epoch(self) -> Epoch:
        return Epoch(self.number, self.start_s, self.end_s, self.steps, self.samples.mean, self.tokens.mean)


class EpochReader:
    """Reads a log line by line. An epoch lasts until a line of another one; an epoch that is begun again, after a
    restart, is told twice. No more than ``most`` are told apart; of the text nothing is kept."""

    def __init__(self, most: int = MOST_EPOCHS) -> None:
        self._most, self._count = most, 0
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
            for is_tokens, rate in _rates(text):
                (part.tokens if is_tokens else part.samples).add(rate)

    def epochs(self) -> tuple[Epoch, ...]:
        """In the order of the log."""
        return tuple(part.epoch for part in self._parts)

    def drop_ended(self) -> None:
        """Forget all but the last epoch, which may go on."""
        del self._parts[:-1]

    def to_dict(self) -> dict[str, Any]:
        """Numbers alone, to go on from elsewhere; epochs before the last one are left out."""
        last = asdict(self._parts[-1]) if self._parts else None
        return {"count": self._count, "last": last, "steps": list(self._step.items()), "at": self._at_s}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any], most: int = MOST_EPOCHS) -> "EpochReader":
        """Raises ValueError for what ``to_dict`` did not write."""
        reader = cls(most)
        try:
            reader._count = int(document["count"])
            reader._step = {int(total): int(step) for total, step in document["steps"]}
            reader._at_s = None if document["at"] is None else float(document["at"])
            if (last := document["last"]) is not None:
                rates = (_Rate(float(last[name]["total"]), int(last[name]["count"])) for name in ("samples", "tokens"))
                times = (float(last["start_s"]), float(last["end_s"]))
                reader._parts = [_Part(int(last["number"]), *times, int(last["steps"]), *rates)]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no stored epochs ({error!r})") from error
        return reader

    def _begin(self, number: int, at_s: float) -> None:
        if self._parts and self._parts[-1].number == number:
            return
        if self._count < self._most:
            if self._parts:
                self._parts[-1].end_s = at_s
            self._parts.append(_Part.of(number, at_s))
            self._count += 1

    def _advanced(self, text: str) -> int:
        """Steps since the line before, by the counter that is there; one that starts over begins at 0."""
        result = 0
        for step, total in counted_steps(text):
            before = self._step.pop(total, None)
            self._step[total] = step
            if len(self._step) > _MOST_COUNTERS:
                del self._step[next(iter(self._step))]
            # The first number that is seen says nothing of how many were made since the line before.
            result = max(result, 0 if before is None else step - before if step >= before else step)
        return result


def read_epochs(lines: Iterable[str]) -> tuple[Epoch, ...]:
    """Of a whole log."""
    reader = EpochReader()
    for line in lines:
        reader.read(line)
    return reader.epochs()


def _rates(text: str) -> Iterable[tuple[bool, float]]:
    """Whether it is of tokens, and so many a second."""
    if "/" not in text and "per" not in text.lower():
        return
    for match in (*_RATE.finditer(text), *_NAMED_RATE.finditer(text)):
        rate = float(match["value"].replace(",", "")) * _SCALES[match["scale"] and match["scale"].lower()]
        if 0 < rate < math.inf:
            yield match["of"].lower().startswith("tok"), rate
