"""The words of staging: where data comes from, what a whole copy consists of, and how far one is."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from kopt.core.redaction import redact

SCHEMA = "kopt-staging/1"
STATE_FOLDER = ".kopt-staging"
"""What staging keeps beside the data, in the destination."""
MARKER = ".kopt-incomplete"
"""Stands in the destination while it is no complete copy."""
_LONGEST_NAME = 255
_LONGEST_PATH = 4000
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_DIGESTS = {"md5": 32, "sha1": 40, "git-sha1": 40, "sha256": 64}
T = TypeVar("T")


class Trouble(StrEnum):
    """Why data is not staged, for whoever decides what happens next."""

    BAD_REQUEST = "BadRequest"
    """The source or destination as given cannot be used."""
    NOT_FOUND = "NotFound"
    DENIED = "Denied"
    """Wrong or missing credentials, or no right to read."""
    UNREACHABLE = "Unreachable"
    """No connection, cut too often, or throttled for too long: may go by itself."""
    CHANGED = "SourceChanged"
    CORRUPT = "Corrupt"
    """A checksum is another than it should be."""
    BAD_NAME = "BadName"
    EMPTY = "Empty"
    TOO_MANY = "TooMany"
    NO_ROOM = "NoRoom"
    DESTINATION = "Destination"
    """The destination cannot be written, or holds something else."""
    BUSY = "Busy"
    """Another process stages there."""
    STOPPED = "Stopped"
    STALLED = "Stalled"
    """It had a slot and did not get on: others have their turn."""


class StagingError(Exception):
    """Data that is not staged, and why; the message says what to do about it."""

    def __init__(self, message: str, reason: Trouble = Trouble.BAD_REQUEST) -> None:
        super().__init__(message)
        self.reason = reason


class SourceKind(StrEnum):
    """Who serves the data."""

    S3 = "s3"
    GCS = "gs"
    AZURE = "az"
    HTTP = "https"
    HUB = "hf"
    GIT = "git"
    CLAIM = "pvc"
    LOCAL = "local"


@dataclass(frozen=True)
class Source:
    """Where data comes from.

    ``address`` is what the kind understands: a URL for stores, https and git, a path, ``claim/path`` for pvc, and
    ``models/owner/name/path`` or ``datasets/owner/name/path`` for hf. ``revision`` is a branch, tag or commit.
    """

    kind: SourceKind
    address: str
    revision: str = ""

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Raises StagingError, naming the forms there are; a secret in the text is not repeated."""
        scheme, separator, rest = text.partition("://")
        if not text or "\0" in text or "\n" in text:
            raise StagingError("the source is empty or holds control characters")
        if not separator:
            return cls(SourceKind.LOCAL, text)
        match scheme:
            case "s3" | "gs" | "az" if rest.strip("/"):
                return cls(SourceKind(scheme), text)
            case "http" | "https" if _host(text):
                return cls(SourceKind.HTTP, text)
            case "hf":
                return _hub(rest)
            case "git+https" | "git+http" | "git+ssh" | "git+file" if rest.strip("/"):
                url, revision = _at_revision(rest)
                return cls(SourceKind.GIT, f"{scheme.removeprefix('git+')}://{url}", revision)
            case "pvc" if _CLAIM.fullmatch(rest.partition("/")[0]):
                claim, _, path = rest.partition("/")
                path = path.strip("/")
                return cls(SourceKind.CLAIM, f"{claim}/{safe_path(path)}" if path else claim)
            case "file" if rest.startswith("/"):
                return cls(SourceKind.LOCAL, unquote(rest))
        raise StagingError(
            f"{redacted(text)!r} is no source; there are s3://bucket/prefix, gs://bucket/prefix, "
            "az://container/prefix, https://host/file, hf://owner/name[@revision], git+https://host/repository@ref, "
            "pvc://claim/path, or a path"
        )

    def __str__(self) -> str:
        """As people write it, without what a URL holds of secrets."""
        at = f"@{self.revision}" if self.revision else ""
        match self.kind:
            case SourceKind.HUB:
                return f"hf://{self.address.removeprefix('models/')}{at}"
            case SourceKind.GIT:
                return redacted(f"git+{self.address}{at}")
            case SourceKind.CLAIM:
                return f"pvc://{self.address}"
        return redacted(self.address)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _hub(rest: str) -> Source:
    """``[models/|datasets/]owner/name[@revision][/path]``."""
    kind, separator, inner = rest.partition("/")
    if not separator or kind not in ("models", "datasets"):
        kind, inner = "models", rest
    match = re.fullmatch(rf"({_REPOSITORY.pattern})(?:@([^/]+))?(/.*)?", inner)
    if match is None or ".." in match[1]:
        raise StagingError(
            f"hf://{rest} names no repository; write hf://owner/name@revision or hf://datasets/owner/name"
        )
    inside = (match[3] or "").strip("/")
    if inside:
        safe_path(inside)
    return Source(SourceKind.HUB, "/".join([kind, match[1], *([inside] if inside else [])]), unquote(match[2] or ""))


