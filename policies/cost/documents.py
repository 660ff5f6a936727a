"""A report of costs as JSON, and read back: integers throughout, so that sums close on the other side too.

Milli-GPU·ms are texts: those of a large cluster are beyond what every JSON reader keeps exactly (RFC 8259, section 6).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kopt.core.cost.metering import GPU_HOUR, Rule
from kopt.core.cost.prices import Price
from kopt.policies.cost.attribution import By, CostRow, Part, Unused
from kopt.policies.cost.budgets import stamp
from kopt.policies.cost.epochs import EpochCost
from kopt.policies.cost.report import CostEvent, CostReport, NodeHours
from kopt.policies.cost.run import RunCost

SCHEMA = "kopt/v1"


def report_document(report: CostReport) -> dict[str, Any]:
    """What ``GET /v1/cost`` answers: the header of ``kopt cost -o json``, and rows whose ``milli_gpu_ms`` are exact."""
    return {
        "schema": SCHEMA,
        **report.to_dict(),
        "rule_name": report.rule.value,
        "milli_gpu_ms": str(report.used),
        "node_milli_gpu_ms": None if report.nodes is None else str(report.nodes.used),
        "unpriced_milli_gpu_ms": {name: str(used) for name, used in report.unpriced.items()},
        "unused": None if report.unused is None else [_unused(*key, part) for key, part in report.unused.items()],
        "costs": [_row(row) for row in report.rows],
        "rest": [_row(row) for row in report.rest],
    }


def events_document(events: Sequence[CostEvent], total: int) -> dict[str, Any]:
    """The first of ``total`` events behind a row."""
    return {
        "schema": SCHEMA,
        "events_in_all": total,
        "events": [
            {
                "who": event.who,
                "node": event.node,
                "from": stamp(event.start_ms),
                "until": stamp(event.end_ms),
                "from_ms": event.start_ms,
                "until_ms": event.end_ms,
                "milli_gpu": event.milli,
                "milli_gpu_ms": str(event.used),
                "micro_per_gpu_hour": None if event.price is None else event.price.micro_per_gpu_hour,
                "micro": event.micro,
                "currency": "" if event.price is None else event.price.currency,
                "price_source": "" if event.price is None else event.price.source,
                "uid": event.uid,
                "run": event.run,
            }
            for event in events
        ],
    }


def events_of(document: Mapping[str, Any]) -> tuple[list[CostEvent], int]:
    """What ``events_document`` wrote: events, and how many there are in all. Raises ValueError for anything else."""
    try:
        return [_event_of(event) for event in document["events"]], int(document["events_in_all"])
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"these are no events of costs: {type(error).__name__} {str(error)[:80]}") from error


def _event_of(event: Mapping[str, Any]) -> CostEvent:
    per_hour = event["micro_per_gpu_hour"]
    source, currency = str(event["price_source"]), str(event["currency"])
    return CostEvent(
        str(event["who"]),
        str(event["node"]),
        int(event["from_ms"]),
        int(event["until_ms"]),
        int(event["milli_gpu"]),
        _whole(event["milli_gpu_ms"]),
        None if per_hour is None else Price("", "", "", "", int(per_hour), currency, 0, source),
        None if event["micro"] is None else int(event["micro"]),
        # Pages of an earlier release do not say them.
        *(str(event.get(name, "")) for name in ("uid", "run")),
    )


def run_document(run: RunCost) -> dict[str, Any]:
    """What ``GET /v1/cost/run`` answers."""
    return {"schema": SCHEMA, **run.to_dict()}


def run_of(document: Mapping[str, Any]) -> RunCost:
    """What ``run_document`` wrote. Raises ValueError for anything else."""
    try:
        *epochs, whole = (_epoch_of(item, str(document["currency"])) for item in document["epochs"])
        remarks, runs = (tuple(map(str, document[name])) for name in ("remarks", "runs"))
        return RunCost(str(document["workload"]), tuple(epochs), whole, remarks, str(document["run"]), runs)
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"this is no run's cost: {type(error).__name__} {str(error)[:80]}") from error


def _epoch_of(item: Mapping[str, Any], currency: str) -> EpochCost:
    return EpochCost(
        None if item["epoch"] == "all" else int(item["epoch"]),
        int(item["from_ms"]),
        int(item["until_ms"]),
        float(item["gpu_hours"]),
        None if item["micro"] is None else int(item["micro"]),
        currency,
        int(item["steps"]),
        *(None if item[name] is None else float(item[name]) for name in ("samples", "tokens")),
    )


def report_of(document: Mapping[str, Any]) -> CostReport:
    """What ``report_document`` wrote. Raises ValueError for anything else."""
    try:
        nodes = document["node_milli_gpu_ms"]
        namespaces = document["namespaces"]
        return CostReport(
            By(document["by"]),
            str(document["label"]),
            int(document["from_ms"]),
            int(document["until_ms"]),
            Rule(document["rule_name"]),
            tuple(map(_row_of, document["costs"])),
            tuple(map(_row_of, document["rest"])),
            int(document["rows_in_all"]),
            _whole(document["milli_gpu_ms"]),
            _amounts(document["micro"]),
            None if nodes is None else NodeHours(_whole(nodes), _amounts(document["node_micro"])),
            _amounts(document["unpriced_milli_gpu_ms"]),
            None if namespaces is None else tuple(map(str, namespaces)),
            _unused_of(document.get("unused")),
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"this is no report of costs: {type(error).__name__} {str(error)[:80]}") from error


def _row(row: CostRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "part": row.part.value,
        "pods": row.pods,
        "gpu_hours": row.used / GPU_HOUR,
        "milli_gpu_ms": str(row.used),
        "unpriced_milli_gpu_ms": str(row.unpriced),
        "micro": None if row.unpriced else row.micro,
        "currency": row.currency,
        "steps": row.steps,
        "micro_per_step": row.micro_per_step,
    }


def _row_of(row: Mapping[str, Any]) -> CostRow:
    return CostRow(
        str(row["name"]),
        Part(row["part"]),
        _whole(row["milli_gpu_ms"]),
        _whole(row["unpriced_milli_gpu_ms"]),
        int(row["micro"] or 0),
        str(row["currency"]),
        int(row["pods"]),
        int(row["steps"]),
    )


def _unused(name: str, currency: str, unused: Unused) -> dict[str, Any]:
    return {
        "name": name,
        "currency": currency,
        "milli_gpu_ms": str(unused.used),
        "micro": unused.micro,
        "unmeasured_milli_gpu_ms": str(unused.unmeasured),
    }


def _unused_of(rows: Sequence[Mapping[str, Any]] | None) -> dict[tuple[str, str], Unused] | None:
    """None also from pages that are older than this."""
    if rows is None:
        return None
    return {
        (str(row["name"]), str(row["currency"])): Unused(
            _whole(row["milli_gpu_ms"]), int(row["micro"]), _whole(row["unmeasured_milli_gpu_ms"])
        )
        for row in rows
    }


def _whole(value: object) -> int:
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,30}", str(value)):
        raise ValueError(f"{str(value)[:40]!r} is no whole number")
    return int(str(value))


def _amounts(document: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): _whole(value) for name, value in document.items()}
