"""Fits the default models that the package ships: ``python -m kopt.training.default_models``.

Reads ``KOPT_DATA_DIR``, keeps the series whose licence allows it, and writes parameters (never data), SOURCES.json and
the digest that the package checks them against. The same data, code and library versions give the same digest.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kopt.core.settings import Settings
from kopt.models.artefact import check_files, save_model
from kopt.models.shipped import DIGESTS_FILE, shipped_folder
from kopt.models.signing import folder_digest
from kopt.training.bandwidth import LICENCES as REPOSITORIES
from kopt.training.bandwidth import BandwidthDataset, BandwidthTables, licensed_rows, repository_of
from kopt.training.checkpoint import LogDataset, LogFolders
from kopt.training.progress import Event, Progress, silent
from kopt.training.recipe import Dataset, recipe_of
from kopt.training.sizing import MemoryRuns, SizingDataset
from kopt.training.sources import DemandDataset, FileSource

_FOLDERS = {"bandwidth": "topology", "checkpoint": "logs", "demand": "demand", "sizing": "memory"}
"""Predictor → folder of its data."""
LICENCES = ("Apache-2.0", "MIT", "CC-BY-4.0", "CC-BY-3.0", "CC0-1.0", "BSD-3-Clause", "BSD")
RECORDED = Path(__file__).resolve().parents[1] / "benchmarks" / "checkpoint_corpus" / "logs"
"""Logs recorded in this repository (ADR 15)."""
LEFT_OUT_KINDS = ("gpu",)
"""GPUs allocated to an application are a decision, not a demand."""
SOURCES_FILE = "SOURCES.json"
THREADS = 1
"""Fixed, because it is part of the saved parameters."""


@dataclass(frozen=True)
class DefaultModel:
    """What was written: the folder's digest, and what was used and left out (name → reason)."""

    digest: str
    used: tuple[str, ...]
    left_out: Mapping[str, str]


def licence_of(stated: str) -> str | None:
    """The licence that a statement names beyond doubt, else None.

    ``Apache-2.0 (repo)`` counts; ``none stated``, ``MIT? see LICENSE.txt`` and ``see LICENSE.txt`` do not.
    """
    word = stated.strip().split(" ")[0] if stated.strip() else ""
    return word if word in LICENCES else None


def licensed(found: DemandDataset) -> DemandDataset:
    """The series that may be learned from for everybody's default model; the others go to ``left_out``."""
    left_out, kept = dict(found.left_out), []
    for one in found.series:
        info = found.info.get(one.name)
        if info is None or licence_of(info.licence) is None:
            left_out[one.name] = f"licence {info.licence!r}" if info else "not in SERIES.csv"
        elif info.kind in LEFT_OUT_KINDS:
            left_out[one.name] = f"kind {info.kind}"
        else:
            kept.append(one)
    return replace(found, series=tuple(sorted(kept, key=lambda one: one.name)), left_out=left_out)


