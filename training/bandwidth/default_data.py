"""The measured collectives that the default bandwidth model is fitted on."""

from pathlib import Path

from kopt.core.settings import Settings
from kopt.training.bandwidth.recipe import (
    LICENCES,
    BandwidthDataset,
    BandwidthTables,
    described_rows,
    licensed_rows,
    repository_of,
)
from kopt.training.pipeline.default_data import DefaultData


def _read(folder: Path, settings: Settings) -> BandwidthDataset:
    return described_rows(licensed_rows(BandwidthTables(folder).read()))


def _sources(dataset: BandwidthDataset) -> list[dict[str, str | None]]:
    repositories = sorted({repository_of(row.source) for row in dataset.rows})
    return [{"source": name, "licence": LICENCES[name]} for name in repositories]


DEFAULT_DATA = DefaultData("topology", _read, _sources)