def _at_revision(url: str) -> tuple[str, str]:
    """The ``@ref`` at the end of a git URL; the ``@`` of a user's name comes before the host ends."""
    host, slash, path = url.partition("/")
    before, at, revision = path.rpartition("@")
    if at and (not revision or revision.startswith("-") or not re.fullmatch(r"[\w./+-]+", revision)):
        raise StagingError(f"{revision!r} is no branch, tag or commit of git")
    return (f"{host}{slash}{before}", revision) if at else (url, "")


def redacted(text: str) -> str:
    """Text without secrets, in which URLs lack all that may be one: user and password, query and fragment."""
    text = re.sub(r"(?<=://)[^/\s]*@", "", text)
    return redact(re.sub(r"(\b[a-z0-9+]+://[^\s?#'\"]*)[?#][^\s'\"<>)]*", r"\1?…", text))


def safe_path(path: str) -> str:
    """``path`` itself, which stays inside the folder it is relative to.

    Raises StagingError for absolute paths, ``.`` and ``..``, empty or too long names, control characters, names that
    are no UTF-8, and for the name that staging keeps for itself.
    """
    problem = _name_problem(path)
    if problem:
        escaped = path[:200].encode("unicode_escape", "surrogatepass").decode()
        raise StagingError(f"the source has a name that {problem}: {escaped!r}; nothing is written", Trouble.BAD_NAME)
    return path


def _name_problem(path: str) -> str:
    parts = path.split("/")
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "is no UTF-8"
    if any(part in ("", ".", "..") for part in parts) or "\\" in path:
        return "would leave the destination, or is none"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in path):
        return "holds control characters"
    if max(lengths) > _LONGEST_NAME or sum(lengths) + len(parts) > _LONGEST_PATH:
        return "is too long for a file"
    return "staging keeps for itself" if parts[0] in (STATE_FOLDER, MARKER) else ""


