"""Promotion seals: who may answer is signed, as an alias or a tag of a registry can be set by anyone who reaches it.

The gate's **decision** on a version and the **seal** of a promotion are statements signed by a trusted key, over the
model's name and digest. They lie in the registry as tags of the version. A version answers as champion only under a
seal, and no seal older than the newest one known here counts: seals are numbered by the microsecond of their promotion,
and the newest number is kept in the home, out of the registry's reach. An older version comes back by a new seal,
which ``kopt models rollback`` writes.
"""

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kopt.core.signing_keys import SigningError
from kopt.models.registry.locks import exclusive
from kopt.models.registry.statements import sign_statement, verify_statement

SEAL_TAG = "promotion_seal"
DECISION_TAG = "gate_seal"
CANARY_TAG = "canary_seal"
SEALS_FILE = "seals.json"
GATE, FORCED, SHIPPED, ROLLBACK = "passed", "forced", "shipped", "rolled back"
"""Why a version may answer: the gate passed it, it was forced, it comes with the package, or it was rolled back to."""
_GROUNDS = (GATE, FORCED, SHIPPED, ROLLBACK)
_SEAL_PURPOSE = "kopt promotion seal v1"
_DECISION_PURPOSE = "kopt gate verdict v1"
_CANARY_PURPOSE = "kopt canary v1"
MOST_PERCENT = 50
"""Of questions that a challenger may answer: with more of them it is the champion, and has to be promoted."""
_REASON_LENGTH = 500
_MOST_BYTES = 2**20


@dataclass(frozen=True)
class GateDecision:
    """The gate's decision on a model: ``gate`` is ``passed`` or ``refused``, ``against`` the champion's version then.
    ``at_us`` is Unix time in microseconds."""

    name: str
    digest: str
    gate: str
    against: str
    at_us: int


@dataclass(frozen=True)
class Seal:
    """One promotion. ``number`` grows with every promotion of a model: Unix time in microseconds, or one more than
    the newest seal's where a clock stands behind."""

    name: str
    digest: str
    ground: str
    reason: str
    number: int


@dataclass(frozen=True)
class CanaryShare:
    """A challenger may answer ``percent`` of the questions beside the champion of digest ``against``; 0 ends it.
    ``number`` grows as that of seals."""

    name: str
    digest: str
    against: str
    percent: int
    number: int


S = TypeVar("S", Seal, GateDecision, CanaryShare)


@dataclass(frozen=True)
class Newest:
    """The newest seal that a home has seen for a model."""

    number: int = 0
    digest: str = ""


def signed_decision(decision: GateDecision, key: Ed25519PrivateKey) -> str:
    """The decision as a tag's value."""
    return sign_statement(_DECISION_PURPOSE, asdict(decision), key)


def read_decision(text: str, name: str, digest: str, trusted: Iterable[Ed25519PublicKey]) -> GateDecision:
    """The decision in a tag, for this model only. Raises SigningError."""
    decision = _made(GateDecision, verify_statement(_DECISION_PURPOSE, text, trusted))
    _require_same(decision.name, decision.digest, name, digest)
    return decision


def signed_seal(seal: Seal, key: Ed25519PrivateKey) -> str:
    """The seal as a tag's value; a long reason is cut."""
    return sign_statement(_SEAL_PURPOSE, {**asdict(seal), "reason": seal.reason[:_REASON_LENGTH]}, key)


def read_seal(text: str, name: str, digest: str, trusted: Iterable[Ed25519PublicKey]) -> Seal:
    """The seal in a tag, for just this model. Raises SigningError."""
    seal = _made(Seal, verify_statement(_SEAL_PURPOSE, text, trusted))
    _require_same(seal.name, seal.digest, name, digest)
    if seal.ground not in _GROUNDS:
        raise SigningError(f"the seal rests on {seal.ground!a}, which is none of {', '.join(_GROUNDS)}")
    return seal


def signed_canary(canary: CanaryShare, key: Ed25519PrivateKey) -> str:
    """The share as a tag's value."""
    return sign_statement(_CANARY_PURPOSE, asdict(canary), key)


def read_canary(text: str, name: str, digest: str, trusted: Iterable[Ed25519PublicKey]) -> CanaryShare:
    """The share in a tag, for just this model. Raises SigningError."""
    canary = _made(CanaryShare, verify_statement(_CANARY_PURPOSE, text, trusted))
    _require_same(canary.name, canary.digest, name, digest)
    if not 0 <= canary.percent <= MOST_PERCENT:
        raise SigningError(f"{canary.percent} is no percentage from 0 to {MOST_PERCENT}")
    return canary


def _made(kind: type[S], fields: Mapping[str, str | int]) -> S:
    expected = {name: field.type for name, field in kind.__dataclass_fields__.items()}
    if {name: type(value) for name, value in fields.items()} != expected:
        raise SigningError(f"a {kind.__name__.lower()} has the fields {', '.join(expected)}")
    return kind(**fields)  # type: ignore[arg-type]


def _require_same(sealed_name: str, sealed_digest: str, name: str, digest: str) -> None:
    if (sealed_name, sealed_digest) != (name, digest):
        raise SigningError(
            f"it was made for {sealed_name[:64]!a} with digest {sealed_digest[:12]!a}, not for {name} with "
            f"{digest[:12]}"
        )


class SealMemory:
    """The newest seals that this home has seen, in ``home/seals.json``. Shared by the processes of a machine."""

    def __init__(self, home: Path) -> None:
        self._path, self._lock = home / SEALS_FILE, home / "seals.lock"

    def newest(self, name: str) -> Newest:
        """The newest seal of a model; number 0 where none was seen. Raises SigningError for a torn file."""
        entry = self._read().get(name)
        return Newest() if entry is None else Newest(entry["number"], entry["digest"])

    def accept(self, seal: Seal) -> None:
        """Remember a seal. Raises SigningError for one that is older than what was seen."""
        with exclusive(self._lock):
            newest = self.newest(seal.name)
            if seal.number < newest.number or (seal.number == newest.number and seal.digest != newest.digest):
                raise SigningError(
                    f"its promotion is older than one already known here (of digest {newest.digest[:12]}); an earlier "
                    "version comes back by `kopt models rollback`"
                )
            if seal.number > newest.number:
                self._write({**self._read(), seal.name: {"number": seal.number, "digest": seal.digest}})

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            if self._path.stat().st_size > _MOST_BYTES:
                raise SigningError(f"{self._path} is too long")
            result: Any = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise SigningError(f"{self._path} cannot be read ({error}); restore it from a backup") from error
        if not isinstance(result, dict) or not all(_is_entry(entry) for entry in result.values()):
            raise SigningError(f"{self._path} is not a table of seals; restore it from a backup")
        return result

    def _write(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        draft = self._path.with_name(f".{SEALS_FILE}.{secrets.token_hex(8)}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(json.dumps(entries, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)


def _is_entry(entry: Any) -> bool:
    return isinstance(entry, dict) and type(entry.get("number")) is int and isinstance(entry.get("digest"), str)
