"""The layout of a saved model: ``model.json`` beside files of formats that cannot run code.

``model.json`` (the card) says which predictor wrote the folder, with which parameters, from which data, with which
library versions. Everything else is the predictor's own.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kopt.models.base import Predictor
from kopt.models.registry.signing import SIGNATURE_FILE, manifest

CARD_FILE = "model.json"
FORMAT = 1
SAFE_SUFFIXES = frozenset({".json", ".txt", ".safetensors", ".md"})
MAX_BYTES = 256 * 2**20
MAX_FILES = 256
_MAX_CARD_BYTES = 4 * 2**20
_LIBRARIES = ("kaiwo-optimizer", "lightgbm", "numpy", "safetensors", "torch")
PREDICTOR_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class ArtefactError(ValueError):
    """A model folder that cannot be loaded; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class TrainedOn:
    """One series (or other sample) a model has seen: sha256 of its values, when it began and ended, in its own
    seconds, and short digests of its days, by which it is known again under another name or in another cut."""

    name: str
    digest: str
    start_s: float = 0.0
    end_s: float = 0.0
    days: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelCard:
    """What ``model.json`` holds. ``training_data`` lets an evaluation refuse data the model was trained on."""

    predictor: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    training_data: tuple[TrainedOn, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)
    format: int = FORMAT


def library_versions() -> dict[str, str]:
    """Versions of the libraries that shape a model, of those that are installed."""
    result = {}
    for name in _LIBRARIES:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            continue
    return result


def save_model(predictor: Predictor, folder: Path, card: ModelCard) -> None:
    """Save a fitted predictor and its card into an empty or new folder.

    Raises ArtefactError when the predictor wrote a file of an unsafe format or took the card's name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ArtefactError(f"{folder} is not empty")
    predictor.save(folder)
    if (folder / CARD_FILE).exists():
        raise ArtefactError(f"{CARD_FILE} is reserved for the card; {predictor.name} wrote one of its own")
    text = json.dumps({"schema": "kopt/v1", **asdict(card)}, indent=1, sort_keys=True)
    (folder / CARD_FILE).write_text(text + "\n", encoding="utf-8")
    check_files(folder)


def check_files(folder: Path) -> None:
    """Raise ArtefactError unless every file is of a safe format and the folder is within bounds."""
    entries = manifest(folder)
    check_listing({entry.name: entry.size_bytes for entry in entries})


def check_listing(sizes_bytes: Mapping[str, int]) -> None:
    """The same for a listing of names and sizes, before anything is downloaded."""
    if len(sizes_bytes) > MAX_FILES:
        raise ArtefactError(f"{len(sizes_bytes)} files in a model; at most {MAX_FILES} are accepted")
    total_bytes = sum(sizes_bytes.values())
    if total_bytes > MAX_BYTES:
        raise ArtefactError(f"model of {total_bytes / 2**20:.0f} MiB; at most {MAX_BYTES // 2**20} MiB are accepted")
    for name in sizes_bytes:
        if name != SIGNATURE_FILE and Path(name).suffix not in SAFE_SUFFIXES:
            raise ArtefactError(f"{name}: only {', '.join(sorted(SAFE_SUFFIXES))} files may be in a model")


def read_card(folder: Path) -> ModelCard:
    """The card of a saved model. Raises ArtefactError when it is absent, torn or of another format."""
    path = folder / CARD_FILE
    if not path.is_file():
        raise ArtefactError(f"{folder} holds no {CARD_FILE}; it is not a saved model")
    if path.stat().st_size > _MAX_CARD_BYTES:
        raise ArtefactError(f"{path} is larger than {_MAX_CARD_BYTES // 2**20} MiB")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ArtefactError(f"{path} is not JSON: {error}") from error
    return _card(document, path)


def _card(document: Any, path: Path) -> ModelCard:
    if not isinstance(document, dict) or not PREDICTOR_NAME.fullmatch(str(document.get("predictor"))):
        raise ArtefactError(f"{path} names no predictor")
    if document.get("format") != FORMAT:
        raise ArtefactError(f"{path} has format {document.get('format')!r}; this version reads {FORMAT}")
    tables = {key: document.get(key, {}) for key in ("parameters", "libraries")}
    features, training_data = document.get("features", []), document.get("training_data", [])
    if not all(isinstance(table, dict) for table in tables.values()) or not isinstance(features, list):
        raise ArtefactError(f"{path}: parameters and libraries are tables, features is a list")
    try:
        data = tuple(TrainedOn(**{**item, "days": tuple(item.get("days", ()))}) for item in training_data)
    except (TypeError, AttributeError) as error:
        raise ArtefactError(f"{path}: training_data is malformed") from error
    return ModelCard(document["predictor"], features=tuple(map(str, features)), training_data=data, **tables)
