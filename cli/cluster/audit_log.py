"""``kopt audit log`` and ``kopt audit verify``: what components did and decided, and whether its record is whole."""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.endpoint import endpoint
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output, seconds
from kopt.cli.output import Answer, Format, column, format_time, show
from kopt.core.audit import AuditError, Fault, Head, StoredRecord, Verifier, read_record
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.serving.client.blocking import PredictionClient
    from kopt.serving.contract.audit_answers import AuditQuery

_PAGE = 500
_MOST_FAULTS = 100
_LARGEST_LINE = 1 << 20


@dataclass(frozen=True)
class AuditRow:
    """One record. ``at`` is Unix seconds by the clock of who wrote it, ``caller`` whom the API server knows them as."""

    position: int = column("no.")
    at: float = column("when", show=format_time)
    component: str = column("component")
    kind: str = column("kind", drop=1)
    verb: str = column("verb")
    object: str = column("object")
    text: str = column("what")
    reason: str = column("reason", wide=True)
    models: list[str] = column("models", wide=True)
    caller: str = column("caller", wide=True)
    uid: str = column("uid", wide=True)
    before: Any = column("before", wide=True)
    after: Any = column("after", wide=True)
    details: Any = column("details", wide=True)
    digest: str = column("sha256", wide=True)


@dataclass(frozen=True)
class FaultRow:
    """Something that a store nobody has touched does not show; ``lost`` records never arrived."""

    position: int = column("no.")
    lost: bool = column("lost")
    text: str = column("what is wrong")


def log(
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the objects; default: all.")] = "",
    name: Annotated[str, typer.Option("--name", help="Of the object; default: all.")] = "",
    component: Annotated[
        str, typer.Option("--component", metavar="NAME", help="Such as preemption; default: all.")
    ] = "",
    kind: Annotated[str, typer.Option("--kind", metavar="KIND", help="write, event, decision or start.")] = "",
    since: Annotated[str, typer.Option(metavar="SPAN", help="How far to look back: 30m, 12h, 7d; default: all.")] = "",
    last: Annotated[int, typer.Option("--last", metavar="N", min=1, max=100_000, help="The newest N.")] = 50,
    output: Output = Format.TABLE,
) -> None:
    """What our components did to the cluster and why, oldest first.

    Writes with what they replaced, events, and decisions with the versions of their models. -o json shows all of it.
    The endpoint keeps it for 400 days; whoever may not list /v1/audit there sees what they have sent themselves.

    Examples:

        kopt audit log

        kopt audit log -n research --name train-7b --since 24h

        kopt audit log --component preemption --kind decision -o json | jq '.records[].details.models'
    """
    from kopt.serving.contract.audit_answers import AuditQuery

    if kind and kind not in _KINDS:
        usage_error(f"{kind!r} is none of {', '.join(_KINDS)}", "--kind")
    since_s = time.time() - seconds(since, "--since") if since else None
    query = AuditQuery(since_s=since_s, component=component, kind=kind, namespace=namespace, name=name)
    with _endpoint() as client:
        records, head = _newest(client, query, last)
    remarks = [f"Head: {head}. Keep it: kopt audit verify --head shows later whether anything up to it was changed."]
    rows = [_row(record) for record in records]
    show(
        Answer("records", rows, {"head": str(head)}, remarks=remarks, empty="no such record", hide_header=True), output
    )


