"""A scan as the ``NodeTopology`` object, and whether one says the same as another.

One write holds spec and status: what the status says of is what the spec shows, and a change is one request.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from kopt.agents.topology.health import Degraded, Health
from kopt.agents.topology.readings import Reading, Trouble
from kopt.agents.topology.scanning import Found
from kopt.agents.topology.versions import version_warnings
from kopt.cluster.resources import NODE_TOPOLOGIES, NODES, Object
from kopt.core.topology import NodeTopology

DISCOVERED, HEALTHY = "Discovered", "Healthy"
_PARTS = ("gpus", "links", "nics", "nic_affinity", "switches")
_MOST_WARNINGS, _LONGEST_WARNING, _LONGEST_MESSAGE = 100, 1024, 300
_SAID_OK = "OK"
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


def document_of(node: str, uid: str, found: Found, health: Health, before: Object | None, at_s: float) -> Object:
    """The object to be applied. Without a topology of its own a scan leaves the spec as ``before`` has it."""
    known = dict((before or {}).get("spec") or {})
    spec = spec_of(found.topology) if found.topology is not None else known
    owner = {"apiVersion": NODES.api_version, "kind": NODES.kind, "name": node, "uid": uid}
    return {
        "apiVersion": NODE_TOPOLOGIES.api_version, "kind": NODE_TOPOLOGIES.kind,
        "metadata": {"name": node, "ownerReferences": [owner]},
        "spec": spec, "status": _status(found, health, (before or {}).get("status") or {}, at_s),
    }  # fmt: skip


def spec_of(topology: NodeTopology) -> Object:
    """Fields of ``kopt topology parse`` as Kubernetes writes names; what is not known is left out."""
    found = asdict(topology)
    spec = {name: [_told(one) for one in found[name]] for name in _PARTS if found[name] or name == "gpus"}
    blocked = [_told(one) for one in found["peers"] if one["status"] != _SAID_OK]
    spec |= {"peers": blocked} if blocked else {}
    return _camelled({"tool": topology.tool[:63], **({"vendor": topology.vendor} if topology.vendor else {}), **spec})


def health_of(document: Object | None) -> Health | None:
    """What an object says was best, and what is degraded; None where it says nothing."""
    status = (document or {}).get("status") or {}
    if not status.get("best"):
        return None
    degraded = tuple(
        Degraded(one["part"], float(one["was"]), float(one["now"]), _seconds(one["since"]), int(one.get("falls", 1)))
        for one in status.get("degraded") or ()
    )
    return Health({part: float(value) for part, value in status["best"].items()}, dict(status.get("boards") or {}),
                  degraded)  # fmt: skip


def same(one: Object | None, other: Object) -> bool:
    """Do two objects say the same, but for when, and for the figures within messages?"""
    return one is not None and _telling(one) == _telling(other)


def _status(found: Found, health: Health, before: Mapping[str, Any], at_s: float) -> Object:
    warnings = [*found.warnings, *version_warnings(found.facts.versions)]
    sources = [_source(one, one.name in found.stale) for one in found.readings if one.trouble is not Trouble.ABSENT]
    conditions = [_discovered(found), _healthy(health.degraded)]
    status: Object = {
        "observedAt": time_of(at_s), "sources": sources, "versions": dict(found.facts.versions),
        "warnings": [one[:_LONGEST_WARNING] for one in warnings[:_MOST_WARNINGS]],
        "degraded": [_degraded(one) for one in health.degraded],
        "best": dict(health.best), "boards": dict(health.boards),
        "conditions": [_since(one, before.get("conditions") or (), at_s) for one in conditions],
    }  # fmt: skip
    return {name: value for name, value in status.items() if value}


def _degraded(one: Degraded) -> Object:
    return {"part": one.part, "was": one.was, "now": one.now, "since": time_of(one.since_s), "falls": one.falls}


def _source(reading: Reading, stale: bool) -> Object:
    if reading.trouble is None:
        return {"name": reading.name, "state": "ok"}
    said: Object = {"name": reading.name, "state": str(reading.trouble), "message": reading.message[:_LONGEST_MESSAGE]}
    return said | ({"stale": True} if stale else {})


def _discovered(found: Found) -> Object:
    failed = [one.name for one in found.readings if one.trouble not in (None, Trouble.ABSENT)]
    if found.topology is None:
        reason, message = "NothingFound", "no collector tells of a GPU; the spec is what was known last"
    elif failed:
        reason, message = "Partly", f"not read: {', '.join(failed)}"
    else:
        reason, message = "Complete", "every collector that is there was read"
    return {"type": DISCOVERED, "status": "True" if reason == "Complete" else "False", "reason": reason,
            "message": message}  # fmt: skip


def _healthy(degraded: Sequence[Degraded]) -> Object:
    parts = [f"{one.part}: {one.now:g} of {one.was:g}" for one in degraded]
    message = "; ".join(parts)[:_LONGEST_WARNING] or "no link is worse than it was"
    return {"type": HEALTHY, "status": "False" if degraded else "True", "message": message,
            "reason": "Degraded" if degraded else "AsGoodAsEver"}  # fmt: skip


def _since(condition: Object, before: Sequence[Mapping[str, Any]], at_s: float) -> Object:
    old = next((one for one in before if one.get("type") == condition["type"]), {})
    kept = old.get("lastTransitionTime") if old.get("status") == condition["status"] else None
    return {**condition, "lastTransitionTime": kept or time_of(at_s)}


def _telling(document: Object) -> Object:
    status = dict(document.get("status") or {})
    status.pop("observedAt", None)
    status["conditions"] = [{name: one.get(name) for name in ("type", "status", "reason")}
                            for one in status.get("conditions") or ()]  # fmt: skip
    status["sources"] = [{**one, "message": _NUMBER.sub("#", one.get("message", ""))}
                         for one in status.get("sources") or ()]  # fmt: skip
    owners = [one.get("uid") for one in (document.get("metadata") or {}).get("ownerReferences") or ()]
    return {"spec": document.get("spec"), "status": status, "owners": owners}


def _told(value: Mapping[str, Any]) -> Object:
    """A part without what is not known; a number of 0 is known, but for memory."""
    return {name: _plain(one) for name, one in value.items()
            if one not in (None, "", ()) and not (name == "memory_bytes" and not one)}  # fmt: skip


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else str(value) if isinstance(value, str) else value


def _camelled(values: Mapping[str, Any]) -> Object:
    return dict(_camel(dict(values)))


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {re.sub("_([a-z])", lambda found: found[1].upper(), name): _camel(one) for name, one in value.items()}
    return [_camel(one) for one in value] if isinstance(value, list) else value


def time_of(at_s: float) -> str:
    """RFC 3339 in whole seconds."""
    return datetime.fromtimestamp(int(at_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
