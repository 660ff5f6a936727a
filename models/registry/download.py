"""From an MLflow run's artefacts to a verified folder on this machine.

Only relative names that the run lists are asked for, one file at a time, after their names and sizes were checked:
an artefact store that lies can neither write outside the folder nor fill the disk unnoticed.
"""

import shutil
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from kopt.core.signing_keys import SigningError, public_keys
from kopt.models.registry.artifact import ArtefactError, ModelCard, check_files, check_listing, read_card
from kopt.models.registry.locks import exclusive
from kopt.models.registry.mlflow import RegistryError, explained
from kopt.models.registry.signing import folder_digest, is_model_path, verify_folder

ARTIFACT_PATH = "model"
_MAX_DEPTH = 4


def verified(folder: Path, keys: Path, trusted_digests: Collection[str]) -> tuple[str, ModelCard]:
    """Digest and card of a folder of safe files that is signed by a key in ``keys`` or known by its digest.

    Raises ArtefactError or SigningError with what is wrong.
    """
    check_files(folder)
    return verify_folder(folder, public_keys(keys), trusted_digests), read_card(folder)


def fetch(client: Any, run_id: str, digest: str, cache: Path, keys: Path, trusted_digests: Collection[str]) -> Path:
    """The folder ``cache/<digest>``, downloaded unless it is there, verified in any case.

    Raises RegistryError for an artefact that is gone, torn, replaced, unsigned or unsafe.
    """
    folder = cache / digest
    with exclusive(cache / ".lock"):
        try:
            if folder.is_dir() and _is(folder, digest, keys, trusted_digests):
                return folder
            shutil.rmtree(folder, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as scratch:
                draft = _download(client, run_id, Path(scratch))
                result, _ = verified(draft, keys, trusted_digests)
                if result != digest:
                    raise RegistryError(
                        f"the files have digest {result[:12]}…, the registry says {digest[:12]}…: the artefact is torn "
                        "or was replaced; register it again"
                    )
                draft.rename(folder)
        except (SigningError, ArtefactError) as error:
            raise RegistryError(f"refused: {error}") from error
    return folder


def _is(folder: Path, digest: str, keys: Path, trusted_digests: Collection[str]) -> bool:
    """Whether a cached folder is whole. A whole one with an untrusted signature is an error, not a reason to reload."""
    try:
        whole = folder_digest(folder) == digest
    except SigningError:
        return False
    if whole:
        verified(folder, keys, trusted_digests)
    return whole


def _download(client: Any, run_id: str, scratch: Path) -> Path:
    with explained(f"artefacts of run {run_id}"):
        sizes_bytes = _listing(client, run_id, ARTIFACT_PATH, 0)
        if not sizes_bytes:
            raise RegistryError(f"run {run_id} has no files under {ARTIFACT_PATH}/: the artefact was deleted")
        check_listing(sizes_bytes)
        for number, name in enumerate(sorted(sizes_bytes)):
            landing = scratch / str(number)
            landing.mkdir()
            # Where below the landing place the file lies depends on the kind of artefact store.
            arrived = client.download_artifacts(run_id, f"{ARTIFACT_PATH}/{name}", str(landing))
            target = scratch / ARTIFACT_PATH / name
            target.parent.mkdir(parents=True, exist_ok=True)
            Path(arrived).rename(target)
    return scratch / ARTIFACT_PATH


def _listing(client: Any, run_id: str, path: str, depth: int) -> dict[str, int]:
    """Names relative to the model's folder → size in bytes."""
    if depth > _MAX_DEPTH:
        raise ArtefactError(f"{path!a}: folders nested deeper than {_MAX_DEPTH}")
    sizes: dict[str, int] = {}
    for item in client.list_artifacts(run_id, path):
        name = str(item.path).removeprefix(f"{ARTIFACT_PATH}/")
        if not is_model_path(name):
            raise ArtefactError(f"{item.path!a} is not a file name of a model")
        if item.is_dir:
            sizes |= _listing(client, run_id, str(item.path), depth + 1)
        else:
            sizes[name] = int(item.file_size or 0)
    return sizes
