"""Fits the default models that the package ships: ``python -m kopt.training.default_models``.

Reads ``KOPT_DATA_DIR``, keeps the series whose licence allows it, and writes parameters (never data), SOURCES.json and
the digest that the package checks them against. The same data, code and library versions give the same digest.
"""

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kopt.core.settings import Settings
from kopt.models.predictors import PREDICTORS
from kopt.models.registry.artifact import check_files, save_model
from kopt.models.registry.shipped import DIGESTS_FILE, shipped_folder
from kopt.models.registry.signing import folder_digest
from kopt.training.pipeline.default_data import default_data_of
from kopt.training.pipeline.progress import Event, Progress, silent
from kopt.training.pipeline.protocols import Dataset
from kopt.training.pipeline.recipe import recipe_of

SOURCES_FILE = "SOURCES.json"
THREADS = 1
"""Fixed, because it is part of the saved parameters."""


@dataclass(frozen=True)
class DefaultModel:
    """What was written: the folder's digest, and what was used and left out (name → reason)."""

    digest: str
    used: tuple[str, ...]
    excluded: Mapping[str, str]


def fit_default(
    data: Dataset,
    folder: Path,
    digests: Path,
    *,
    predictor: str = "demand",
    parameters: Mapping[str, object] | None = None,
    progress: Progress = silent,
) -> DefaultModel:
    """Fit on all of ``data`` and put model and digest into place. Raises ValueError when nothing may be used."""
    if not data.names:
        raise ValueError("nothing has a licence that allows a default model")
    recipe = recipe_of(predictor)
    merged = {**recipe.defaults, **(parameters or {})}
    with tempfile.TemporaryDirectory(prefix="kopt-default-") as scratch:
        progress(Event("features", 0, 2))
        table = recipe.table(data, Settings(home=Path(scratch) / "home"))
        progress(Event("fit", 1, 2, f"{len(table)} rows of {len(data.names)} series or families"))
        fitted = recipe.fit(data, table, None, merged, THREADS)
        draft = Path(scratch) / "model"
        save_model(fitted, draft, recipe.card(data, merged))
        (draft / SOURCES_FILE).write_text(json.dumps(_sources(predictor, data), indent=1) + "\n", encoding="utf-8")
        check_files(draft)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(draft, folder)
    digest = folder_digest(folder)
    recorded = json.loads(digests.read_text(encoding="utf-8")) if digests.exists() else {}
    digests.write_text(json.dumps({**recorded, predictor: digest}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    progress(Event("fit", 2, 2, f"digest {digest}"))
    return DefaultModel(digest, data.names, data.excluded)


def _sources(predictor: str, data: Dataset) -> dict[str, object]:
    """Where everything came from and under which licence; digests stand in the card."""
    return {
        "schema": "kopt/v1",
        "dataset_digest": data.digest,
        "used": default_data_of(predictor).sources(data),
        "left_out": dict(sorted(data.excluded.items())),
    }


def main() -> int:
    """Fit the models named as arguments (default: all) from KOPT_DATA_DIR."""
    from kopt.serving.base.environment import load_settings

    settings = load_settings()
    shipped = sorted(predictor.name for predictor in PREDICTORS if not predictor.not_shipped)
    for name in sys.argv[1:] or shipped:
        if name not in shipped:
            sys.stderr.write(f"no default model of {name!r} is shipped; there are {', '.join(shipped)}\n")
            return 2
        data = default_data_of(name)
        folder = None if settings.data_dir is None else settings.data_dir / data.folder
        if folder is None or not folder.is_dir():
            sys.stderr.write(f"KOPT_DATA_DIR does not name a folder with {data.folder}/ in it\n")
            return 2
        dataset = data.read(folder, settings)
        _report(fit_default(dataset, shipped_folder(name), DIGESTS_FILE, predictor=name, progress=_print_event))
    return 0


def _report(made: DefaultModel) -> None:
    _print_event(Event("used", len(made.used), len(made.used) + len(made.excluded), ", ".join(made.used)))
    for name, reason in sorted(made.excluded.items()):
        _print_event(Event("left out", 1, 1, f"{name}: {reason}"))


def _print_event(event: Event) -> None:
    sys.stderr.write(f"{event.step} {event.done}/{event.total} {event.message}\n")


if __name__ == "__main__":
    sys.exit(main())
