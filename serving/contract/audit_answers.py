"""What ``/v1/audit`` answers, and the client's side of both directions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlencode

from kopt.core.audit import Head, SealedRecord, StoredRecord
from kopt.serving.contract.common import SCHEMA
from kopt.serving.contract.reading import read_answer

MAX_RECORDS = 500
"""In one request or answer."""


@dataclass(frozen=True)
class AuditQuery:
    """Which records: the newest ``limit`` (before a position), or where ``after`` is given the first behind that."""

    after: int | None = None
    before: int | None = None
    limit: int = 100
    since_s: float | None = None
    until_s: float | None = None
    """Unix seconds, by the clocks of those who wrote; ``until_s`` itself is not included."""
    component: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    """Of the object; empty means any."""

    def text(self) -> str:
        """As a query string, without what is not limited."""
        items = {key: value for key, value in vars(self).items() if value not in (None, "")}
        return urlencode(items)


@dataclass(frozen=True)
class HeadOut:
    position: int
    link: str

    @property
    def head(self) -> Head:
        return Head(self.position, self.link)


@dataclass(frozen=True)
class RecordOut:
    """A record as it is stored, see ``core.audit.StoredRecord``."""

    position: int
    caller: str
    text: str
    digest: str
    link: str

    @property
    def stored(self) -> StoredRecord:
        return StoredRecord(self.position, self.caller, SealedRecord(self.text, self.digest), self.link)


@dataclass(frozen=True, kw_only=True)
class AuditKept:
    schema: Literal["kopt/v1"] = SCHEMA
    kept: int
    """Records that were new."""
    head: HeadOut
    """Of the store, once they are in it."""


@dataclass(frozen=True, kw_only=True)
class AuditResponse:
    schema: Literal["kopt/v1"] = SCHEMA
    records: tuple[RecordOut, ...]
    """In the order of their positions."""
    start: HeadOut
    """Behind which the store begins: older records were given up by age."""
    head: HeadOut


def audit_request(records: Sequence[SealedRecord]) -> dict[str, Any]:
    """The body of ``PUT /v1/audit``."""
    return {"records": [{"text": record.text, "digest": record.digest} for record in records]}


def parse_audit_kept(document: Mapping[str, Any]) -> AuditKept:
    """Raises AnswerError."""
    return read_answer(AuditKept, "/v1/audit", document)


def parse_audit(document: Mapping[str, Any]) -> AuditResponse:
    """Raises AnswerError."""
    return read_answer(AuditResponse, "/v1/audit", document)
