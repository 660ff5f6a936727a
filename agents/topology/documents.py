"""A scan as the ``NodeTopology`` object, and whether one says the same as another.

One write holds spec and status: what the status says of is what the spec shows, and a change is one request.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from kopt.agents.topology.health import Degraded, Health
from kopt.agents.topology.readings import CollectorProblem, Reading
from kopt.agents.topology.scanning import ScanResult
from kopt.agents.topology.versions import version_warnings
from kopt.cluster.client.resources import NODE_TOPOLOGIES, NODES, Object
from kopt.core.hardware.node_topology import NodeTopology
from kopt.core.times import seconds, stamp

DISCOVERED, HEALTHY = "Discovered", "Healthy"
_PARTS = ("gpus", "links", "nics", "nic_affinity", "switches")
_MOST_WARNINGS, _LONGEST_WARNING, _LONGEST_MESSAGE = 100, 1024, 300
_OK = "OK"
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def document_of(node: str, uid: str, result: ScanResult, health: Health, before: Object | None, at_s: float) -> Object:
    """The object to be applied. Without a topology of its own a scan leaves the spec as ``before`` has it."""
    earlier = dict((before or {}).get("spec") or {})
    spec = spec_of(result.topology) if result.topology is not None else earlier
    owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node, "uid": uid}
    return {
        "apiVersion": NODE_TOPOLOGIES.api_version,
        "kind": NODE_TOPOLOGIES.kind,
        "metadata": {"name": node, "ownerReferences": [owner]},
        "spec": spec,
        "status": _status(result, health, (before or {}).get("status") or {}, at_s),
    }


def spec_of(topology: NodeTopology) -> Object:
    """Fields of ``kopt topology parse`` as Kubernetes writes names; what is not known is left out."""
    result = asdict(topology)
    spec = {
        name: [_without_unknown(item) for item in result[name]] for name in _PARTS if result[name] or name == "gpus"
    }
    blocked = [_without_unknown(item) for item in result["peers"] if item["status"] != _OK]
    spec |= {"peers": blocked} if blocked else {}
    return _camelled({"tool": topology.tool[:63], **({"vendor": topology.vendor} if topology.vendor else {}), **spec})


def health_of(document: Object | None) -> Health | None:
    """What an object says was best, and what is degraded; None where it says nothing, or nothing that can be read."""
    status = (document or {}).get("status") or {}
    if not status.get("best"):
        return None
    try:
        degraded = tuple(
            Degraded(
                item["part"], float(item["was"]), float(item["now"]), seconds(item["since"]), int(item.get("falls", 1))
            )
            for item in status.get("degraded") or ()
        )
        best = {part: float(value) for part, value in status["best"].items()}
        return Health(best, dict(status.get("boards") or {}), degraded)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        # Somebody else wrote it: what was best begins anew.
        return None


def same(item: Object | None, other: Object) -> bool:
    """Do two objects say the same, but for when, and for the figures within messages?"""
    try:
        return item is not None and _telling(item) == _telling(other)
    except (AttributeError, TypeError, ValueError):
        # Somebody else wrote it: it says nothing of ours.
        return False


def _status(result: ScanResult, health: Health, before: Mapping[str, Any], at_s: float) -> Object:
    warnings = [*result.warnings, *version_warnings(result.details.versions)]
    sources = [
        _source(reading, reading.name in result.stale)
        for reading in result.readings
        if reading.problem is not CollectorProblem.ABSENT
    ]
    conditions = [_discovered(result), _healthy(health.degraded)]
    status: Object = {
        "observedAt": stamp(at_s),
        "sources": sources,
        "versions": dict(result.details.versions),
        "warnings": [warning[:_LONGEST_WARNING] for warning in warnings[:_MOST_WARNINGS]],
        "degraded": [_degraded(degraded) for degraded in health.degraded],
        "best": dict(health.best),
        "boards": dict(health.boards),
        "conditions": [_since(condition, before.get("conditions") or (), at_s) for condition in conditions],
    }
    return {name: value for name, value in status.items() if value}


def _degraded(degraded: Degraded) -> Object:
    return {
        "part": degraded.part,
        "was": degraded.was,
        "now": degraded.now,
        "since": stamp(degraded.since_s),
        "falls": degraded.falls,
    }


def _source(reading: Reading, stale: bool) -> Object:
    if reading.problem is None:
        return {"name": reading.name, "state": "ok"}
    entry: Object = {"name": reading.name, "state": str(reading.problem), "message": reading.message[:_LONGEST_MESSAGE]}
    return entry | ({"stale": True} if stale else {})


def _discovered(result: ScanResult) -> Object:
    failed = [reading.name for reading in result.readings if reading.problem not in (None, CollectorProblem.ABSENT)]
    if result.topology is None:
        reason, message = "NothingFound", "no collector tells of a GPU; the spec is what was known last"
    elif failed:
        reason, message = "Partly", f"not read: {', '.join(failed)}"
    else:
        reason, message = "Complete", "every collector that is there was read"
    return {
        "type": DISCOVERED,
        "status": "True" if reason == "Complete" else "False",
        "reason": reason,
        "message": message,
    }


def _healthy(degraded: Sequence[Degraded]) -> Object:
    parts = [f"{item.part}: {item.now:g} of {item.was:g}" for item in degraded]
    message = "; ".join(parts)[:_LONGEST_WARNING] or "no link is worse than it was"
    return {
        "type": HEALTHY,
        "status": "False" if degraded else "True",
        "message": message,
        "reason": "Degraded" if degraded else "AsGoodAsEver",
    }


def _since(condition: Object, before: Sequence[Mapping[str, Any]], at_s: float) -> Object:
    old = next((item for item in before if item.get("type") == condition["type"]), {})
    kept = old.get("lastTransitionTime") if old.get("status") == condition["status"] else None
    return {**condition, "lastTransitionTime": kept or stamp(at_s)}


def _telling(document: Object) -> Object:
    status = dict(document.get("status") or {})
    status.pop("observedAt", None)
    status.pop("traffic", None)
    status["conditions"] = [
        {name: condition.get(name) for name in ("type", "status", "reason")}
        for condition in status.get("conditions") or ()
    ]
    status["sources"] = [
        {**source, "message": _NUMBER.sub("#", source.get("message", ""))} for source in status.get("sources") or ()
    ]
    owners = [
        owner_reference.get("uid") for owner_reference in (document.get("metadata") or {}).get("ownerReferences") or ()
    ]
    return {"spec": document.get("spec"), "status": status, "owners": owners}


def _without_unknown(value: Mapping[str, Any]) -> Object:
    """A part without what is not known; a number of 0 is known, but for memory."""
    return {
        name: _plain(item)
        for name, item in value.items()
        if item not in (None, "", ()) and not (name == "memory_bytes" and not item)
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, str) else value


def _camelled(values: Mapping[str, Any]) -> Object:
    return dict(_camel(dict(values)))


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {re.sub("_([a-z])", lambda match: match[1].upper(), name): _camel(item) for name, item in value.items()}
    return [_camel(item) for item in value] if isinstance(value, list) else value