def fit_default(
    data: Dataset, folder: Path, digests: Path, *, predictor: str = "demand",
    parameters: Mapping[str, object] | None = None, progress: Progress = silent,
) -> DefaultModel:  # fmt: skip
    """Fit on all of ``data`` and put model and digest into place. Raises ValueError when nothing may be used."""
    if not data.names:
        raise ValueError("nothing has a licence that allows a default model")
    recipe = recipe_of(predictor)
    chosen = {**recipe.defaults, **(parameters or {})}
    with tempfile.TemporaryDirectory(prefix="kopt-default-") as scratch:
        progress(Event("features", 0, 2))
        table = recipe.table(data, Settings(home=Path(scratch) / "home"))
        progress(Event("fit", 1, 2, f"{len(table)} rows of {len(data.names)} series or families"))
        fitted = recipe.fit(data, table, None, chosen, THREADS)
        draft = Path(scratch) / "model"
        save_model(fitted, draft, recipe.card(data, chosen))
        (draft / SOURCES_FILE).write_text(json.dumps(_sources(data), indent=1) + "\n", encoding="utf-8")
        check_files(draft)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(draft, folder)
    digest = folder_digest(folder)
    known = json.loads(digests.read_text(encoding="utf-8")) if digests.exists() else {}
    digests.write_text(json.dumps({**known, predictor: digest}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    progress(Event("fit", 2, 2, f"digest {digest}"))
    return DefaultModel(digest, data.names, data.left_out)


def licensed_runs(found: SizingDataset) -> SizingDataset:
    """The measured runs that may be learned from for everybody's default model; the others go to ``left_out``."""
    kept = tuple(one for one in found.runs if licence_of(found.licences.get(one.source, "")) is not None)
    gone = {one.source for one in found.runs} - {one.source for one in kept}
    reasons = {source: f"licence {found.licences.get(source, '')!r}" for source in sorted(gone)}
    return replace(found, runs=kept, left_out={**found.left_out, **reasons})


def licensed_logs(found: LogDataset) -> LogDataset:
    """The logs that may be learned from for everybody's default model; the others go to ``left_out``."""
    kept = tuple(one for one in found.logs if licence_of(one.licence) is not None)
    reasons = {one.name: f"licence {one.licence!r}" for one in found.logs if licence_of(one.licence) is None}
    return replace(found, logs=kept, left_out={**found.left_out, **reasons})


def _sources(data: Dataset) -> dict[str, object]:
    """Where everything came from and under which licence; digests stand in the card."""
    if isinstance(data, SizingDataset):
        sources = sorted({one.source for one in data.runs})
        used = [{"source": one, "licence": licence_of(data.licences[one])} for one in sources]
    elif isinstance(data, LogDataset):
        used = [{"source": one.name, "licence": licence_of(one.licence)} for one in data.logs]
    elif isinstance(data, BandwidthDataset):
        found = sorted({repository_of(one.source) for one in data.rows})
        used = [{"source": one, "licence": REPOSITORIES[one]} for one in found]
    else:
        assert isinstance(data, DemandDataset)
        used = _series(data)
    return {
        "schema": "kopt/v1",
        "dataset_digest": data.digest,
        "used": used,
        "left_out": dict(sorted(data.left_out.items())),
    }


def _series(data: DemandDataset) -> list[dict[str, str | None]]:
    return [
        {"series": one.name, "source": data.info[one.name].source, "licence": licence_of(data.info[one.name].licence)}
        for one in data.series
    ]


def main() -> int:
    """Fit the models named as arguments (default: all) from KOPT_DATA_DIR."""
    from kopt.serving.environment import load_settings

    settings = load_settings()
    names = sys.argv[1:] or sorted(_FOLDERS)
    for name in names:
        folder = None if settings.data_dir is None else settings.data_dir / _FOLDERS.get(name, name)
        if name not in _FOLDERS or folder is None or not folder.is_dir():
            sys.stderr.write(f"KOPT_DATA_DIR does not name a folder with {_FOLDERS.get(name, name)}/ in it\n")
            return 2
        data: Dataset
        if name == "sizing":
            runs = MemoryRuns(folder, settings, keep=lambda run: licence_of(run.licence) is not None)
            data = licensed_runs(runs.read())
        elif name == "bandwidth":
            data = licensed_rows(BandwidthTables(folder).read())
        elif name == "checkpoint":
            data = licensed_logs(LogFolders((folder, RECORDED)).read())
        else:
            data = licensed(FileSource(folder).read())
        _tell(fit_default(data, shipped_folder(name), DIGESTS_FILE, predictor=name, progress=_say))
    return 0


def _tell(made: DefaultModel) -> None:
    _say(Event("used", len(made.used), len(made.used) + len(made.left_out), ", ".join(made.used)))
    for name, reason in sorted(made.left_out.items()):
        _say(Event("left out", 1, 1, f"{name}: {reason}"))


def _say(event: Event) -> None:
    sys.stderr.write(f"{event.step} {event.done}/{event.total} {event.message}\n")


if __name__ == "__main__":
    sys.exit(main())
