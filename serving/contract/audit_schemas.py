"""The typed request of ``/v1/audit``; strict."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from kopt.core.audit import FIRST, LARGEST_RECORD_BYTES
from kopt.serving.contract.audit_answers import MAX_RECORDS


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class RecordIn(_Strict):
    """One record as its process has sealed it."""

    text: Annotated[str, Field(min_length=2, max_length=2 * LARGEST_RECORD_BYTES)]
    """Canonical JSON."""
    digest: Annotated[str, Field(pattern=f"^[0-9a-f]{{{len(FIRST)}}}$")]
    """SHA-256 of ``text``, in hex."""


class AuditRequest(_Strict):
    """Records in the order of their chains. Sending again is harmless."""

    records: Annotated[list[RecordIn], Field(min_length=1, max_length=MAX_RECORDS, fail_fast=True)]


AUDIT_REQUEST = TypeAdapter(AuditRequest)
