"""What the pipeline and a predictor's recipe agree on: data sets, parts, backtests, recipes and their scoring.

Nothing here imports the pipeline, so a recipe and the pipeline can both import it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from kopt.core.reason import Reason
from kopt.core.settings import Settings
from kopt.models.base import Predictor
from kopt.models.registry.artifact import ModelCard

NEW = "regime new services"
KNOWN = "regime known services"
_MOST_MESSAGES = 3


@dataclass(frozen=True)
class Part:
    """One fit and what it is tested on: the series ``test`` were left out of it, or only their test window was."""

    name: str
    regime: str
    fit: tuple[str, ...]
    test: tuple[str, ...]
    before_window: bool


@dataclass(frozen=True)
class Backtest:
    """Forecasts of the recipe's own type, and how far they changed where what comes later was cut off."""

    forecasts: tuple[Any, ...]
    peeked: float


@dataclass(frozen=True)
class Champion:
    """The champion's forecasts by series, and its card, which says what it was trained on."""

    forecasts: Mapping[str, Any]
    card: ModelCard


@dataclass(frozen=True)
class GateRules:
    """When a difference counts."""

    accuracy_tolerance: float = 0.03
    """A slice may lose this share of its accuracy (relative growth of the error) before noise is even asked."""
    lending_tolerance: float = 0.01
    """… and this much of the oracle's lending, at 1 % violation."""
    violation_limit: float = 0.015
    """Violations of the p99 up to here need no comparison with the champion's."""
    level: float = 0.05
    """Chance of an error that is accepted for the whole set of comparisons."""
    resamples: int = 300
    minimum_days: int = 2
    """Days (over all services) in which neither model has seen anything; with fewer the challenger is refused."""
    minimum_rows: int = 200
    clustered_from: int = 5
    """Services from which on they are resampled too."""
    minimum_blocks: int = 12
    """A slice with fewer blocks of four hours is not evaluated by itself."""
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """One metric of one slice at one horizon. ``change`` is positive where the challenger is better; ``low`` and
    ``high`` bound it at the level that several comparisons together call for. Accuracy changes are relative."""

    slice: str
    horizon_s: int
    metric: str
    champion: float
    challenger: float
    change: float
    low: float
    high: float
    services: int


@dataclass(frozen=True)
class GateDecision:
    """Passed or refused, why, and every comparison behind it."""

    passed: bool
    reasons: tuple[Reason, ...]
    comparisons: tuple[Comparison, ...] = ()

    @property
    def summary(self) -> str:
        """The three most important reasons as text."""
        more = len(self.reasons) - _MOST_MESSAGES
        messages = [reason.message for reason in self.reasons[:_MOST_MESSAGES]] + [f"And {more} more."] * (more > 0)
        return " ".join(messages)


def refuse(code: str, message: str, **numbers: float | int | str) -> GateDecision:
    """A refusal for a reason other than a comparison."""
    return GateDecision(False, (Reason(code, message, numbers),))


class Dataset(Protocol):
    """What a recipe learns from. ``names`` are the things that folds are dealt from, ``excluded`` those that cannot be
    used, with the reason; ``digest`` identifies the data."""

    @property
    def name(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def excluded(self) -> Mapping[str, str]: ...

    @property
    def digest(self) -> str: ...

    @property
    def is_example(self) -> bool:
        """Whether all of it was made up, to have something to look at."""
        ...

    def group(self, name: str) -> str:
        """What ``name`` is left out together with."""
        ...

    def size(self, name: str) -> int:
        """How much of a fold it makes up."""
        ...


class Source(Protocol):
    """A source of training data."""

    def read(self) -> Dataset:
        """Raises the data's own error, a ValueError, for what cannot be learned from."""
        ...


class Scoring(Protocol):
    """Forecasts, scores and summaries are the recipe's own types; the pipeline only hands them on.

    A summary has ``slice`` and ``services``, a count.
    """

    def key(self, forecast: Any) -> str:
        """The name by which two models' forecasts of the same thing are found."""
        ...

    def scores(self, dataset: Any, parts: Sequence[Part], backtests: Mapping[str, Backtest]) -> Sequence[Any]:
        """The challenger's scores, part by part."""
        ...

    def summarise(self, scores: Sequence[Any]) -> tuple[Any, ...]:
        """Means by slice, for people."""
        ...

    def metrics(self, summaries: Sequence[Any]) -> Mapping[str, float]:
        """The same by name, for MLflow."""
        ...

    def decide(
        self,
        dataset: Any,
        parts: Sequence[Part],
        challenger: Sequence[Any],
        backtests: Mapping[str, Backtest],
        champion: Champion | None,
        rules: GateRules,
    ) -> GateDecision:
        """Whether the challenger is better beyond noise and worse nowhere."""
        ...

    def draw(
        self,
        folder: Path,
        dataset: Dataset,
        parts: Sequence[Part],
        scores: Sequence[Any],
        backtests: Mapping[str, Backtest],
    ) -> Sequence[Path]:
        """Pictures, written into ``folder``."""
        ...

    def write(self, forecasts: Sequence[Any], path: Path) -> None:
        """Forecasts as one file."""
        ...

    def read(self, path: Path) -> tuple[Any, ...]:
        """What ``write`` wrote. Raises ValueError for a file that is not whole."""
        ...


class Recipe(Protocol):
    """How one predictor is trained. Everything here may run in a worker, so it is found by the predictor's name."""

    predictor: str
    defaults: Mapping[str, Any]
    scoring: Scoring

    def modules(self) -> Sequence[ModuleType]:
        """The code that fitted models depend on."""
        ...

    def table(self, dataset: Any, settings: Settings) -> Any:
        """Features and targets of every origin, through the feature store."""
        ...

    def suggest(self, trial: Any) -> dict[str, Any]:
        """Parameters of one trial of the search (an Optuna trial)."""
        ...

    def loss(self, table: Any, held_out: Sequence[str], parameters: Mapping[str, Any], threads: int) -> float:
        """What the search minimises: the loss on held-out series after a fit on the others."""
        ...

    def fit(
        self, dataset: Any, table: Any, part: Part | None, parameters: Mapping[str, Any], threads: int
    ) -> Predictor:
        """Fit on a part's rows, or on all of them."""
        ...

    def backtests(self, predictor: Predictor, dataset: Any, names: Sequence[str]) -> list[Any]:
        """Forecasts of ``names`` as serving makes them: from what is known beforehand alone."""
        ...

    def peeks(self, predictor: Predictor, dataset: Any, name: str, forecasts: Any) -> float:
        """Largest relative change of a forecast when what comes later is cut off; more than rounding means a leak."""
        ...

    def card(self, dataset: Any, parameters: Mapping[str, Any]) -> ModelCard:
        """The card of a model fitted on all of the data."""
        ...
