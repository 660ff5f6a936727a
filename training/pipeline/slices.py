"""Scores of runs that are each answered by themselves, summarised by the slices of the data that they belong to."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from kopt.training.pipeline.protocols import KNOWN, Backtest, Champion, Part

ALL = "all"
"""The slice that every score belongs to."""


class ScoredRun(Protocol):
    """A dataclass of what JSON can hold: one series of the data, and how it was answered."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def series(self) -> str: ...


class SliceSummary(Protocol):
    """Means of one slice."""

    @property
    def slice(self) -> str: ...

    def metrics(self) -> Mapping[str, float]: ...


R = TypeVar("R", bound=ScoredRun)
S = TypeVar("S", bound=SliceSummary)


@dataclass(frozen=True)
class RunScore(Generic[R]):
    """A run, the regime in which it was answered, and the slices that it counts in besides this and ``ALL``."""

    run: R
    regime: str
    further: tuple[str, ...] = ()

    @property
    def slices(self) -> tuple[str, ...]:
        return (self.regime, *self.further)


class RunScoring(ABC, Generic[R, S]):
    """What is the same in each ``Scoring`` whose forecasts are runs; they are kept as JSON."""

    @abstractmethod
    def summary(self, label: str, runs: Sequence[R]) -> S:
        """Means of a slice. Raises ValueError without any run."""

    @abstractmethod
    def read_run(self, document: Mapping[str, Any]) -> R:
        """Of its JSON form. Raises KeyError, TypeError or ValueError where it is none."""

    def slices_of(self, run: R) -> tuple[str, ...]:
        """The slices of a run besides its regime and ``ALL``."""
        return ()

    def key(self, forecast: R) -> str:
        return forecast.series

    def scores(self, dataset: Any, parts: Sequence[Part], backtests: Mapping[str, Backtest]) -> tuple[RunScore[R], ...]:
        """Of what was left out only: how a model answers what it has learned says nothing about the next."""
        return tuple(
            RunScore(forecast, part.regime, self.slices_of(forecast))
            for part in [part for part in parts if part.regime != KNOWN] or parts
            for forecast in backtests[part.name].forecasts
        )

    def summarise(self, scores: Sequence[RunScore[R]]) -> tuple[S, ...]:
        """In the order of the slices' names."""
        groups: dict[str, list[R]] = {}
        for score in scores:
            for label in (ALL, *score.slices):
                groups.setdefault(label, []).append(score.run)
        return tuple(self.summary(label, runs) for label, runs in sorted(groups.items()))

    def metrics(self, summaries: Sequence[S]) -> Mapping[str, float]:
        return named_figures((summary.slice, summary.metrics()) for summary in summaries)

    def unseen_by(self, champion: Champion) -> dict[str, R]:
        """The champion's runs, by key, of series that it was not trained on."""
        trained = {trained_on.name for trained_on in champion.card.training_data}
        return {key: run for key, run in champion.forecasts.items() if run.series not in trained}

    def write(self, forecasts: Sequence[R], path: Path) -> None:
        path.write_text(json.dumps([asdict(run) for run in forecasts]), encoding="utf-8")

    def read(self, path: Path) -> tuple[R, ...]:
        """Raises ValueError, with the path, for what cannot be read."""
        try:
            return tuple(self.read_run(document) for document in json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error


def named_figures(figures: Iterable[tuple[str, Mapping[str, float]]]) -> dict[str, float]:
    """``slice/name`` of every figure; characters that MLflow does not take in a name become dashes."""
    return {f"{_plain(label)}/{name}": value for label, named in figures for name, value in named.items()}


def _plain(text: str) -> str:
    return "".join(c if c.isalnum() or c in "_-. " else "-" for c in text)[:120]
