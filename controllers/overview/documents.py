"""Reads LendingPools and StagedData. Never raises, whatever the objects contain."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.staged_data import request_of, staging_report_of
from kopt.cluster.objects.fields import at, items, mapping, text, texts
from kopt.core.reason import Reason
from kopt.core.scheduling.overview import NodeCopy, PoolMoment, PoolState, Reclaiming, StagedState
from kopt.core.staging.manifest import redacted
from kopt.core.times import seconds_or_none

MOST_MOMENTS = 288
_MOST = 50
_LONGEST = 1024
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class StagingAnnotation:
    """What stands on a workload that waits for data, or had to."""

    state: str
    data: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    bytes: int | None = None
    bytes_done: int | None = None
    remaining_s: float | None = None
    at_s: float | None = None


def pool_of(document: Object) -> PoolState:
    spec, status = mapping(document, "spec"), mapping(document, "status")
    forecast, decision = mapping(status, "forecast"), mapping(status, "decision")
    return PoolState(
        name=_name(document),
        mode=text(spec, "mode"),
        gpus=number(spec, "gpus"),
        lent=number(status, "lentGpus"),
        borrowed=number(status, "borrowedGpus"),
        service=number(status, "serviceGpus"),
        provision=number(status, "provisionGpus"),
        lead_time_s=_first(number(status, "leadTimeSeconds"), _span(text(spec, "leadTime"))),
        caution=number(status, "caution"),
        forecast=text(forecast, "state"),
        forecast_at_s=seconds_or_none(text(forecast, "at")),
        forecast_model=_model(forecast),
        verb=text(decision, "verb"),
        verb_gpus=number(decision, "gpus"),
        decided_at_s=seconds_or_none(text(decision, "at")),
        reasons=_reasons(decision),
        reclaiming=_reclaiming(at(status, "reclaiming")),
        history=_history(status),
        services=tuple(_service(item) for _, item in items(spec, "services"))[:_MOST],
        borrowers=tuple(
            (text(item, "system"), text(item, "queue"), text(item, "flavor")) for _, item in items(spec, "borrowers")
        )[:_MOST],
        troubles=_errors(status),
    )


def staged_of(document: Object) -> StagedState:
    spec, status = mapping(document, "spec"), mapping(document, "status")
    progress = mapping(status, "progress")
    return StagedState(
        namespace=text(document, "metadata", "namespace"),
        name=_name(document),
        source=redacted(text(spec, "source"))[:_LONGEST],
        destination=_destination(mapping(spec, "destination")),
        phase=text(status, "phase") or "Waiting",
        reason=text(status, "reason"),
        message=redacted(text(status, "message"))[:_LONGEST],
        bytes=_first(whole(progress, "bytes"), whole(spec, "sizeBytes")),
        bytes_done=whole(progress, "bytesDone"),
        objects=whole(progress, "objects"),
        objects_done=whole(progress, "objectsDone"),
        bytes_per_second=number(progress, "bytesPerSecond"),
        remaining_s=number(progress, "secondsLeft"),
        at_s=seconds_or_none(text(progress, "at")),
        ready_at_s=seconds_or_none(text(status, "readyAt")),
        last_used_at_s=seconds_or_none(text(status, "lastUsedAt")),
        attempts=whole(status, "attempts"),
        retry_at_s=seconds_or_none(text(status, "retryAt")),
        nodes=tuple(
            NodeCopy(
                text(item, "name"),
                text(item, "phase"),
                whole(item, "bytesDone"),
                redacted(text(item, "message"))[:_LONGEST],
            )
            for _, item in items(status, "nodes")
        )[:_MOST],
        users=tuple(f"{text(item, 'kind').lower()}/{text(item, 'name')}" for _, item in items(status, "users"))[:_MOST],
    )


def staged_names(document: Object) -> list[str]:
    """The StagedData of its namespace that a workload asks for, or was given."""
    annotation = staging_annotation(document)
    return list(dict.fromkeys((*request_of(document).all_names, *(annotation.data if annotation else ()))))[:_MOST]


def staging_annotation(document: Object) -> StagingAnnotation | None:
    result = staging_report_of(document)
    state = text(result, "state")
    if not state:
        return None
    return StagingAnnotation(
        state,
        texts(result, "data"),
        text(result, "reason"),
        redacted(text(result, "message")),
        whole(result, "bytes"),
        whole(result, "bytesDone"),
        number(result, "secondsLeft"),
        seconds_or_none(text(result, "at")),
    )


def number(document: Any, *path: str | int) -> float | None:
    """The finite number at a path."""
    result = at(document, *path)
    if isinstance(result, bool) or not isinstance(result, int | float):
        return None
    try:
        value = float(result)
    except OverflowError:
        return None
    return value if math.isfinite(value) and abs(value) < 1e18 else None


def whole(document: Any, *path: str | int) -> int | None:
    result = number(document, *path)
    return None if result is None or result < 0 else int(result)


def _first(*result: Any) -> Any:
    return next((item for item in result if item is not None), None)


def _name(document: Object) -> str:
    return text(document, "metadata", "name")


def _service(item: Any) -> str:
    return "/".join(filter(None, (text(item, "namespace"), text(item, "name"))))


def _model(forecast: Mapping[str, Any]) -> str:
    model = forecast.get("model")
    if isinstance(model, dict):
        return "/".join(filter(None, (text(model, "name"), text(model, "version"))))
    return model if isinstance(model, str) else ""


def _reasons(decision: Mapping[str, Any]) -> tuple[Reason, ...]:
    result = (Reason(text(item, "code"), text(item, "message")[:_LONGEST]) for _, item in items(decision, "reasons"))
    return tuple(reason for reason in result if reason.message)[:8]


def _reclaiming(result: Any) -> Reclaiming | None:
    if not isinstance(result, dict) or not result:
        return None
    return Reclaiming(
        number(result, "gpus"),
        seconds_or_none(text(result, "since")),
        seconds_or_none(text(result, "by")),
        texts(result, "victims")[:_MOST],
    )


def _history(status: Mapping[str, Any]) -> tuple[PoolMoment, ...]:
    """In the order of time; moments that say no time are left out."""
    pool_moments = []
    for _, item in items(status, "history"):
        at_s = seconds_or_none(text(item, "at"))
        if at_s is not None:
            figures = (number(item, name) for name in ("lent", "borrowed", "service", "provision", "p50", "p99"))
            pool_moments.append(PoolMoment(at_s, *figures))
    return tuple(sorted(pool_moments, key=lambda item: item.at_s)[-MOST_MOMENTS:])


def _errors(status: Mapping[str, Any]) -> tuple[str, ...]:
    """Of conditions that say that something good is not so."""
    result = []
    for _, item in items(status, "conditions"):
        if text(item, "status") == "False" and (message := text(item, "message") or text(item, "reason")):
            result.append(f"{text(item, 'type')}: {message[:_LONGEST]}")
    return tuple(result[:4])


def _destination(result: Mapping[str, Any]) -> str:
    if isinstance(result.get("nodeCache"), dict):
        copies = whole(result, "nodeCache", "copies")
        return f"the nodes' caches, {copies or 1} {'copy' if (copies or 1) == 1 else 'copies'}"
    claim, path = text(result, "claim"), text(result, "path")
    return f"pvc://{claim}/{path.strip('/')}" if claim else ""


def _span(written: str) -> float | None:
    unit = _UNITS.get(written[-1:])
    digits = written[:-1]
    return float(digits) * unit if unit and digits.isascii() and digits.isdigit() and len(digits) < 9 else None
