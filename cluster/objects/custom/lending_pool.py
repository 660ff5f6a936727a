"""``LendingPool`` objects as core types, and their status as it is written."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.lending_pool import (
    Borrower,
    Condition,
    ForecastState,
    HistoryPoint,
    LastDecision,
    LendingPool,
    Memory,
    PoolService,
    PoolStatus,
    Reclaiming,
    Verb,
)
from kopt.core.times import optional_stamp, seconds, stamp

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"(\d{1,4})([smhd])")
_LONGEST = 1024
LONGEST_LEAD_S = 7200.0
"""Forecasts reach no further."""


def pool_of(document: Object) -> LendingPool:
    """The spec. Raises ValueError for one that cannot be meant; the message names the field."""
    name, spec = document["metadata"]["name"], document.get("spec") or {}
    try:
        lead = None if spec.get("leadTime") is None else _span(spec["leadTime"], "leadTime")
        if lead is not None and not 0 < lead <= LONGEST_LEAD_S:
            raise ValueError(
                f"spec.leadTime {spec['leadTime']} is not above 0 and at most {LONGEST_LEAD_S / 3600:g} hours"
            )
        return LendingPool(
            name,
            int(spec["gpus"]),
            tuple([_service(item) for item in spec["services"]]),
            tuple(
                [
                    Borrower(System(borrower["system"]), borrower["queue"], borrower.get("flavor", ""))
                    for borrower in spec.get("borrowers") or ()
                ]
            ),
            spec.get("resource") or "nvidia.com/gpu",
            float(spec.get("violationTarget", 0.01)),
            lead,
            _span(spec.get("hold", "30m"), "hold"),
            int(spec.get("hysteresisGpus", 1)),
            Mode(spec.get("mode", Mode.OBSERVE)),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"LendingPool {name} cannot be read: {error!r}") from error


def status_of(document: Object) -> PoolStatus:
    """The status; of what cannot be read nothing is known. Never raises for what an object can hold."""
    status = document.get("status") or {}
    try:
        forecast = status.get("forecast") or {}
        return PoolStatus(
            int(status.get("observedGeneration", 0)),
            int(status.get("lentGpus", 0)),
            int(status.get("borrowedGpus", 0)),
            int(status.get("serviceGpus", 0)),
            int(status.get("provisionGpus", 0)),
            float(status.get("leadTimeSeconds", 0)),
            status.get("caution"),
            ForecastState(forecast.get("state", ForecastState.MISSING)),
            _seconds(forecast.get("at")),
            str(forecast.get("model", "")),
            _decision(status.get("decision")),
            _reclaiming(status.get("reclaiming")),
            _memory(status.get("state") or {}),
            tuple([_point(item) for item in status.get("history") or ()]),
            tuple([_condition(condition) for condition in status.get("conditions") or ()]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return PoolStatus()


def status_document(status: PoolStatus) -> Object:
    """The ``status`` of the object."""
    forecast = {
        "state": status.forecast.value,
        "at": optional_stamp(status.forecast_at_s),
        "model": status.forecast_model,
    }
    result: dict[str, Any] = {
        "observedGeneration": status.generation,
        "lentGpus": status.lent_gpus,
        "borrowedGpus": status.borrowed_gpus,
        "serviceGpus": status.service_gpus,
        "provisionGpus": status.provision_gpus,
        "leadTimeSeconds": round(status.lead_time_s, 1),
        "caution": None if status.caution is None else round(status.caution, 5),
        "forecast": _filled(forecast),
        "decision": _decision_document(status.decision),
        "reclaiming": _reclaiming_document(status.reclaiming),
        "state": _memory_document(status.memory),
        "history": [_point_document(history_point) for history_point in status.history],
        "conditions": [_condition_document(condition) for condition in status.conditions],
    }
    return _filled(result)


def _service(item: Mapping[str, Any]) -> PoolService:
    labels = {str(key): str(value) for key, value in (item.get("selector") or {}).get("matchLabels", {}).items()}
    capacity = float(item["capacityPerGpu"])
    if not labels or not 0 < capacity < float("inf"):
        raise ValueError(f"service {item['name']}: selector.matchLabels and a capacityPerGpu above 0 are needed")
    series = item.get("demand") or f"{item['namespace']}/{item['name']}"
    return PoolService(item["name"], item["namespace"], labels, series, capacity, int(item.get("minimumGpus", 0)))


def _span(text: Any, name: str) -> float:
    match = _SPAN.fullmatch(str(text))
    if match is None:
        raise ValueError(f"spec.{name} {text!r} is no span such as 5m")
    return float(int(match[1]) * _UNITS_S[match[2]])


def _decision(result: Mapping[str, Any] | None) -> LastDecision | None:
    if not result:
        return None
    reasons = tuple([Reason(reason["code"], reason["message"]) for reason in result.get("reasons") or ()])
    return LastDecision(Verb(result["verb"]), int(result["gpus"]), seconds(result["at"]), reasons)


def _decision_document(last_decision: LastDecision | None) -> Object | None:
    if last_decision is None:
        return None
    reasons = [{"code": why.code, "message": why.message[:_LONGEST]} for why in last_decision.reasons]
    return {
        "verb": last_decision.verb.value,
        "gpus": last_decision.gpus,
        "at": stamp(last_decision.at_s),
        "reasons": reasons,
    }


def _reclaiming(result: Mapping[str, Any] | None) -> Reclaiming | None:
    if not result:
        return None
    return Reclaiming(int(result["gpus"]), seconds(result["since"]), seconds(result["by"]), tuple(result["victims"]))


def _reclaiming_document(reclaiming: Reclaiming | None) -> Object | None:
    if reclaiming is None:
        return None
    return {
        "gpus": reclaiming.gpus,
        "since": stamp(reclaiming.since_s),
        "by": stamp(reclaiming.by_s),
        "victims": list(reclaiming.victims[:100]),
    }


def _memory(result: Mapping[str, Any]) -> Memory:
    level = result.get("level")
    starts = tuple([(str(uid), float(took_s)) for uid, took_s in _starts(result.get("starts"))])
    saves = tuple([float(save) for save in result.get("saves") or ()])
    return Memory(
        _amounts(result.get("recent")),
        None if level is None else float(level),
        _amounts(result.get("promised")),
        starts,
        saves,
    )


def _memory_document(memory: Memory) -> Object:
    def rows(amounts: Iterable[tuple[float, int]]) -> list[Object]:
        return [{"at": round(at_s, 3), "gpus": gpus} for at_s, gpus in amounts]

    starts = [{"pod": uid, "seconds": round(took_s, 1)} for uid, took_s in memory.starts]
    return _filled(
        {
            "recent": rows(memory.recent),
            "promised": rows(memory.promised),
            "starts": starts,
            "saves": [round(took_s, 1) for took_s in memory.saves],
            "level": None if memory.level is None else round(memory.level, 4),
        }
    )


def _amounts(result: Any) -> tuple[tuple[float, int], ...]:
    return tuple([(float(item["at"]), int(item["gpus"])) for item in result or ()])


def _starts(result: Any) -> list[tuple[str, float]]:
    return [(item["pod"], item["seconds"]) for item in result or ()]


def _point(item: Mapping[str, Any]) -> HistoryPoint:
    return HistoryPoint(
        seconds(item["at"]),
        item["lent"],
        item["borrowed"],
        item["service"],
        item["provision"],
        item.get("p50"),
        item.get("p99"),
    )


def _point_document(history_point: HistoryPoint) -> Object:
    return _filled(
        {
            "at": stamp(history_point.at_s),
            "lent": history_point.lent,
            "borrowed": history_point.borrowed,
            "service": history_point.service,
            "provision": history_point.provision,
            "p50": history_point.p50,
            "p99": history_point.p99,
        }
    )


def _condition(item: Mapping[str, Any]) -> Condition:
    return Condition(
        item["type"], item["status"] == "True", item["reason"], item["message"], seconds(item["lastTransitionTime"])
    )


def _condition_document(condition: Condition) -> Object:
    return {
        "type": condition.type,
        "status": "True" if condition.status else "False",
        "reason": condition.reason,
        "message": condition.message[:_LONGEST],
        "lastTransitionTime": stamp(condition.since_s),
    }


def _seconds(text: Any) -> float | None:
    return seconds(text) if text else None


def _filled(result: Mapping[str, Any]) -> Object:
    return {key: value for key, value in result.items() if value is not None}
