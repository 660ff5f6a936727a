"""What the example's components did to its jobs, as they would have sealed it into the audit log."""

from collections.abc import Iterator, Mapping
from typing import Any

from kopt.cli.local.example.cluster import objects_at
from kopt.cli.local.example.jobs import DATA, DATA_USER, QUEUE
from kopt.cluster.client.resources import EVICTIONS, JOBS
from kopt.cluster.holds.hold import PARKED, QUEUE_LABEL
from kopt.cluster.objects.eviction import entry_of
from kopt.core.audit import AuditChain, SealedRecord
from kopt.core.scheduling.eviction import Cause, Phase
from kopt.core.times import seconds

Content = Mapping[str, Any]


def recorded_at(now_s: float, after_s: float) -> list[SealedRecord]:
    """What happened behind ``after_s`` until now, a chain for each start of the example."""
    chains: dict[str, AuditChain] = {}
    records = []
    for content in sorted(_contents(now_s), key=lambda content: float(content["at_s"])):
        if after_s < content["at_s"] <= now_s:
            component = content["component"]
            chain = chains.setdefault(component, AuditChain(f"{component}/example/{int(now_s * 1000)}"))
            records.append(chain.seal(content))
    return records


def _contents(now_s: float) -> Iterator[Content]:
    for document in objects_at(now_s)[EVICTIONS]:
        entry = entry_of(document)
        eviction = entry.eviction
        if eviction.cause is not Cause.LENDING:
            continue
        reference = eviction.workload
        about = _job(eviction.namespace, reference.name, reference.uid)
        yield _event("lending", eviction.evicted_at_s, about, "Evict", "Reclaiming", eviction.reason)
        if entry.outcome.phase is Phase.RESUMED and entry.outcome.resumed_at_s is not None:
            text = f"It is back in the queue {QUEUE}, and went on from step {entry.outcome.resumed_step}."
            yield _event("lending", entry.outcome.resumed_at_s, about, "Return", "Returned", text)
    for job in objects_at(now_s)[JOBS]:
        metadata = job["metadata"]
        if metadata["name"] == DATA_USER:
            created_s = seconds(metadata["creationTimestamp"])
            about = _job(metadata["namespace"], metadata["name"], metadata["uid"])
            text = f"Held until {DATA} is on the volume that it names."
            yield _event("staging", created_s + 2, about, "Hold", "DataOnItsWay", text)
            before, after = ({"metadata": {"labels": {QUEUE_LABEL: name}}} for name in ("gpus", PARKED))
            yield _content("staging", created_s + 1, about, "write", "patch") | {"before": before, "after": after}


def _event(component: str, at_s: float, about: Content, verb: str, reason: str, text: str) -> Content:
    return _content(component, at_s, about, "event", verb) | {"reason": reason, "text": text}


def _content(component: str, at_s: float, about: Content, kind: str, verb: str) -> dict[str, Any]:
    return {"at_s": round(at_s, 3), "component": component, "kind": kind, "verb": verb, "object": about}


def _job(namespace: str, name: str, uid: str) -> Content:
    return {"apiVersion": "batch/v1", "kind": "Job", "namespace": namespace, "name": name, "uid": uid}
