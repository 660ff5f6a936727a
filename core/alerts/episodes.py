"""When alerts fired and were resolved, out of the samples that Prometheus keeps of each (``ALERTS``)."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

ID_LENGTH = 10
_NOT_OF_AN_ALERT = frozenset({"__name__", "alertname", "alertstate", "severity"})


@dataclass(frozen=True)
class Episode:
    """An alert from when it fired until it was resolved, in Unix seconds; ``resolved_s`` is None while it fires.
    Times are right to the distance of samples."""

    labels: tuple[tuple[str, str], ...]
    fired_s: float
    resolved_s: float | None

    @property
    def alert(self) -> str:
        return dict(self.labels).get("alertname", "")

    @property
    def severity(self) -> str:
        return dict(self.labels).get("severity", "")

    @property
    def about(self) -> str:
        """What it is about, by its other labels."""
        return ", ".join(f"{name}={value}" for name, value in self.labels if name not in _NOT_OF_AN_ALERT)

    @cached_property
    def identity(self) -> str:
        """Of the alert with its labels, whenever it fires."""
        text = "\0".join(f"{name}\0{value}" for name, value in self.labels if name != "alertstate")
        return hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]

    def has(self, at_s: float, tolerance_s: float) -> bool:
        """Whether it fired then."""
        end_s = float("inf") if self.resolved_s is None else self.resolved_s
        return self.fired_s - tolerance_s <= at_s <= end_s + tolerance_s


def episodes(
    series: Iterable[tuple[Mapping[str, str], Sequence[float]]], step_s: float, until_s: float
) -> list[Episode]:
    """Of each series' labels and times of samples, which are ``step_s`` apart while it fires; the newest first.

    A sample that is missing between two others is a resolution, as Prometheus itself has it after a gap.
    """
    result = []
    for labels, times_s in series:
        own = _labels(labels)
        begin = previous = None
        for at_s in sorted(times_s):
            if begin is None or previous is None:
                begin = at_s
            elif at_s - previous > 1.5 * step_s:
                result.append(Episode(own, begin, previous + step_s))
                begin = at_s
            previous = at_s
        if begin is not None and previous is not None:
            fires = previous > until_s - 1.5 * step_s
            result.append(Episode(own, begin, None if fires else previous + step_s))
    return _ordered(result)


def with_firing(listed: Iterable[Episode], firing: Iterable[Mapping[str, str]], now_s: float) -> list[Episode]:
    """The episodes with what was looked up at ``now_s``: the labels of alerts that fire then. Whatever else seemed to
    fire has been resolved since its last sample."""
    own = {_labels(labels) for labels in firing}
    known = [
        each if each.resolved_s is not None or each.labels in own else replace(each, resolved_s=now_s)
        for each in listed
    ]
    new = own - {each.labels for each in known if each.resolved_s is None}
    return _ordered([*known, *(Episode(labels, now_s, None) for labels in new)])


def _labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "__name__"))


def _ordered(listed: Iterable[Episode]) -> list[Episode]:
    return sorted(listed, key=lambda each: (-each.fired_s, each.alert, each.about))
