"""What a predictor adds so that the one training pipeline can train it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from kopt.core.settings import Settings
from kopt.models.artefact import ModelCard
from kopt.models.base import Predictor
from kopt.training.scoring import Scoring

NEW = "regime new services"
KNOWN = "regime known services"


@dataclass(frozen=True)
class Part:
    """One fit and what it is tested on: the series ``test`` were left out of it, or only their test window was."""

    name: str
    regime: str
    fit: tuple[str, ...]
    test: tuple[str, ...]
    before_window: bool


class Dataset(Protocol):
    """What a recipe learns from. ``names`` are the things that folds are dealt from, ``left_out`` those that cannot be
    used, with the reason; ``digest`` tells one data set from another."""

    @property
    def name(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def left_out(self) -> Mapping[str, str]: ...

    @property
    def digest(self) -> str: ...

    def group(self, name: str) -> str:
        """What ``name`` is left out together with."""
        ...

    def size(self, name: str) -> int:
        """How much of a fold it makes up."""
        ...


class Source(Protocol):
    """A place training data comes from."""

    def read(self) -> Dataset:
        """Raises the data's own error, a ValueError, for what cannot be learned from."""
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


RECIPES: Mapping[str, str] = {
    "bandwidth": "kopt.training.bandwidth:BandwidthRecipe",
    "checkpoint": "kopt.training.checkpoint:CheckpointRecipe",
    "demand": "kopt.training.demand:DemandRecipe",
    "sizing": "kopt.training.sizing:SizingRecipe",
}
"""Predictor → module and class of its recipe."""


def recipe_of(predictor: str) -> Recipe:
    """Raises KeyError with the names that can be trained."""
    from importlib import import_module

    if predictor not in RECIPES:
        raise KeyError(f"{predictor!r} cannot be trained; there are {', '.join(sorted(RECIPES))}")
    module, _, attribute = RECIPES[predictor].partition(":")
    made: Recipe = getattr(import_module(module), attribute)()
    return made


def folds(dataset: Dataset, count: int) -> tuple[Part, ...]:
    """Group-wise cross-validation in at most ``count`` folds, plus one part that knows all series but not the window.

    Groups stay whole and are dealt out largest first, so that folds have about the same number of buckets. With one
    group only, there is nothing to generalise from and only the second kind is left.
    """
    sizes: dict[str, int] = {}
    names = dataset.names
    for name in names:
        group = dataset.group(name)
        sizes[group] = sizes.get(group, 0) + dataset.size(name)
    known = Part("recent", KNOWN, names, names, before_window=True)
    count = min(count, len(sizes))
    if count < 2:
        return (known,)
    dealt: list[list[str]] = [[] for _ in range(count)]
    for group in sorted(sizes, key=lambda group: (-sizes[group], group)):
        min(dealt, key=lambda fold: sum(sizes[g] for g in fold)).append(group)
    held = [tuple(n for n in names if dataset.group(n) in fold) for fold in dealt]
    parts = (
        Part(f"fold-{k}", NEW, tuple(n for n in names if n not in out), out, before_window=False)
        for k, out in enumerate(held)
    )
    return (known, *parts)


def saved_files(folder: Path) -> dict[str, bytes]:
    """A model's files by relative name, to be carried between machines."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def restore_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write what ``saved_files`` read."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
