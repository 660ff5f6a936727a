"""``NodeHealth`` objects (``kaiwo.ai/v1alpha1``), as the health controller writes them, as core types.

The object is the controller's memory as well: whoever leads next goes on from the evidence, the readings of counters
and the outcomes of jobs in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.core.decision import Mode
from kopt.core.hardware.health import Entry, Grade, NodeHealth, Outcome
from kopt.core.times import seconds, stamp

REPAIRED_ANNOTATION = "kaiwo.ai/repaired-at"
"""On a Node, by a person or a repair system: RFC 3339. What was seen before weighs little from then on."""
MOST_EVIDENCE, MOST_OUTCOMES, MOST_COUNTERS = 256, 40, 512
_LONGEST = 512


@dataclass(frozen=True)
class HealthRecord:
    """All that is known of a node. ``counters``: the last readings, by series and GPU. ``repaired_s``: the last repair
    that was counted; ``boot``: the node's boot then. ``gpu_count``: GPUs that it offers."""

    node: str
    health: NodeHealth = field(default_factory=NodeHealth)
    entries: Mapping[tuple[str, str], Entry] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    outcomes: tuple[Outcome, ...] = ()
    reason: str = ""
    mode: Mode = Mode.OBSERVE
    since_s: float = 0.0
    repaired_s: float = 0.0
    boot: str = ""
    gpu_count: int = 0


def record_of(document: Object) -> HealthRecord:
    """Parts that cannot be read are left out: nothing in an object makes this raise."""
    status, node = mapping(document, "status"), text(document, "metadata", "name")
    gpus = {
        text(item, "gpu"): (_grade(text(item, "verdict")), _number(item, "load")) for _, item in items(status, "gpus")
    }
    health = NodeHealth(
        _grade(text(status, "verdict")),
        min(1.0, _number(status, "score", 1.0)),
        {gpu: grade for gpu, (grade, _) in gpus.items()},
        {gpu: load for gpu, (_, load) in gpus.items()},
    )
    entries = [entry for _, item in items(status, "evidence") if (entry := _entry(item)) is not None]
    return HealthRecord(
        node,
        health,
        {(entry.code, entry.gpu): entry for entry in entries},
        {str(name): _number({"value": value}, "value") for name, value in items(status, "counters")},
        tuple(outcome for _, item in items(status, "jobs") if (outcome := _outcome(node, item)) is not None),
        text(status, "reason"),
        Mode(text(status, "mode")) if text(status, "mode") in tuple(Mode) else Mode.OBSERVE,
        _time(status, "since"),
        _time(status, "repairedAt"),
        text(status, "bootID"),
        int(_number(status, "gpuCount")),
    )


def status_of(record: HealthRecord) -> Object:
    """The ``status`` of the object; ``record_of`` reads it."""
    entries = sorted(record.entries.values(), key=lambda entry: (-entry.last_s, entry.code, entry.gpu))
    gpus = sorted({*record.health.gpus, *record.health.loads})
    return {
        "verdict": record.health.grade.text,
        "score": round(record.health.score, 3),
        "reason": record.reason[:1024],
        "mode": record.mode.value,
        "since": stamp(record.since_s),
        "repairedAt": stamp(record.repaired_s),
        "bootID": record.boot[:64],
        "gpuCount": record.gpu_count,
        "gpus": [
            {
                "gpu": gpu,
                "verdict": record.health.gpus.get(gpu, Grade.HEALTHY).text,
                "load": round(record.health.loads.get(gpu, 0.0), 4),
            }
            for gpu in gpus
        ],
        "evidence": [_entry_document(entry) for entry in entries[:MOST_EVIDENCE]],
        "counters": dict(sorted(record.counters.items())[:MOST_COUNTERS]),
        "jobs": [_outcome_document(outcome) for outcome in record.outcomes[-MOST_OUTCOMES:]],
    }


def _entry(item: Any) -> Entry | None:
    code = text(item, "code")
    if not code:
        return None
    return Entry(
        code[:64],
        text(item, "gpu")[:64],
        _number(item, "load"),
        _time(item, "at"),
        _time(item, "first"),
        _time(item, "last"),
        _number(item, "count"),
        text(item, "detail"),
        lasts=at(item, "lasts") is True,
    )


def _entry_document(entry: Entry) -> Object:
    return {
        "code": entry.code,
        "gpu": entry.gpu,
        "load": round(entry.load, 4),
        "at": stamp(entry.at_s),
        "first": stamp(entry.first_s),
        "last": stamp(entry.last_s),
        "count": round(entry.count, 1),
        "detail": entry.detail[:_LONGEST],
        "lasts": entry.lasts,
    }


def _outcome(node: str, item: Any) -> Outcome | None:
    job = text(item, "job")
    return Outcome(node, job, at(item, "failed") is True, _time(item, "at"), text(item, "family")) if job else None


def _outcome_document(outcome: Outcome) -> Object:
    return {
        "job": outcome.job[:_LONGEST],
        "family": outcome.family[:_LONGEST],
        "failed": outcome.failed,
        "at": stamp(outcome.at_s),
    }


def _grade(written: str) -> Grade:
    try:
        return Grade.of(written)
    except ValueError:
        return Grade.HEALTHY


def _number(item: Any, name: str, default: float = 0.0) -> float:
    value = at(item, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        return default
    return float(value)


def _time(item: Any, name: str) -> float:
    try:
        return max(0.0, seconds(text(item, name)))
    except (ValueError, OverflowError):
        return 0.0
