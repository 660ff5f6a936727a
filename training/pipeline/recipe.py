"""Which recipe belongs to a predictor, how its data is divided into parts, and how fitted models travel."""

from collections.abc import Mapping
from pathlib import Path

from kopt.models.predictors import load_part, predictor_names
from kopt.training.pipeline.protocols import KNOWN, NEW, Dataset, Part, Recipe


def recipe_of(predictor: str) -> Recipe:
    """Raises KeyError with the names that can be trained."""
    if predictor not in predictor_names():
        raise KeyError(f"{predictor!r} cannot be trained; there are {', '.join(predictor_names())}")
    recipe: Recipe = load_part("training", predictor, "recipe:RECIPE")
    return recipe


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
    recent = Part("recent", KNOWN, names, names, before_window=True)
    count = min(count, len(sizes))
    if count < 2:
        return (recent,)
    dealt: list[list[str]] = [[] for _ in range(count)]
    for group in sorted(sizes, key=lambda group: (-sizes[group], group)):
        min(dealt, key=lambda fold: sum(sizes[g] for g in fold)).append(group)
    held = [tuple(n for n in names if dataset.group(n) in fold) for fold in dealt]
    parts = (
        Part(f"fold-{k}", NEW, tuple(n for n in names if n not in out), out, before_window=False)
        for k, out in enumerate(held)
    )
    return (recent, *parts)


def saved_files(folder: Path) -> dict[str, bytes]:
    """A model's files by relative name, to be carried between machines."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def restore_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write what ``saved_files`` read."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
