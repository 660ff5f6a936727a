"""The measured runs that the default sizing model is fitted on."""

from dataclasses import replace
from pathlib import Path

from kopt.core.settings import Settings
from kopt.training.pipeline.default_data import DefaultData, licence_of
from kopt.training.sizing.recipe import MemoryRuns, SizingDataset


def licensed_runs(dataset: SizingDataset) -> SizingDataset:
    """The measured runs that may be learned from for everybody's default model; the others go to ``excluded``."""
    kept = tuple(run for run in dataset.runs if licence_of(dataset.licences.get(run.source, "")) is not None)
    unlicensed = {run.source for run in dataset.runs} - {run.source for run in kept}
    reasons = {source: f"licence {dataset.licences.get(source, '')!r}" for source in sorted(unlicensed)}
    return replace(dataset, runs=kept, excluded={**dataset.excluded, **reasons})


def _read(folder: Path, settings: Settings) -> SizingDataset:
    runs = MemoryRuns(folder, settings, keep=lambda run: licence_of(run.licence) is not None)
    return licensed_runs(runs.read())


def _sources(dataset: SizingDataset) -> list[dict[str, str | None]]:
    sources = sorted({run.source for run in dataset.runs})
    return [{"source": source, "licence": licence_of(dataset.licences[source])} for source in sources]


DEFAULT_DATA = DefaultData("memory", _read, _sources)
