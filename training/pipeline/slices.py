"""Scores summarised by the slices of the data that they belong to."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
ALL = "all"
"""The slice that every score belongs to."""


class SlicedScore(Protocol[R_co]):
    """How one run was answered, and the slices that it counts in besides ``ALL``."""

    @property
    def run(self) -> R_co: ...

    @property
    def slices(self) -> tuple[str, ...]: ...


class SliceSummary(Protocol):
    """Means of one slice."""

    @property
    def slice(self) -> str: ...

    def metrics(self) -> Mapping[str, float]: ...


def summaries_by_slice(scores: Iterable[SlicedScore[R]], summary: Callable[[str, list[R]], S]) -> tuple[S, ...]:
    """What ``summary`` makes of each slice's name and runs, in the order of their names."""
    groups: dict[str, list[R]] = {}
    for score in scores:
        for label in (ALL, *score.slices):
            groups.setdefault(label, []).append(score.run)
    return tuple(summary(label, runs) for label, runs in sorted(groups.items()))


def metrics_by_slice(summaries: Iterable[SliceSummary]) -> dict[str, float]:
    """``slice/name`` of every figure, as MLflow is given them."""
    return {f"{summary.slice}/{key}": value for summary in summaries for key, value in summary.metrics().items()}
