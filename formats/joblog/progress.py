"""How far a training run is, by its log: step k of N, and what the last steps took.

Read are progress bars (tqdm, rich), counters beside a word for steps (``step 1200/5000``, ``iteration 400/ 1000``,
``Epoch [3/10]``, ``batch 7 of 90``), and what a line itself says of its speed (``2.3s/it``, ``elapsed time per
iteration (ms): 2900``). A counter that starts over again and again counts within epochs; where the epochs are counted
too, the run has as many steps as both together, and otherwise its end is not known.
"""

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from kopt.core.workload.run_time import StepProgress
from kopt.formats.joblog.stamps import find_stamp

_NUMBER = r"\d[\d,]{0,14}"
_BAR = re.compile(rf"\d{{1,3}}%\|[^|]{{0,400}}\|\s*(?P<step>{_NUMBER})/(?P<total>{_NUMBER})(?=[\s\[])")
_COUNTED = re.compile(
    rf"\b(?P<word>(?:global[ _])?steps?|iter(?:ation)?s?|it|batch(?:es)?|updates?|epochs?)\b[\s:=\[(#]{{0,6}}"
    rf"(?P<step>{_NUMBER})\s*(?:/|of)\s*(?P<total>{_NUMBER})(?![\d.]*\s?[KMGT]i?B)",
    re.IGNORECASE,
)
_LEADING = re.compile(rf"\s*(?P<step>{_NUMBER})/(?P<total>{_NUMBER})\s")
"""Epochs at the beginning of a line with a bar, as Ultralytics writes them."""
_PER_STEP = re.compile(
    r"(?P<per>\d+(?:\.\d+)?)\s?(?P<unit>s|ms)/(?:it|step|iter|batch)\b"
    r"|(?P<rate>\d+(?:\.\d+)?)\s?(?:it|steps?|iters?|batch(?:es)?)/s(?:ec)?\b"
    r"|elapsed time per iteration \(ms\): (?P<ms>\d+(?:\.\d+)?)",
    re.IGNORECASE,
)
_LOOKED_AT = 2_000
_KEPT = 50
_MOST_SERIES = 64
_LONGEST_STEP_S = 1e6


@dataclass
class _Series:
    """Counts up to one total, under one word. ``rounds`` are those that came to their end or started over;
    ``stride`` is the longest way from one line to the next, ``first`` where it began."""

    total: int
    step: int = -1
    rounds: int = 0
    stride: int = 0
    first: int = -1
    resumed: tuple[int, ...] = ()
    at_s: float | None = None
    count: int = 0
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def add(self, step: int, at_s: float | None, per_step: float | None) -> None:
        if step < self.step:
            # From its middle to its middle: the run goes on from its last checkpoint, as torchrun's workers do. What
            # begins where it began, or twice at one step, counts within epochs, whose lines need not begin at 1.
            is_resumed = self.step + self.stride < self.total and step > max(0, self.first) + self.stride
            is_resumed = is_resumed and step not in self.resumed
            self.resumed = (*self.resumed, step)[-_KEPT:]
            self.rounds += not is_resumed
        elif per_step is None and self.at_s is not None and at_s is not None and step > self.step >= 0:
            per_step = (at_s - self.at_s) / (step - self.step)
        if per_step is not None and 0 < per_step < _LONGEST_STEP_S:
            self.times.append(per_step)
        self.stride = max(self.stride, step - self.step) if self.step >= 0 else self.stride
        self.first = step if self.first < 0 else self.first
        self.step, self.count = step, self.count + 1
        self.at_s = self.at_s if at_s is None else at_s


class ProgressReader:
    """Reads a log line by line, as it is written."""

    def __init__(self) -> None:
        self._series: dict[tuple[bool, int], _Series] = {}
        self._last: dict[bool, tuple[bool, int]] = {}

    def read(self, text: str, arrived_s: float | None = None) -> None:
        """One line; where it is not known when it arrived (Unix seconds), the line's own time counts, if it has any."""
        text = text.rsplit("\r", 1)[-1][:_LOOKED_AT]
        stamp = find_stamp(text) if arrived_s is None else None
        at_s = arrived_s if stamp is None else stamp.at_s
        per_step = _per_step(text)
        bars = list(_BAR.finditer(text))
        leading = _LEADING.match(text) if bars else None
        for match in (*bars, *_COUNTED.finditer(text), *([leading] if leading else [])):
            step, total = (int(match[name].replace(",", "")) for name in ("step", "total"))
            if not (0 <= step <= total and total > 1):
                continue
            of_epochs = match is leading or "epoch" in (match.groupdict().get("word") or "").lower()
            key = (of_epochs, total)
            series = self._series.get(key)
            if series is None:
                if len(self._series) >= _MOST_SERIES:
                    continue
                series = self._series[key] = _Series(total)
            series.add(step, at_s, None if of_epochs else per_step)
            self._last[of_epochs] = key

    def progress(self, now_s: float | None = None) -> StepProgress | None:
        """None where the log does not show how far the run is, or how fast. ``now_s`` is when the last step was done
        where no line has a time."""
        steps = self._main(of_epochs=False)
        epochs = self._main(of_epochs=True)
        if steps is None:
            return None if epochs is None else _of(epochs, 0, 1, now_s)
        if epochs is None:
            return None if steps.rounds else _of(steps, 0, 1, now_s)
        if not steps.rounds and epochs.step > 1:
            # Epochs went on and the counter did not start over: it counts the whole run.
            return _of(steps, 0, 1, now_s)
        # Counters of epochs begin at 0 or 1; rounds that were seen to start over say which.
        return _of(steps, min(steps.rounds, epochs.total - 1), epochs.total, now_s)

    def _main(self, *, of_epochs: bool) -> _Series | None:
        """The counter that most lines are about, of those that were counted lately."""
        candidates = [series for (kind, _), series in self._series.items() if kind == of_epochs and series.count > 1]
        return max(candidates, key=lambda series: (series.total * (series.rounds + 1), series.count), default=None)


def counted_steps(text: str) -> list[tuple[int, int]]:
    """Step and total of each counter of steps in a line, without those of epochs."""
    words = (match for match in _COUNTED.finditer(text) if "epoch" not in match["word"].lower())
    counters = [
        tuple(int(match[name].replace(",", "")) for name in ("step", "total"))
        for match in (*_BAR.finditer(text), *words)
    ]
    return [(step, total) for step, total in counters if 0 <= step <= total and total > 1]


def read_progress(lines: Iterable[tuple[str, float | None]]) -> StepProgress | None:
    """Of a whole log: lines with their arrival (Unix seconds or None)."""
    reader = ProgressReader()
    for text, arrived_s in lines:
        reader.read(text, arrived_s)
    return reader.progress()


def _of(series: _Series, rounds: int, of_rounds: int, now_s: float | None) -> StepProgress | None:
    at_s = series.at_s if series.at_s is not None else now_s
    if not series.times or at_s is None:
        return None
    step = rounds * series.total + series.step
    return StepProgress(min(step, of_rounds * series.total), of_rounds * series.total, at_s, tuple(series.times))


def _per_step(text: str) -> float | None:
    """Seconds, as the line says; the last of several."""
    result = None
    for match in _PER_STEP.finditer(text):
        if match["per"]:
            result = float(match["per"]) * (1e-3 if match["unit"].lower() == "ms" else 1.0)
        elif match["rate"]:
            result = 1 / float(match["rate"]) if float(match["rate"]) > 0 else result
        else:
            result = float(match["ms"]) / 1e3
    return result
