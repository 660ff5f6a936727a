"""The labelled logs that the default checkpoint model is fitted on."""

from dataclasses import replace
from pathlib import Path

from kopt.core.settings import Settings
from kopt.training.checkpoint.recipe import LogDataset, LogFolders
from kopt.training.pipeline.default_data import DefaultData, licence_of

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "checkpoint_corpus" / "logs"
"""Logs recorded in this repository (ADR 15)."""


def licensed_logs(dataset: LogDataset) -> LogDataset:
    """The logs that may be learned from for everybody's default model; the others go to ``excluded``.

    What a program prints is a fact about it, whatever its licence: logs rendered from source are kept (ADR 57).
    """
    kept = tuple(log for log in dataset.logs if log.source or licence_of(log.licence) is not None)
    reasons = {log.name: f"licence {log.licence!r}" for log in dataset.logs if log not in kept}
    return replace(dataset, logs=kept, excluded={**dataset.excluded, **reasons})


def _read(folder: Path, settings: Settings) -> LogDataset:
    source = folder / "source"
    return licensed_logs(LogFolders((folder, *([source] if source.is_dir() else []), RECORDED)).read())


def _sources(dataset: LogDataset) -> list[dict[str, str | None]]:
    logs = [{"source": log.name, "licence": licence_of(log.licence)} for log in dataset.logs if not log.source]
    statements = sorted({log.source for log in dataset.logs if log.source})
    return [*logs, *({"source": source, "licence": None, "used": "log statements"} for source in statements)]


DEFAULT_DATA = DefaultData("logs", _read, _sources)
