"""Measures the default models that the package ships: ``python -m kopt.training.default_figures``.

Reads ``KOPT_DATA_DIR`` as ``default_models`` does, leaves groups out in folds, and writes what models fitted on the
rest score on them. The figures belong to one digest: those of an earlier model are shown for none.
"""

import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kopt.core.settings import Settings
from kopt.models.predictors import PREDICTORS
from kopt.models.registry.registry import RegisteredModel, Registry
from kopt.models.registry.shipped import FIGURES_FILE, shipped_digests, shipped_folder
from kopt.training.default_models import SOURCES_FILE
from kopt.training.pipeline.default_data import default_data_of
from kopt.training.pipeline.progress import Event, Progress, silent
from kopt.training.pipeline.protocols import Dataset
from kopt.training.pipeline.recipe import recipe_of
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks

FOLDS = 5
_LEAST, _MOST = 5, 40
"""Series, runs, logs or machines of a slice with kept figures, and the slices kept, the largest: pages show all."""


@dataclass(frozen=True)
class _Inputs:
    dataset: Dataset

    def read(self) -> Dataset:
        return self.dataset


class _WithoutChampion(Registry):
    """Nothing is compared: the shipped model has seen what is left out here."""

    def ensure_champion(self, name: str) -> RegisteredModel | None:
        return None


def figures_of(
    name: str, data: Dataset, settings: Settings, *, folds: int = FOLDS, progress: Progress = silent
) -> Mapping[str, float]:
    """Scores by slice on what was held out, as a training run logs them."""
    options = TrainOptions(folds=folds, promote=False)
    registry = _WithoutChampion(settings, trusted_digests=())
    outcome = train(
        name,
        source=_Inputs(data),
        settings=settings,
        options=options,
        tasks=HereTasks(),
        registry=registry,
        progress=progress,
    )
    whole = max((summary.services for summary in outcome.summaries), default=0)
    large = [summary for summary in outcome.summaries if summary.services >= min(_LEAST, whole)]
    kept = sorted(large, key=lambda summary: summary.services, reverse=True)[:_MOST]
    metrics = recipe_of(name).scoring.metrics(kept)
    return {key: float(f"{value:.4g}") for key, value in sorted(metrics.items()) if math.isfinite(value)}


def write_figures(name: str, data: Dataset, figures: Mapping[str, float]) -> None:
    """Put the figures of the shipped model beside those of the others. Raises ValueError for other data than its."""
    sources = json.loads((shipped_folder(name) / SOURCES_FILE).read_text(encoding="utf-8"))
    if sources["dataset_digest"] != data.digest:
        raise ValueError(
            f"the shipped model of {name} was fitted on other data; run kopt.training.default_models first"
        )
    recorded = json.loads(FIGURES_FILE.read_text(encoding="utf-8")) if FIGURES_FILE.exists() else {}
    recorded[name] = {"digest": shipped_digests()[name], "folds": FOLDS, "figures": dict(figures)}
    FIGURES_FILE.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(names: Sequence[str]) -> int:
    """Measure the models named (default: all) on KOPT_DATA_DIR."""
    from kopt.serving.base.environment import load_settings

    settings = load_settings()
    for name in names or [predictor.name for predictor in PREDICTORS if not predictor.not_shipped]:
        part = default_data_of(name)
        folder = None if settings.data_dir is None else settings.data_dir / part.folder
        if folder is None or not folder.is_dir():
            sys.stderr.write(f"KOPT_DATA_DIR does not name a folder with {part.folder}/ in it\n")
            return 2
        data = part.read(folder, settings)
        with tempfile.TemporaryDirectory(prefix="kopt-figures-") as scratch:
            own = replace(settings, home=Path(scratch), mlflow_uri="")
            write_figures(name, data, figures_of(name, data, own, progress=_print_event))
    return 0


def _print_event(event: Event) -> None:
    sys.stderr.write(f"{event.step} {event.done}/{event.total} {event.message}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
