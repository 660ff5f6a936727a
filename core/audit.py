"""The audit log as chains of records: whoever changes, drops, adds or reorders one later breaks a hash.

Each process of ours seals what it does into a chain of its own; the store links the records of all chains, in the order
in which they arrived, into a second one. Hash chains after Haber and Stornetta (How to time-stamp a digital document,
1991) and Schneier and Kelsey (Cryptographic support for secure logs on untrusted machines, 1998). A chain does not show
that its *end* was cut off: for that, somebody else has to keep a head (``Head``) of it.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.untrusted import DEEPEST, LARGEST, UnreadableError, decode_mapping

FIRST = "0" * 64
"""Stands where the first record of a chain names the one before it."""
LARGEST_RECORD_BYTES = 16 << 10
_LARGEST_VALUE_BYTES = 4 << 10
_LONGEST_SHOWN = 60
"""Characters of a value in a summary."""
_DEEPEST = DEEPEST - 2
"""Of one value; the record is around it."""


class AuditError(ValueError):
    """A record that is none: not JSON, without its position in a chain, or with another hash."""


@dataclass(frozen=True)
class SealedRecord:
    """``text`` is canonical JSON, ``digest`` its SHA-256 in hex."""

    text: str
    digest: str


@dataclass(frozen=True)
class AuditEntry:
    """What a record says. ``at_s`` is Unix time by the clock of the process that wrote it."""

    chain: str
    sequence: int
    previous: str
    at_s: float
    component: str
    kind: str
    """``write`` of an object, ``event`` about one, ``decision`` with its models, or ``start`` of the process."""
    verb: str
    object_kind: str
    namespace: str
    name: str
    uid: str
    reason: str
    text: str
    before: Any
    """What of the object the write touches, as the component saw it; None where it saw none of it."""
    after: Any
    details: Any
    """Of a decision: actions, reasons with numbers, versions of the models."""

    @property
    def summary(self) -> str:
        """What an event says, a decision gave as its reasons, or a write changed, in a line."""
        if self.text:
            return self.text
        if isinstance(self.details, dict):
            reasons = self.details.get("reasons")
            texts = [str(item.get("message", "")) for item in reasons or () if isinstance(item, dict)]
            return " ".join(filter(None, texts))
        return ", ".join(_changed(self.before, self.after))


@dataclass
class AuditChain:
    """The records of one process, in order. Not thread-safe."""

    name: str
    """Of no other process, ever."""
    sequence: int = 0
    last: str = FIRST

    def seal(self, content: Mapping[str, Any]) -> SealedRecord:
        """``content`` as the next record; values that are too large are replaced by their size and hash."""
        position = {"chain": self.name, "sequence": self.sequence + 1, "previous": self.last}
        content = {key: _readable(value, _DEEPEST) for key, value in content.items()}
        text = _canonical({**content, **position})
        if len(text.encode()) > LARGEST_RECORD_BYTES:
            text = _canonical({key: _bounded(value) for key, value in content.items()} | position)
        record = SealedRecord(text, digest_of(text))
        self.sequence, self.last = self.sequence + 1, record.digest
        return record


@dataclass(frozen=True)
class StoredRecord:
    """``position`` counts from 1; ``link`` is the hash that ties it to all records before it in the store."""

    position: int
    caller: str
    """Who sent it, as the API server knows them; empty where callers do not authenticate."""
    record: SealedRecord
    link: str


@dataclass(frozen=True)
class Head:
    """Where a store's chain stands: its last position and link."""

    position: int = 0
    link: str = FIRST

    def __str__(self) -> str:
        return f"{self.position}:{self.link}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """``POSITION:LINK``. Raises AuditError."""
        position, _, link = text.partition(":")
        hexadecimal = len(link) == len(FIRST) and set(link) <= set("0123456789abcdef")
        if not (position.isascii() and position.isdigit() and len(position) <= 18 and hexadecimal):
            raise AuditError(f"{text!r} is no head of an audit log: POSITION:64 hexadecimal digits")
        return cls(int(position), link)


@dataclass(frozen=True)
class Fault:
    """Something that an honest store cannot show. ``lost`` records never arrived, which no hand need have caused."""

    position: int
    text: str
    is_loss: bool = False


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def link_of(before: str, caller: str, digest: str) -> str:
    """The link of a record behind ``before``."""
    return digest_of("\n".join((before, caller, digest)))


def read_record(record: SealedRecord) -> AuditEntry:
    """Raises AuditError where the hash is not the text's, or the text is no record."""
    if digest_of(record.text) != record.digest:
        raise AuditError("the record's hash is not that of its text")
    try:
        document = decode_mapping(record.text)
    except UnreadableError as error:
        raise AuditError(f"the record cannot be read: {error}") from None
    position = (document.get("chain"), document.get("sequence"), document.get("previous"), document.get("at_s"))
    match position:
        case (str(chain), int(sequence), str(previous), int() | float() as at_s) if chain and sequence > 0:
            pass
        case _:
            raise AuditError("the record does not say where in which chain it stands, or when it was written")
    about = document.get("object")
    about = about if isinstance(about, dict) else {}
    texts = [
        _word(source, key)
        for source, key in (
            (document, "component"),
            (document, "kind"),
            (document, "verb"),
            (about, "kind"),
            (about, "namespace"),
            (about, "name"),
            (about, "uid"),
            (document, "reason"),
            (document, "text"),
        )
    ]
    rest = (document.get(key) for key in ("before", "after", "details"))
    return AuditEntry(chain, sequence, previous, float(at_s), *texts, *rest)


