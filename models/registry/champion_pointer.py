"""Where a home's champions lie, so that a command need not import MLflow (seconds) to find one.

Only for registries in the home itself: each promotion there goes through this home. ``home/champions.json`` holds for
each predictor the version's number and its promotion seal. It proves nothing by being there: the seal must be signed
by a trusted key and be the newest that the home has seen, and the model's folder is verified by whoever loads it.
"""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt.core.settings import Settings
from kopt.core.signing_keys import SigningError, public_keys
from kopt.models.registry.locks import exclusive
from kopt.models.registry.promotion_seals import SEAL_TAG, SealMemory, read_seal

POINTERS_FILE = "champions.json"
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class Pointed:
    """A champion: the number of its version, and the digest of its folder."""

    version: str
    digest: str


class ChampionPointers:
    """Reads and writes the file. A registry elsewhere has none: there, others promote, too."""

    def __init__(self, settings: Settings) -> None:
        self._path = None if settings.mlflow_uri else settings.home / POINTERS_FILE
        self._keys, self._memory = settings.keys, SealMemory(settings.home)

    def champion(self, name: str) -> Pointed | None:
        """The champion if it is proved here and nothing was promoted since; None: ask the registry."""
        entry: Any = self._read().get(name)
        try:
            version, digest, seal_text = (str(entry[key]) for key in ("version", "digest", "seal"))
            seal, newest = read_seal(seal_text, name, digest, public_keys(self._keys)), self._memory.newest(name)
        except (KeyError, TypeError, SigningError):
            return None
        return Pointed(version, digest) if (seal.number, seal.digest) == (newest.number, newest.digest) else None

    def point(self, name: str, version: str, digest: str, tags: Mapping[str, str]) -> None:
        """Note a champion that the registry has just proved. A home that cannot be written goes on without."""
        if self._path is None or SEAL_TAG not in tags:
            return
        entry = {"version": version, "digest": digest, "seal": tags[SEAL_TAG]}
        try:
            with exclusive(self._path.with_suffix(".lock")):
                entries = self._read()
                if entries.get(name) != entry:
                    self._write({**entries, name: entry})
        except (OSError, TimeoutError):
            return

    def _read(self) -> dict[str, Any]:
        try:
            if self._path is None or self._path.stat().st_size > _MOST_BYTES:
                return {}
            result = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return result if isinstance(result, dict) else {}

    def _write(self, entries: Mapping[str, Any]) -> None:
        path = Path(str(self._path))
        draft = path.with_name(f".{POINTERS_FILE}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(entries, file)
        draft.replace(path)
