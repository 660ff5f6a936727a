"""``KaiwoReservation`` objects (``kaiwo.ai/v1alpha1``) as core types, and their status as it is written."""

import re
from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.resources import COMPONENT_LABEL, HOLDS_COMPONENT, PART_OF, PART_OF_LABEL, Object
from kopt.cluster.objects.fields import count, items, mapping, text
from kopt.core.scheduling.queue_standing import ReservationStanding
from kopt.core.scheduling.reservation import Account, Occurrence, Phase, Reservation, Result
from kopt.core.times import optional_stamp, seconds, seconds_or_none, stamp

API_VERSION, KIND = "kaiwo.ai/v1alpha1", "KaiwoReservation"
WAITS_ANNOTATION = "kaiwo.ai/reservation-wait"
"""On a Workload that we hold, JSON: for which reservation, why, and since when."""
RESERVATION_LABEL = "kaiwo.ai/reservation"
"""On the Jobs that hold its GPUs: its name."""
MOST_RESULTS = 20
UNSEEN = "No controller has seen it: is `kopt controller reservations` running?"
ACCEPTED, MET = "Accepted", "Met"
_SPAN = re.compile(r"(\d{1,4})([smh])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600}
_LONGEST = 1024


def reservation_of(document: Object) -> Reservation:
    """The spec. Raises ValueError for one that cannot be meant; the message names the field."""
    metadata, spec = document["metadata"], mapping(document, "spec")
    name = f"{metadata.get('namespace', '')}/{metadata['name']}"
    start_s, until_s = (_time(spec, field) for field in ("start", "until"))
    if not start_s < until_s:
        raise ValueError("spec.until is not after spec.start")
    return Reservation(
        name,
        text(spec, "queueName"),
        _number(spec, "nodes", 1),
        _number(spec, "gpusPerNode", 0),
        start_s,
        until_s,
        text(spec, "pool"),
        {str(key): str(value) for key, value in mapping(spec, "nodeSelector").items()},
        _span(spec, "lead", "10m"),
        _span(spec, "unusedAfter", "15m"),
        text(spec, "recurrence"),
        text(spec, "timeZone") or "UTC",
        seconds(text(metadata, "creationTimestamp") or "1970-01-01T00:00:00Z"),
    )


def held_for(document: Object) -> str:
    """The reservation whose GPUs a Job, or a pod of one, of ours holds; empty for all others."""
    labels = mapping(document, "metadata", "labels")
    of_ours = (text(labels, PART_OF_LABEL), text(labels, COMPONENT_LABEL)) == (PART_OF, HOLDS_COMPONENT)
    return text(labels, RESERVATION_LABEL) if of_ours else ""


def account_of(document: Object) -> Account | None:
    """The account in the status; None where there is none that can be read."""
    account = mapping(document, "status", "account")
    try:
        return Account(
            Occurrence(seconds(account["start"]), seconds(account["until"])),
            seconds(account["openedAt"]),
            seconds(account["since"]),
            _seconds(account, "metAt"),
            int(account.get("used", 0)),
            int(account.get("backfilled", 0)),
            float(account.get("usedGpuSeconds", 0.0)),
            float(account.get("backfilledGpuSeconds", 0.0)),
            _seconds(account, "lastUsedAt"),
            _seconds(account, "releasedAt"),
            int(account.get("reclaimed", 0)),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def results_of(document: Object) -> tuple[Result, ...]:
    """Past occurrences, the newest first; those that cannot be read are left out."""
    result = []
    for _, row in items(document, "status", "history"):
        try:
            result.append(
                Result(
                    Occurrence(seconds(row["start"]), seconds(row["until"])),
                    _seconds(row, "metAt"),
                    float(row.get("usedShare", 0.0)),
                    float(row.get("backfilledShare", 0.0)),
                    int(row.get("reclaimed", 0)),
                    _seconds(row, "releasedAt"),
                )
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            continue
    return tuple(result)


def standing_of(document: Object) -> ReservationStanding:
    """A reservation as people read it, whatever of it can be read."""
    status, metadata = mapping(document, "status"), document["metadata"]
    error, spec = "", None
    try:
        spec = reservation_of(document)
    except (ValueError, OverflowError) as problem:
        error = str(problem)
    start, until = (seconds_or_none(text(status, name)) for name in ("start", "until"))
    if spec is not None and (start is None or until is None):
        start, until = spec.start_s, spec.until_s
    messages = {text(row, "type"): text(row, "message") for _, row in items(status, "conditions")}
    account, phase = account_of(document), phase_of(document)
    return ReservationStanding(
        f"{metadata.get('namespace', '')}/{metadata['name']}",
        "" if spec is None else spec.queue,
        text(status, "pool") or ("" if spec is None else spec.pool),
        0 if spec is None else spec.gpus,
        start,
        until,
        "Unseen" if phase is None else phase.value,
        count(status, "heldGpus", default=0),
        count(status, "usedGpus", default=0),
        None if account is None else _backfilled_share(account, 0 if spec is None else spec.gpus),
        messages.get(ACCEPTED) or error or UNSEEN,
        phase is Phase.REFUSED,
        results_of(document),
    )


def _backfilled_share(account: Account, gpus: int) -> float | None:
    span_s = min(account.since_s, account.occurrence.start_s) - account.opened_s
    return min(1.0, account.backfilled_gpu_s / (gpus * span_s)) if gpus and span_s > 0 else None


def account_document(account: Account) -> Object:
    """As ``account_of`` reads it."""
    result = {
        "start": stamp(account.occurrence.start_s),
        "until": stamp(account.occurrence.until_s),
        "openedAt": stamp(account.opened_s),
        "since": stamp(account.since_s),
        "metAt": optional_stamp(account.met_s),
        "used": account.used,
        "backfilled": account.backfilled,
        "usedGpuSeconds": round(account.used_gpu_s, 1),
        "backfilledGpuSeconds": round(account.backfilled_gpu_s, 1),
        "lastUsedAt": optional_stamp(account.last_used_s),
        "releasedAt": optional_stamp(account.released_s),
        "reclaimed": account.reclaimed,
    }
    return {name: value for name, value in result.items() if value is not None}


def result_document(result: Result) -> Object:
    """As ``results_of`` reads it."""
    row = {
        "start": stamp(result.occurrence.start_s),
        "until": stamp(result.occurrence.until_s),
        "metAt": optional_stamp(result.met_s),
        "lateSeconds": None if result.late_s is None else round(result.late_s, 1),
        "usedShare": round(result.used_share, 4),
        "backfilledShare": round(result.backfilled_share, 4),
        "reclaimed": result.reclaimed,
        "releasedAt": optional_stamp(result.released_s),
    }
    return {name: value for name, value in row.items() if value is not None}


def phase_of(document: Object) -> Phase | None:
    """As the status has it."""
    phase = text(document, "status", "phase")
    return Phase(phase) if phase in tuple(Phase) else None


def condition(document: Object, kind: str, is_true: bool, reason: str, message: str, now_s: float) -> dict[str, Any]:
    """A condition of the status, with the time at which it changed."""
    before: Mapping[str, Any] = next(
        (row for _, row in items(document, "status", "conditions") if text(row, "type") == kind), {}
    )
    status = "True" if is_true else "False"
    kept = text(before, "lastTransitionTime") if text(before, "status") == status else ""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST],
        "lastTransitionTime": kept or stamp(now_s),
    }


def _time(spec: Mapping[str, Any], field: str) -> float:
    try:
        return seconds(text(spec, field))
    except (ValueError, OverflowError):
        raise ValueError(f"spec.{field}: {spec.get(field)!r} is no time such as 2026-12-01T08:00:00Z") from None


def _number(spec: Mapping[str, Any], field: str, default: int) -> int:
    value = spec.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 512:
        raise ValueError(f"spec.{field}: {value!r} is no number from 1 to 512")
    return value


def _span(spec: Mapping[str, Any], field: str, default: str) -> float:
    value = spec.get(field, default)
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"spec.{field}: {value!r} is no span of time such as 10m")
    return float(int(match[1]) * _UNITS_S[match[2]])


def _seconds(row: Mapping[str, Any], field: str) -> float | None:
    value = row.get(field)
    return seconds(value) if isinstance(value, str) else None