@dataclass
class Verifier:
    """Checks stored records in the order of their positions, from ``start`` on."""

    start: Head = field(default_factory=Head)
    _chains: dict[tuple[str, str], tuple[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.head = self.start

    def check(self, stored: StoredRecord) -> Iterator[Fault]:
        """What is wrong with the next record; later ones are checked against what it shows."""
        at = stored.position
        if at != self.head.position + 1:
            yield Fault(at, f"records {self.head.position + 1} to {at - 1} are gone from the store")
        expected = link_of(self.head.link, stored.caller, stored.record.digest)
        if at == self.head.position + 1 and stored.link != expected:
            yield Fault(at, "its link does not follow from the records before it: one was changed, or put in")
        self.head = Head(at, stored.link)
        try:
            entry = read_record(stored.record)
        except AuditError as error:
            yield Fault(at, str(error))
            return
        yield from self._in_its_chain(at, stored, entry)

    def _in_its_chain(self, at: int, stored: StoredRecord, entry: AuditEntry) -> Iterator[Fault]:
        key = (stored.caller, entry.chain)
        chain = self._chains.get(key)
        # Behind a store whose oldest records were given up, a chain begins anywhere.
        unknown = chain is None and self.start.position > 0
        sequence, last = chain or (0, FIRST)
        if not unknown:
            if entry.sequence <= sequence:
                yield Fault(at, f"record {entry.sequence} of {entry.chain} comes after record {sequence}")
            elif entry.sequence > sequence + 1:
                missing = f"records {sequence + 1} to {entry.sequence - 1} of {entry.chain} never arrived"
                yield Fault(at, missing, is_loss=True)
            elif entry.previous != last:
                yield Fault(at, f"record {entry.sequence} of {entry.chain} does not follow the one before it")
        self._chains[key] = (entry.sequence, stored.record.digest)


def verify(records: Iterable[StoredRecord], start: Head | None = None) -> list[Fault]:
    """Everything that is wrong with records in the order of their positions, the first of them behind ``start``."""
    verifier = Verifier(start or Head())
    return [fault for record in records for fault in verifier.check(record)]


def touched(document: Any, changes: Any) -> Any:
    """What of a document a merge patch (RFC 7386) would replace: in the shape of the patch; None where it is absent."""
    if not isinstance(changes, Mapping):
        return document
    of = document if isinstance(document, Mapping) else {}
    return {key: touched(of.get(key), value) for key, value in changes.items()}


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)


def _canonical(document: Mapping[str, Any]) -> str:
    return _CANONICAL.encode(document)


def _readable(value: Any, deepest: int) -> Any:
    """What every reader takes: finite numbers that are exact everywhere, whole characters, no depth without end."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) > LARGEST:
        return str(value)
    if isinstance(value, Mapping | list | tuple) and not deepest:
        return "…"
    if isinstance(value, Mapping):
        return {_readable(str(key), 0): _readable(item, deepest - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(item, deepest - 1) for item in value]
    return value


def _bounded(value: Any) -> Any:
    text = _canonical({"value": value})
    if len(text) <= _LARGEST_VALUE_BYTES:
        return value
    return {"bytes": len(text), "sha256": digest_of(text)}


def _word(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def _changed(before: Any, after: Any, path: str = "") -> list[str]:
    if isinstance(after, dict):
        of = before if isinstance(before, dict) else {}
        return [line for key, value in after.items() for line in _changed(of.get(key), value, f"{path}.{key}")]
    if after is None and before is None:
        return []
    was = "" if before is None else f"{_shortened(before)} → "
    return [f"{path.lstrip('.')}: {was}{_shortened(after)}"]


def _shortened(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 1] + "…"
