"""Data that a cluster keeps for its jobs: what was asked for, where its copies are, and how far they are."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from kopt.core.staging.manifest import Manifest, StagingError, Trouble
from kopt.core.untrusted import decode_mapping, whole

CLAIM = ""
"""The place of the one copy in a claim; other places are names of nodes."""


class DataPhase(StrEnum):
    """Of a copy, and of all copies together."""

    WAITING = "Waiting"
    STAGING = "Staging"
    READY = "Ready"
    FAILED = "Failed"
    EVICTED = "Evicted"


@dataclass(frozen=True)
class ClaimFolder:
    """A folder of a PersistentVolumeClaim."""

    claim: str
    path: str


@dataclass(frozen=True)
class NodeCache:
    """A folder on ``copies`` nodes, of those that have all of ``selector``."""

    copies: int = 1
    selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class DataSpec:
    """What was asked for. ``secret``: name of the Secret whose keys are the download's environment; ``limit`` as
    ``kopt stage --limit`` reads it."""

    source: str
    destination: ClaimFolder | NodeCache
    size_bytes: int | None = None
    sha256: str = ""
    secret: str = ""
    limit: str = ""
    parallel: int | None = None
    check_source: bool = True
    """Compare with the source's own checksums."""


@dataclass(frozen=True)
class Amounts:
    """How far a download is; ``at_s`` counts from 1970."""

    bytes: int = 0
    bytes_done: int = 0
    objects: int = 0
    objects_done: int = 0
    bytes_per_second: float = 0.0
    remaining_s: float | None = None
    at_s: float = 0.0


@dataclass(frozen=True)
class Copy:
    """One copy. ``attempts`` counts what was started, ``failed_attempt`` is the last that failed, ``failures`` those
    since the last that did not; ``generation`` is that of the spec it was made for. ``removed``: nothing of it is left
    there. ``machine``: which one the node was, see ``CacheNode``."""

    location: str = CLAIM
    phase: DataPhase = DataPhase.WAITING
    attempts: int = 0
    failed_attempt: int = 0
    failures: int = 0
    generation: int = 0
    reason: Trouble | None = None
    message: str = ""
    digest: str = ""
    amounts: Amounts | None = None
    ready_at_s: float | None = None
    retry_at_s: float | None = None
    removed: bool = True
    machine: str = ""


@dataclass(frozen=True, order=True)
class User:
    """A workload that names the data and has not ended."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class StagedData:
    """One object. ``again`` is the text of the annotation by which people have a failed download tried again."""

    namespace: str
    name: str
    uid: str
    generation: int
    spec: DataSpec
    created_at_s: float = 0.0
    copies: tuple[Copy, ...] = ()
    users: tuple[User, ...] = ()
    last_used_at_s: float | None = None
    deleting: bool = False
    guarded: bool = False
    """Whether it is not gone before its copies are."""
    again: str = ""
    again_handled: str = ""
    missing: str = ""
    """Why there are fewer copies than are needed; empty where there are enough."""

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    @property
    def phase(self) -> DataPhase:
        """Of all copies that there are to be; where some are ready and others not, the others count."""
        phases = {copy.phase for copy in self.copies} or {DataPhase.WAITING}
        order = (DataPhase.FAILED, DataPhase.STAGING, DataPhase.WAITING, DataPhase.READY)
        phase = next((data_phase for data_phase in order if data_phase in phases), DataPhase.EVICTED)
        return DataPhase.WAITING if phase is DataPhase.READY and self.missing else phase

    @property
    def ready_locations(self) -> tuple[str, ...]:
        return tuple(copy.location for copy in self.copies if copy.phase is DataPhase.READY)

    @property
    def speaker(self) -> Copy | None:
        """The copy whose trouble, or else progress, speaks for all."""
        order = list(DataPhase)
        worst = sorted(
            self.copies, key=lambda copy: (copy.phase is not self.phase, order.index(copy.phase), copy.location)
        )
        return worst[0] if worst else None

    @property
    def amounts(self) -> Amounts | None:
        """Of all copies together; the time left is that of the slowest."""
        result = [copy.amounts for copy in self.copies if copy.amounts is not None]
        if len(result) < 2:
            return result[0] if result else None
        remaining_s = [amounts.remaining_s for amounts in result if amounts.remaining_s is not None]
        return Amounts(
            sum(amounts.bytes for amounts in result),
            sum(amounts.bytes_done for amounts in result),
            sum(amounts.objects for amounts in result),
            sum(amounts.objects_done for amounts in result),
            sum(amounts.bytes_per_second for amounts in result),
            max(remaining_s, default=None),
            max(amounts.at_s for amounts in result),
        )


@dataclass(frozen=True)
class Request:
    """What a workload asks for: names of StagedData of its namespace, and requests for which one is made."""

    names: tuple[str, ...] = ()
    made: tuple[tuple[str, DataSpec], ...] = field(default=())
    """The name it has or gets, and what is asked for."""
    problem: str = ""
    """Why it cannot be understood; empty where it can."""

    @property
    def all_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.names, *(name for name, _ in self.made))))

    def __bool__(self) -> bool:
        return bool(self.names or self.made or self.problem)


_LONGEST_MESSAGE, _LONGEST_MESSAGE_BYTES = 1024, 2048


@dataclass(frozen=True)
class StageResult:
    """What the pod of a download, or of a removal, tells when it ends. ``digest`` names a complete copy."""

    complete: bool
    digest: str = ""
    reason: Trouble | None = None
    message: str = ""
    bytes: int = 0
    objects: int = 0

    @classmethod
    def of(cls, manifest: Manifest) -> "StageResult":
        return cls(True, digest_of(manifest), bytes=manifest.bytes, objects=len(manifest.entries))

    @classmethod
    def failed(cls, error: StagingError) -> "StageResult":
        return cls(False, reason=error.reason, message=str(error))

    def to_json(self) -> str:
        """Short enough for a termination message, 4 KiB as UTF-8."""
        message = self.message[:_LONGEST_MESSAGE].encode(errors="replace")[:_LONGEST_MESSAGE_BYTES]
        result = {
            "complete": self.complete,
            "digest": self.digest,
            "reason": self.reason and self.reason.value,
            "message": message.decode(errors="ignore"),
            "bytes": self.bytes,
            "objects": self.objects,
        }
        return json.dumps(result, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "StageResult | None":
        """None for anything else than ``to_json`` gives: a pod that was killed says nothing."""
        try:
            result = decode_mapping(text)
            reason = result["reason"]
            return cls(
                result["complete"] is True,
                str(result["digest"]),
                Trouble(reason) if reason else None,
                str(result["message"]),
                whole(result, "bytes"),
                whole(result, "objects"),
            )
        except (ValueError, KeyError, TypeError):
            return None


def digest_of(manifest: Manifest) -> str:
    """SHA-256 over source, revision and every file's path, size and parts: equal for equal copies, whenever they were
    made and wherever they lie."""
    digest = hashlib.sha256()
    for piece in _pieces(manifest):
        digest.update(piece.encode() + b"\0")
    return digest.hexdigest()


def _pieces(manifest: Manifest) -> Iterable[str]:
    yield from (manifest.source, manifest.revision)
    for entry in sorted(manifest.entries, key=lambda entry: entry.entry.path):
        yield from (entry.entry.path, str(entry.entry.bytes), str(entry.part_bytes), *entry.parts)
