"""The series that the default demand model is fitted on."""

from dataclasses import replace
from pathlib import Path

from kopt.core.settings import Settings
from kopt.training.demand.sources import DemandDataset, FileSource
from kopt.training.pipeline.default_data import DefaultData, licence_of

EXCLUDED_KINDS = ("gpu",)
"""GPUs allocated to an application are a decision, not a demand."""


def licensed(dataset: DemandDataset) -> DemandDataset:
    """The series that may be learned from for everybody's default model; the others go to ``excluded``."""
    excluded, kept = dict(dataset.excluded), []
    for series in dataset.series:
        info = dataset.info.get(series.name)
        if info is None or licence_of(info.licence) is None:
            excluded[series.name] = f"licence {info.licence!r}" if info else "not in SERIES.csv"
        elif info.kind in EXCLUDED_KINDS:
            excluded[series.name] = f"kind {info.kind}"
        else:
            kept.append(series)
    return replace(dataset, series=tuple(sorted(kept, key=lambda series: series.name)), excluded=excluded)


def _read(folder: Path, settings: Settings) -> DemandDataset:
    return licensed(FileSource(folder).read())


def _sources(dataset: DemandDataset) -> list[dict[str, str | None]]:
    return [
        {
            "series": series.name,
            "source": dataset.info[series.name].source,
            "licence": licence_of(dataset.info[series.name].licence),
        }
        for series in dataset.series
    ]


DEFAULT_DATA = DefaultData("demand", _read, _sources)
