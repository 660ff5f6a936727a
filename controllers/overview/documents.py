"""LendingPools and StagedData as views. Nothing that anybody may have written into them makes this raise."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.resources import Object
from kopt.cluster.staged_data import request_of, told_of
from kopt.controllers.preemption.reading import seconds
from kopt.controllers.webhook.objects import at, items, mapping, text, texts
from kopt.core.overview import NodeCopy, PoolMoment, PoolState, Reclaiming, StagedState
from kopt.core.reason import Reason
from kopt.core.staging import redacted

MOST_MOMENTS = 288
_MOST = 50
_LONGEST = 1024
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class StagingNote:
    """What stands on a workload that waits for data, or had to."""

    state: str
    data: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    bytes: int | None = None
    bytes_done: int | None = None
    seconds_left: float | None = None
    at_s: float | None = None


def pool_of(document: Object) -> PoolState:
    spec, status = mapping(document, "spec"), mapping(document, "status")
    forecast, decision = mapping(status, "forecast"), mapping(status, "decision")
    return PoolState(
        name=_name(document), mode=text(spec, "mode"), gpus=number(spec, "gpus"), lent=number(status, "lentGpus"),
        borrowed=number(status, "borrowedGpus"), service=number(status, "serviceGpus"),
        provision=number(status, "provisionGpus"),
        lead_time_s=_first(number(status, "leadTimeSeconds"), _span(text(spec, "leadTime"))),
        caution=number(status, "caution"), forecast=text(forecast, "state"),
        forecast_at_s=seconds(text(forecast, "at")), forecast_model=_model(forecast), verb=text(decision, "verb"),
        verb_gpus=number(decision, "gpus"), decided_at_s=seconds(text(decision, "at")), reasons=_reasons(decision),
        reclaiming=_reclaiming(at(status, "reclaiming")), history=_history(status),
        services=tuple(_service(one) for _, one in items(spec, "services"))[:_MOST],
        borrowers=tuple((text(one, "system"), text(one, "queue"), text(one, "flavor"))
                        for _, one in items(spec, "borrowers"))[:_MOST],
        troubles=_troubles(status),
    )  # fmt: skip


def staged_of(document: Object) -> StagedState:
    spec, status = mapping(document, "spec"), mapping(document, "status")
    progress = mapping(status, "progress")
    return StagedState(
        namespace=text(document, "metadata", "namespace"), name=_name(document),
        source=redacted(text(spec, "source"))[:_LONGEST], destination=_destination(mapping(spec, "destination")),
        phase=text(status, "phase") or "Waiting", reason=text(status, "reason"),
        message=redacted(text(status, "message"))[:_LONGEST],
        bytes=_first(whole(progress, "bytes"), whole(spec, "sizeBytes")), bytes_done=whole(progress, "bytesDone"),
        objects=whole(progress, "objects"), objects_done=whole(progress, "objectsDone"),
        bytes_per_second=number(progress, "bytesPerSecond"), seconds_left=number(progress, "secondsLeft"),
        at_s=seconds(text(progress, "at")), ready_at_s=seconds(text(status, "readyAt")),
        last_used_at_s=seconds(text(status, "lastUsedAt")), attempts=whole(status, "attempts"),
        retry_at_s=seconds(text(status, "retryAt")),
        nodes=tuple(NodeCopy(text(one, "name"), text(one, "phase"), whole(one, "bytesDone"),
                             redacted(text(one, "message"))[:_LONGEST])
                    for _, one in items(status, "nodes"))[:_MOST],
        users=tuple(f"{text(one, 'kind').lower()}/{text(one, 'name')}" for _, one in items(status, "users"))[:_MOST],
    )  # fmt: skip


def staged_names(document: Object) -> list[str]:
    """The StagedData of its namespace that a workload asks for, or was given."""
    note = staging_note(document)
    return list(dict.fromkeys((*request_of(document).all_names, *(note.data if note else ()))))[:_MOST]


def staging_note(document: Object) -> StagingNote | None:
    found = told_of(document)
    state = text(found, "state")
    if not state:
        return None
    return StagingNote(state, texts(found, "data"), text(found, "reason"), redacted(text(found, "message")),
                       whole(found, "bytes"), whole(found, "bytesDone"), number(found, "secondsLeft"),
                       seconds(text(found, "at")))  # fmt: skip


def decoded(annotations: Mapping[str, Any], name: str) -> Any:
    """The JSON in an annotation; None for what is none."""
    try:
        return json.loads(text(annotations, name) or "null")
    except (ValueError, RecursionError):
        return None


def number(document: Any, *path: str | int) -> float | None:
    """The finite number at a path."""
    found = at(document, *path)
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    try:
        value = float(found)
    except OverflowError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e18 else None


def whole(document: Any, *path: str | int) -> int | None:
    found = number(document, *path)
    return None if found is None or found < 0 else int(found)


def _first(*found: Any) -> Any:
    return next((one for one in found if one is not None), None)


def _name(document: Object) -> str:
    return text(document, "metadata", "name")


def _service(one: Any) -> str:
    return "/".join(filter(None, (text(one, "namespace"), text(one, "name"))))


def _model(forecast: Mapping[str, Any]) -> str:
    model = forecast.get("model")
    if isinstance(model, dict):
        return "/".join(filter(None, (text(model, "name"), text(model, "version"))))
    return model if isinstance(model, str) else ""


def _reasons(decision: Mapping[str, Any]) -> tuple[Reason, ...]:
    found = (Reason(text(one, "code"), text(one, "message")[:_LONGEST]) for _, one in items(decision, "reasons"))
    return tuple(one for one in found if one.message)[:8]


def _reclaiming(found: Any) -> Reclaiming | None:
    if not isinstance(found, dict) or not found:
        return None
    return Reclaiming(number(found, "gpus"), seconds(text(found, "since")), seconds(text(found, "by")),
                      texts(found, "victims")[:_MOST])  # fmt: skip


def _history(status: Mapping[str, Any]) -> tuple[PoolMoment, ...]:
    """In the order of time; moments that say no time are left out."""
    found = []
    for _, one in items(status, "history"):
        at_s = seconds(text(one, "at"))
        if at_s is not None:
            figures = (number(one, name) for name in ("lent", "borrowed", "service", "provision", "p50", "p99"))
            found.append(PoolMoment(at_s, *figures))
    return tuple(sorted(found, key=lambda one: one.at_s)[-MOST_MOMENTS:])


def _troubles(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Of conditions that say that something good is not so."""
    found = []
    for _, one in items(status, "conditions"):
        if text(one, "status") == "False" and (said := text(one, "message") or text(one, "reason")):
            found.append(f"{text(one, 'type')}: {said[:_LONGEST]}")
    return tuple(found[:4])


def _destination(found: Mapping[str, Any]) -> str:
    if isinstance(found.get("nodeCache"), dict):
        copies = whole(found, "nodeCache", "copies")
        return f"the nodes' caches, {copies or 1} {'copy' if (copies or 1) == 1 else 'copies'}"
    claim, path = text(found, "claim"), text(found, "path")
    return f"pvc://{claim}/{path.strip('/')}" if claim else ""


def _span(written: str) -> float | None:
    unit = _UNITS.get(written[-1:])
    digits = written[:-1]
    return float(digits) * unit if unit and digits.isascii() and digits.isdigit() and len(digits) < 9 else None
