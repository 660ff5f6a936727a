"""Takes records of the audit log, and answers who asks for them."""

import asyncio

from kopt.core.audit import AuditError, SealedRecord, read_record
from kopt.serving.audit.table import AuditTable, Rewritten
from kopt.serving.contract.audit_answers import AuditKept, AuditQuery, AuditResponse, HeadOut, RecordOut
from kopt.serving.contract.audit_schemas import AuditRequest
from kopt.serving.http.problems import Problem, invalid


class AuditService:
    """One per replica, over the table that all replicas share."""

    def __init__(self, table: AuditTable) -> None:
        self._table = table

    def close(self) -> None:
        self._table.close()

    async def append(self, request: AuditRequest, caller: str) -> AuditKept:
        """Keep records. Raises Problem 409 where one takes the place of another, 422 where one is none."""
        records = []
        for number, received in enumerate(request.records):
            record = SealedRecord(received.text, received.digest)
            try:
                records.append((record, read_record(record)))
            except AuditError as error:
                raise invalid(f"records.{number}", str(error)) from None
        try:
            kept, head = await asyncio.to_thread(self._table.append, caller, records)
        except Rewritten as error:
            raise Problem(409, f"{error}. What is kept stays.") from None
        return AuditKept(kept=kept, head=HeadOut(head.position, head.link))

    async def read(self, query: AuditQuery, caller: str | None) -> AuditResponse:
        """What a query asks for, of one caller or of all (None)."""
        records, start, head = await asyncio.to_thread(self._table.read, query, caller)
        return AuditResponse(
            records=tuple(
                RecordOut(item.position, item.caller, item.record.text, item.record.digest, item.link)
                for item in records
            ),
            start=HeadOut(start.position, start.link),
            head=HeadOut(head.position, head.link),
        )
