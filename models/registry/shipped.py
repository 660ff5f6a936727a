"""The default models in the package: parameters fitted on public series, checked against digests committed here."""

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from kopt.core.signing_keys import SigningError
from kopt.models.base import Predictor
from kopt.models.predictors import predictor_class
from kopt.models.registry.artifact import ArtefactError, check_files
from kopt.models.registry.signing import folder_digest

_PACKAGE = Path(str(files("kopt.models")))
DIGESTS_FILE = _PACKAGE / "shipped_digests.json"
FIGURES_FILE = _PACKAGE / "shipped_figures.json"


def shipped_folder(name: str) -> Path:
    """Where the default model of a predictor lies, whether it is there or not."""
    return _PACKAGE / name / "shipped"


def shipped_digests() -> Mapping[str, str]:
    """Predictor name → digest of its default model."""
    if not DIGESTS_FILE.exists():
        return {}
    digests: dict[str, str] = json.loads(DIGESTS_FILE.read_text(encoding="utf-8"))
    return digests


def shipped_figures(digest: str) -> Mapping[str, float]:
    """What the default model of this digest scores on groups that were left out, as a run logs it; empty for any other
    model."""
    if not FIGURES_FILE.exists():
        return {}
    entries = json.loads(FIGURES_FILE.read_text(encoding="utf-8")).values()
    return next((entry["figures"] for entry in entries if entry["digest"] == digest), {})


def verified_shipped(name: str) -> Path:
    """The folder of a default model whose digest is the committed one. Raises ArtefactError otherwise."""
    expected, folder = shipped_digests().get(name), shipped_folder(name)
    if expected is None or not folder.is_dir():
        raise ArtefactError(f"no default model of {name!r} is shipped")
    try:
        check_files(folder)
        whole = folder_digest(folder) == expected
    except SigningError as error:
        raise ArtefactError(str(error)) from error
    if not whole:
        raise ArtefactError(f"the default model of {name!r} in {folder} was altered; reinstall the package")
    return folder


def load_shipped(name: str) -> Predictor:
    """The default model, verified and loaded. Raises ArtefactError if it is missing or altered."""
    return predictor_class(name).load(verified_shipped(name))