@dataclass(frozen=True, slots=True)
class Checksum:
    """``algorithm`` is md5, sha1, sha256, or git-sha1 (of a blob with git's header); ``value`` in lower-case hex."""

    algorithm: str
    value: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]+", self.value) or _DIGESTS.get(self.algorithm) != len(self.value):
            raise StagingError(f"{self.algorithm}:{self.value[:80]} is no checksum")

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"

    @classmethod
    def parse(cls, text: str) -> "Checksum":
        """``sha256:…``. Raises StagingError."""
        algorithm, _, value = text.partition(":")
        return cls(algorithm, value.lower())


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a source. ``version`` tells its content from any other the source may come to have (an etag, a
    commit's blob, size and time); ``checksum`` is the source's own, or the user's."""

    path: str
    bytes: int
    version: str = ""
    checksum: Checksum | None = None
    modified_at: float | None = None
    executable: bool = False

    def __post_init__(self) -> None:
        safe_path(self.path)
        if self.bytes < 0:
            raise StagingError(f"{self.path} has {self.bytes} bytes")


@dataclass(frozen=True, slots=True)
class Staged:
    """An entry whose copy is whole: ``parts`` are the SHA-256 of each ``part_bytes`` of it, in order."""

    entry: Entry
    part_bytes: int
    parts: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.part_bytes < 1 or len(self.parts) != part_count(self.entry.bytes, self.part_bytes):
            raise StagingError(f"{self.entry.path}: {len(self.parts)} parts of {self.part_bytes} bytes do not make it")
        if not all(re.fullmatch(r"[0-9a-f]{64}", part) for part in self.parts):
            raise StagingError(f"{self.entry.path}: a digest of a part is none")

    def to_dict(self) -> dict[str, Any]:
        entry = self.entry
        return {
            "path": entry.path,
            "bytes": entry.bytes,
            "version": entry.version,
            "checksum": str(entry.checksum) if entry.checksum else None,
            "modified_at": entry.modified_at,
            "executable": entry.executable,
            "part_bytes": self.part_bytes,
            "parts": list(self.parts),
        }

    @classmethod
    def from_dict(cls, value: object) -> "Staged":
        """Raises StagingError for anything else than ``to_dict`` gives."""
        document = _exactly(
            value,
            {"path", "bytes", "version", "checksum", "modified_at", "executable", "part_bytes", "parts"},
            "an entry of a manifest",
        )
        checksum, modified_at = document["checksum"], document["modified_at"]
        parts = _typed(document, "parts", list)
        if not all(isinstance(part, str) for part in parts):
            raise StagingError("a digest of a part is no text")
        return cls(
            Entry(
                _typed(document, "path", str),
                _typed(document, "bytes", int),
                _typed(document, "version", str),
                None if checksum is None else Checksum.parse(_typed(document, "checksum", str)),
                None if modified_at is None else _number(document, "modified_at"),
                _typed(document, "executable", bool),
            ),
            _typed(document, "part_bytes", int),
            tuple(parts),
        )


@dataclass(frozen=True)
class Manifest:
    """What a complete copy consists of. ``revision`` is what the source's branch or tag stood for, ``staged_at`` in
    seconds since 1970, ``notes`` say what of the source is left out."""

    source: str
    entries: tuple[Staged, ...]
    staged_at: float
    revision: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def bytes(self) -> int:
        return sum(entry.entry.bytes for entry in self.entries)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "source": self.source,
            "revision": self.revision,
            "staged_at": self.staged_at,
            "notes": list(self.notes),
            "entries": [entry.to_dict() for entry in self.entries],
        }

    @classmethod
    def from_dict(cls, value: object) -> "Manifest":
        """Raises StagingError for anything else than ``to_dict`` gives."""
        keys = {"schema", "source", "revision", "staged_at", "notes", "entries"}
        document = _exactly(value, keys, "a manifest of staging")
        if document["schema"] != SCHEMA:
            raise StagingError(f"a manifest of another version: {document['schema']!r}, this is {SCHEMA}")
        raw_entries = _typed(document, "entries", list)
        entries = tuple(entry if isinstance(entry, Staged) else Staged.from_dict(entry) for entry in raw_entries)
        if len({entry.entry.path for entry in entries}) != len(entries):
            raise StagingError("a manifest names a file twice")
        return cls(
            _typed(document, "source", str),
            entries,
            _number(document, "staged_at"),
            _typed(document, "revision", str),
            tuple(str(item) for item in _typed(document, "notes", list)),
        )


def manifest_json(manifest: Manifest) -> Iterator[bytes]:
    """``to_dict`` as JSON, in pieces of an entry: there may be a million."""
    yield json.dumps(replace(manifest, entries=()).to_dict(), separators=(",", ":")).removesuffix("]}").encode()
    for index, staged in enumerate(manifest.entries):
        yield ("," * bool(index) + json.dumps(staged.to_dict(), separators=(",", ":"))).encode()
    yield b"]}"


