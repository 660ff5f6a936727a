"""``LendingPool`` objects as core types, and their status as it is written."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from kopt.cluster.node_bandwidths import seconds, stamp
from kopt.cluster.resources import Object
from kopt.core.decision import Mode
from kopt.core.evictions import System
from kopt.core.lending_pools import (
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
from kopt.core.reason import Reason

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
            name, int(spec["gpus"]), tuple([_service(one) for one in spec["services"]]),
            tuple([Borrower(System(one["system"]), one["queue"], one.get("flavor", ""))
                   for one in spec.get("borrowers") or ()]),
            spec.get("resource") or "nvidia.com/gpu", float(spec.get("violationTarget", 0.01)),
            lead, _span(spec.get("hold", "30m"), "hold"),
            int(spec.get("hysteresisGpus", 1)), Mode(spec.get("mode", Mode.OBSERVE)),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"LendingPool {name} cannot be read: {error!r}") from error


def status_of(document: Object) -> PoolStatus:
    """The status; of what cannot be read nothing is known. Never raises for what an object can hold."""
    status = document.get("status") or {}
    try:
        forecast = status.get("forecast") or {}
        return PoolStatus(
            int(status.get("observedGeneration", 0)), int(status.get("lentGpus", 0)),
            int(status.get("borrowedGpus", 0)), int(status.get("serviceGpus", 0)), int(status.get("provisionGpus", 0)),
            float(status.get("leadTimeSeconds", 0)), status.get("caution"),
            ForecastState(forecast.get("state", ForecastState.MISSING)), _moment(forecast.get("at")),
            str(forecast.get("model", "")), _decision(status.get("decision")), _reclaiming(status.get("reclaiming")),
            _memory(status.get("state") or {}), tuple([_point(one) for one in status.get("history") or ()]),
            tuple([_condition(one) for one in status.get("conditions") or ()]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError):
        return PoolStatus()


def status_document(status: PoolStatus) -> Object:
    """The ``status`` of the object."""
    forecast = {"state": status.forecast.value, "at": _stamp(status.forecast_at_s), "model": status.forecast_model}
    found: dict[str, Any] = {
        "observedGeneration": status.generation, "lentGpus": status.lent_gpus, "borrowedGpus": status.borrowed_gpus,
        "serviceGpus": status.service_gpus, "provisionGpus": status.provision_gpus,
        "leadTimeSeconds": round(status.lead_time_s, 1),
        "caution": None if status.caution is None else round(status.caution, 5), "forecast": _filled(forecast),
        "decision": _decision_document(status.decision), "reclaiming": _reclaiming_document(status.reclaiming),
        "state": _memory_document(status.memory), "history": [_point_document(one) for one in status.history],
        "conditions": [_condition_document(one) for one in status.conditions],
    }  # fmt: skip
    return _filled(found)


def _service(one: Mapping[str, Any]) -> PoolService:
    labels = {str(key): str(value) for key, value in (one.get("selector") or {}).get("matchLabels", {}).items()}
    capacity = float(one["capacityPerGpu"])
    if not labels or not 0 < capacity < float("inf"):
        raise ValueError(f"service {one['name']}: selector.matchLabels and a capacityPerGpu above 0 are needed")
    series = one.get("demand") or f"{one['namespace']}/{one['name']}"
    return PoolService(one["name"], one["namespace"], labels, series, capacity, int(one.get("minimumGpus", 0)))


def _span(text: Any, name: str) -> float:
    found = _SPAN.fullmatch(str(text))
    if found is None:
        raise ValueError(f"spec.{name} {text!r} is no span such as 5m")
    return float(int(found[1]) * _UNITS_S[found[2]])


def _decision(found: Mapping[str, Any] | None) -> LastDecision | None:
    if not found:
        return None
    reasons = tuple([Reason(one["code"], one["message"]) for one in found.get("reasons") or ()])
    return LastDecision(Verb(found["verb"]), int(found["gpus"]), seconds(found["at"]), reasons)


def _decision_document(one: LastDecision | None) -> Object | None:
    if one is None:
        return None
    reasons = [{"code": why.code, "message": why.message[:_LONGEST]} for why in one.reasons]
    return {"verb": one.verb.value, "gpus": one.gpus, "at": stamp(one.at_s), "reasons": reasons}


def _reclaiming(found: Mapping[str, Any] | None) -> Reclaiming | None:
    if not found:
        return None
    return Reclaiming(int(found["gpus"]), seconds(found["since"]), seconds(found["by"]), tuple(found["victims"]))


def _reclaiming_document(one: Reclaiming | None) -> Object | None:
    if one is None:
        return None
    return {"gpus": one.gpus, "since": stamp(one.since_s), "by": stamp(one.by_s), "victims": list(one.victims[:100])}


def _memory(found: Mapping[str, Any]) -> Memory:
    level = found.get("level")
    starts = tuple([(str(uid), float(took_s)) for uid, took_s in _pairs(found.get("starts"))])
    saves = tuple([float(one) for one in found.get("saves") or ()])
    return Memory(_amounts(found.get("recent")), None if level is None else float(level),
                  _amounts(found.get("promised")), starts, saves)  # fmt: skip


def _memory_document(one: Memory) -> Object:
    def rows(amounts: Iterable[tuple[float, int]]) -> list[Object]:
        return [{"at": round(at_s, 3), "gpus": gpus} for at_s, gpus in amounts]

    starts = [{"pod": uid, "seconds": round(took_s, 1)} for uid, took_s in one.starts]
    return _filled({"recent": rows(one.recent), "promised": rows(one.promised), "starts": starts,
                    "saves": [round(took_s, 1) for took_s in one.saves],
                    "level": None if one.level is None else round(one.level, 4)})  # fmt: skip


def _amounts(found: Any) -> tuple[tuple[float, int], ...]:
    return tuple([(float(one["at"]), int(one["gpus"])) for one in found or ()])


def _pairs(found: Any) -> list[tuple[str, float]]:
    return [(one["pod"], one["seconds"]) for one in found or ()]


def _point(one: Mapping[str, Any]) -> HistoryPoint:
    return HistoryPoint(seconds(one["at"]), one["lent"], one["borrowed"], one["service"], one["provision"],
                        one.get("p50"), one.get("p99"))  # fmt: skip


def _point_document(one: HistoryPoint) -> Object:
    return _filled({"at": stamp(one.at_s), "lent": one.lent, "borrowed": one.borrowed, "service": one.service,
                    "provision": one.provision, "p50": one.p50, "p99": one.p99})  # fmt: skip


def _condition(one: Mapping[str, Any]) -> Condition:
    return Condition(one["type"], one["status"] == "True", one["reason"], one["message"],
                     seconds(one["lastTransitionTime"]))  # fmt: skip


def _condition_document(one: Condition) -> Object:
    return {"type": one.type, "status": "True" if one.status else "False", "reason": one.reason,
            "message": one.message[:_LONGEST], "lastTransitionTime": stamp(one.since_s)}  # fmt: skip


def _moment(text: Any) -> float | None:
    return seconds(text) if text else None


def _stamp(at_s: float | None) -> str | None:
    return None if at_s is None else stamp(at_s)


def _filled(found: Mapping[str, Any]) -> Object:
    return {key: value for key, value in found.items() if value is not None}
