"""The traces that the default run-time model is fitted on."""

from pathlib import Path

from kopt.core.settings import Settings
from kopt.training.pipeline.default_data import DefaultData
from kopt.training.runtime.recipe import RunDataset, RunTables

_FILES = {
    "philly_first_half.csv.gz": ("msr-fiddle/philly-traces, as siasosp23/artifacts has it", "CC-BY-4.0"),
    "ms_itp_odd_clusters.csv.gz": ("microsoft/elasticflow-traces", "MIT"),
}
"""Real traces with times and a licence: file → where it came from, licence."""


def _read(folder: Path, settings: Settings) -> RunDataset:
    return RunTables(tuple(folder / name for name in _FILES)).read()


def _sources(dataset: RunDataset) -> list[dict[str, str | None]]:
    return [{"source": source, "licence": licence} for source, licence in _FILES.values()]


DEFAULT_DATA = DefaultData("jobs", _read, _sources)