def manifest_of(text: str) -> Manifest:
    """What ``manifest_json`` gave; every entry is one as soon as it is read. Raises StagingError or ValueError."""
    hook = lambda result: Staged.from_dict(result) if "parts" in result else result  # noqa: E731
    return Manifest.from_dict(json.loads(text, object_hook=hook))


class Phase(StrEnum):
    """Of one run of staging."""

    LISTING = "Listing"
    CHECKING = "Checking"
    """Parts of an earlier run are read again."""
    FETCHING = "Fetching"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True)
class Progress:
    """How far a run is. ``bytes_done`` counts ``bytes_kept``, which an earlier run fetched. ``message`` says why it
    failed and ``reason`` in a word; ``remaining_s`` is None where nobody knows; ``updated_at`` counts from 1970."""

    phase: Phase
    source: str
    objects: int = 0
    objects_done: int = 0
    bytes: int = 0
    bytes_done: int = 0
    bytes_kept: int = 0
    bytes_per_second: float = 0.0
    remaining_s: float | None = None
    reason: Trouble | None = None
    message: str = ""
    updated_at: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "phase": self.phase.value,
            "source": self.source,
            "objects": self.objects,
            "objects_done": self.objects_done,
            "bytes": self.bytes,
            "bytes_done": self.bytes_done,
            "bytes_kept": self.bytes_kept,
            "bytes_per_second": round(self.bytes_per_second, 1),
            "seconds_left": None if self.remaining_s is None else round(self.remaining_s, 1),
            "reason": self.reason.value if self.reason else None,
            "message": self.message,
            "updated_at": round(self.updated_at, 3),
        }

    @classmethod
    def from_dict(cls, value: object) -> "Progress":
        """Raises StagingError for anything else than ``to_dict`` gives."""
        keys = set(cls(Phase.LISTING, "").to_dict())
        document = _exactly(value, keys, "a progress of staging")
        if document["schema"] != SCHEMA:
            raise StagingError(f"a progress of another version: {document['schema']!r}, this is {SCHEMA}")
        remaining_s, reason = document["seconds_left"], document["reason"]
        try:
            phase, failure = Phase(document["phase"]), None if reason is None else Trouble(reason)
        except ValueError as error:
            raise StagingError(f"a progress with an unknown word: {error}") from error
        return cls(
            phase,
            _typed(document, "source", str),
            _typed(document, "objects", int),
            _typed(document, "objects_done", int),
            _typed(document, "bytes", int),
            _typed(document, "bytes_done", int),
            _typed(document, "bytes_kept", int),
            _number(document, "bytes_per_second"),
            None if remaining_s is None else _number(document, "seconds_left"),
            failure,
            _typed(document, "message", str),
            _number(document, "updated_at"),
        )


def part_count(size: int, part_bytes: int) -> int:
    """Parts of an object; an empty one has none."""
    return -(-size // part_bytes)


def part_ranges(size: int, part_bytes: int) -> Iterator[tuple[int, int]]:
    """``(begin, end)`` of each part, in order; the last may be shorter. Raises ValueError for parts of no bytes."""
    if part_bytes < 1 or size < 0:
        raise ValueError(f"{size} bytes cannot be cut into parts of {part_bytes}")
    for begin in range(0, size, part_bytes):
        yield begin, min(begin + part_bytes, size)


def _exactly(result: object, keys: set[str], what: str) -> Mapping[str, Any]:
    if not isinstance(result, Mapping) or set(result) != keys:
        received = sorted(map(str, result)) if isinstance(result, Mapping) else type(result).__name__
        raise StagingError(f"not {what}: {received} in place of {sorted(keys)}")
    return result


def _typed(document: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """A whole number is never negative."""
    value = document[key]
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise StagingError(f"{key!r} is {str(value)[:80]!r}")
    if isinstance(value, int) and value < 0:
        raise StagingError(f"{key!r} is {value}")
    return value


def _number(document: Mapping[str, Any], key: str) -> float:
    value = document[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise StagingError(f"{key!r} is {str(value)[:80]!r}, no number")
    return float(value)