def verify(
    head: Annotated[
        str, typer.Option("--head", metavar="POSITION:LINK", help="As kopt audit log has printed it.")
    ] = "",
    logs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="LOG…", help="Logs of components: whatever they say they recorded has to be there."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Read the whole audit log and check that nothing was changed, dropped, put in or reordered.

    Each process seals its records into a chain of hashes, and the store links them all in the order of their arrival;
    both are computed anew here, the endpoint is not believed. What such chains cannot show is that their end was cut
    off: give a head that was printed before, or the logs of the components (kubectl logs), which have every record as
    well. Status 1 where something is wrong. Records that never arrived, as the endpoint was away for too long, are
    reported and are no error.

    Examples:

        kopt audit verify

        kopt audit verify --head 4711:9f2c…

        kubectl -n kopt-system logs deploy/kopt-preemption > preemption.log; kopt audit verify preemption.log
    """
    kept = _head(head) if head else None
    logged = {digest: line for path in logs or () for digest, line in _logged(path)}
    with _endpoint() as client:
        faults, start, end = _check(client, kept, logged)
    wrong = [fault for fault in faults if not fault.is_loss]
    header = {"first": start.position + 1, "head": str(end), "whole": not wrong}
    rows = [FaultRow(fault.position, fault.is_loss, fault.text) for fault in faults[:_MOST_FAULTS]]
    empty = f"all {end.position - start.position} records are as they were written"
    show(Answer("faults", rows, header, empty=empty), output)
    if wrong:
        raise Refused(f"the audit log is not what was written: {len(wrong)} faults, the first at {wrong[0].position}")


_KINDS = ("write", "event", "decision", "start")


@contextlib.contextmanager
def _endpoint() -> "Iterator[PredictionClient]":
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError

    try:
        with endpoint(load_settings()) as client:
            yield client
    except (RequestRefused, AnswerError) as error:
        raise Refused(f"the endpoint does not show its audit log: {error}") from error


def _newest(client: "PredictionClient", query: "AuditQuery", last: int) -> tuple[list[StoredRecord], Head]:
    records: list[StoredRecord] = []
    while True:
        limit = min(_PAGE, last - len(records))
        answer = client.audit(replace(query, limit=limit, before=records[0].position if records else None))
        records = [*(item.stored for item in answer.records), *records]
        if len(answer.records) < limit or len(records) == last:
            return records, answer.head.head


def _check(client: "PredictionClient", kept: Head | None, logged: dict[str, str]) -> tuple[list[Fault], Head, Head]:
    """What is wrong with the whole store, where it begins, and its head."""
    from kopt.serving.contract.audit_answers import AuditQuery

    answer = client.audit(AuditQuery(after=0, limit=_PAGE))
    start = answer.start.head
    verifier, faults = Verifier(start), list[Fault]()
    absent = dict(logged)
    reached = kept is None or kept == start
    while answer.records:
        for item in answer.records:
            faults += verifier.check(item.stored)
            absent.pop(item.digest, None)
            reached = reached or kept == Head(item.position, item.link)
        answer = client.audit(AuditQuery(after=verifier.head.position, limit=_PAGE))
    if verifier.head.position < answer.head.position:
        # Who may not see everybody's records gets theirs alone, whose links do not meet.
        faults.append(Fault(verifier.head.position, "records at the end are missing, or not yours to see"))
    if kept is not None and not reached and kept.position > start.position:
        faults.append(Fault(kept.position, f"the head {kept} is not in it: the log was rewritten, or cut off"))
    faults += [
        Fault(verifier.head.position, f"{line} recorded something that is not in it") for line in absent.values()
    ]
    return faults, start, verifier.head


def _head(text: str) -> Head:
    try:
        return Head.parse(text)
    except AuditError as error:
        usage_error(str(error), "--head")


def _logged(path: Path) -> "Iterator[tuple[str, str]]":
    """The hashes of records in a component's log, and where they stand there."""
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LARGEST_LINE):
                number += 1
                match = _LINE.match(line)
                if match:
                    yield match[1].decode(), f"{path.name}, line {number}:"
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error


_LINE = re.compile(rb'\{"logger":"kopt\.audit","sha256":"([0-9a-f]{64})"')


def _row(stored: StoredRecord) -> AuditRow:
    try:
        entry = read_record(stored.record)
    except AuditError as error:
        return AuditRow(
            stored.position,
            0.0,
            "",
            "",
            "",
            "",
            f"cannot be read: {error}",
            "",
            [],
            stored.caller,
            "",
            None,
            None,
            None,
            stored.record.digest,
        )
    return AuditRow(
        stored.position,
        entry.at_s,
        entry.component,
        entry.kind,
        entry.verb,
        " ".join(filter(None, (entry.object_kind, "/".join(filter(None, (entry.namespace, entry.name)))))),
        entry.summary,
        entry.reason,
        _models(entry.details),
        stored.caller,
        entry.uid,
        entry.before,
        entry.after,
        entry.details,
        stored.record.digest,
    )


def _models(details: Any) -> list[str]:
    models = details.get("models") if isinstance(details, dict) else None
    return [f"{item.get('name')}@{item.get('version')}" for item in models or () if isinstance(item, dict)]
