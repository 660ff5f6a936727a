"""``StagedData`` objects as core types, what workloads ask for by annotations, and what they are told."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from kopt.cluster.node_bandwidths import seconds, stamp
from kopt.cluster.resources import Object, Resource
from kopt.core.staged_data import (
    CLAIM,
    Amounts,
    ClaimFolder,
    Copy,
    DataPhase,
    DataSpec,
    NodeCache,
    Request,
    StagedData,
    User,
)
from kopt.core.staging import Source, StagingError, Trouble, safe_path

STAGED_DATA = Resource("kaiwo.ai", "v1alpha1", "stageddata", "StagedData")
NAMES_ANNOTATION = "kaiwo.ai/staged-data"
"""On a workload: names of StagedData of its namespace, with commas between."""
REQUEST_ANNOTATION = "kaiwo.ai/stage"
"""On a workload: ``SOURCE -> pvc://claim/path``, a line for each; a StagedData is made of it."""
ASKING = frozenset({NAMES_ANNOTATION, REQUEST_ANNOTATION})
SECRET_ANNOTATION = "kaiwo.ai/stage-secret"
"""On a workload: the Secret for what ``kaiwo.ai/stage`` names."""
STAGING_ANNOTATION = "kaiwo.ai/staging"
"""On a workload: JSON, what of its data is there."""
ASKS_LABEL = "kaiwo.ai/asks-for-data"
"""On pods that ask for data themselves, written as they are created: what they are found by."""
AGAIN_ANNOTATION = "kaiwo.ai/stage-again"
"""On a StagedData: another text than before has a failed download tried again now."""
FINALIZER = "kaiwo.ai/staged-copies"
STATES = ("held", "ready", "failed")
_MOST_USERS = 100
_LONGEST = 1024
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_DIGEST_LETTERS = 16


def staged_data_of(document: Object) -> StagedData:
    """Raises ValueError for an object that cannot be read."""
    metadata = document["metadata"]
    try:
        spec, status = document["spec"], document.get("status") or {}
        return StagedData(
            metadata["namespace"], metadata["name"], metadata["uid"], int(metadata.get("generation", 1)),
            spec_of(spec), seconds(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0.0,
            _copies(status, at_nodes="nodeCache" in spec["destination"]),
            tuple(User(one["kind"], one["name"], one["uid"]) for one in status.get("users") or ()),
            _seconds(status.get("lastUsedAt")), "deletionTimestamp" in metadata,
            FINALIZER in (metadata.get("finalizers") or ()),
            str((metadata.get("annotations") or {}).get(AGAIN_ANNOTATION, "")), str(status.get("again", "")),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"StagedData {metadata.get('name')} cannot be read ({error!r})") from error


def spec_of(spec: Mapping[str, Any]) -> DataSpec:
    """Raises KeyError or TypeError for one of another form."""
    place = spec["destination"]
    destination: ClaimFolder | NodeCache
    if "nodeCache" in place:
        cache = place["nodeCache"] or {}
        destination = NodeCache(int(cache.get("copies", 1)), tuple(sorted((cache.get("nodeSelector") or {}).items())))
    else:
        destination = ClaimFolder(place["claim"], place["path"])
    return DataSpec(
        spec["source"], destination, spec.get("sizeBytes"), spec.get("sha256", ""),
        (spec.get("credentials") or {}).get("secretName", ""), spec.get("limit", ""), spec.get("parallel"),
        spec.get("sourceChecksums", True),
    )  # fmt: skip


def body_of(namespace: str, name: str, spec: DataSpec) -> Object:
    """The object that an annotation asks for, as it is created."""
    assert isinstance(spec.destination, ClaimFolder)
    place = {"claim": spec.destination.claim, "path": spec.destination.path}
    wanted: Object = {"source": spec.source, "destination": place}
    if spec.secret:
        wanted["credentials"] = {"secretName": spec.secret}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": wanted}


def request_of(document: Object) -> Request:
    """What a workload asks for; false where that is nothing."""
    notes = document["metadata"].get("annotations") or {}
    names = tuple(one.strip() for one in str(notes.get(NAMES_ANNOTATION, "")).split(",") if one.strip())
    made: list[tuple[str, DataSpec]] = []
    try:
        for name in names:
            if not _NAME.fullmatch(name):
                raise StagingError(f"{name[:80]!r} in {NAMES_ANNOTATION} is no name of a StagedData")
        for line in str(notes.get(REQUEST_ANNOTATION, "")).splitlines():
            if line.strip():
                spec = requested(line, str(notes.get(SECRET_ANNOTATION, "")))
                made.append((name_of(spec), spec))
    except StagingError as error:
        return Request(problem=str(error))
    return Request(names, tuple(made))


def waits_for_data(document: Object) -> bool:
    """Whether a workload asks for data that it was not told to be there."""
    return bool(request_of(document)) and told_of(document).get("state") != "ready"


def requested(line: str, secret: str = "") -> DataSpec:
    """``SOURCE -> pvc://claim/path`` as a spec. Raises StagingError."""
    source, arrow, target = (part.strip() for part in line.rpartition("->"))
    claim, _, path = target.removeprefix("pvc://").partition("/")
    if not arrow or not target.startswith("pvc://") or not _NAME.fullmatch(claim) or not path.strip("/"):
        raise StagingError(f"{REQUEST_ANNOTATION} is written SOURCE -> pvc://claim/path")
    Source.parse(source)
    return DataSpec(source, ClaimFolder(claim, safe_path(path.strip("/"))), secret=secret)


def name_of(spec: DataSpec) -> str:
    """Equal requests of a namespace have one name, so one copy."""
    text = json.dumps([spec.source, repr(spec.destination), spec.secret])
    return f"stage-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]}"


def status_of(data: StagedData) -> Object:
    """The whole ``status`` of the object."""
    speaker, amounts = data.speaker, data.amounts
    ready = [one.ready_at_s for one in data.copies if one.ready_at_s is not None]
    digests = {one.digest for one in data.copies if one.digest}
    found: dict[str, Any] = {
        "phase": data.phase.value, "observedGeneration": data.generation,
        "attempts": max((one.attempts for one in data.copies), default=0),
        "progress": _progress(amounts) if amounts else None,
        "readyAt": stamp(max(ready)) if ready and data.phase is DataPhase.READY else None,
        "digest": next(iter(digests)) if len(digests) == 1 else None,
        "users": [{"kind": one.kind, "name": one.name, "uid": one.uid} for one in data.users[:_MOST_USERS]],
        "lastUsedAt": _stamp(data.last_used_at_s), "again": data.again_seen or None,
        "reason": speaker.reason.value if speaker and speaker.reason else None,
        "message": ((speaker.message if speaker else "") or data.missing)[:_LONGEST] or None,
        "nodes": [_node(one) for one in data.copies if one.place != CLAIM] or None,
    }  # fmt: skip
    claim = next((one for one in data.copies if one.place == CLAIM), None)
    if claim is not None:
        found |= _books(claim)
    return {key: value for key, value in found.items() if value is not None}


def told(state: str, request: Request, data: list[StagedData], reason: str, message: str, at_s: float) -> str:
    """The value of ``kaiwo.ai/staging``. ``reason`` and ``message`` are empty where all is well."""
    amounts = [one.amounts for one in data if one.amounts is not None]
    left = [one.seconds_left for one in amounts if one.seconds_left is not None]
    found: dict[str, Any] = {
        "state": state, "data": list(request.all_names), "reason": reason, "message": message[:_LONGEST],
        "bytes": sum(one.bytes for one in amounts), "bytesDone": sum(one.bytes_done for one in amounts),
        "secondsLeft": round(max(left), 1) if left else None, "at": stamp(at_s),
    }  # fmt: skip
    return json.dumps(found, separators=(",", ":"), ensure_ascii=False)


def told_of(document: Object) -> Mapping[str, Any]:
    """What stands on a workload; empty where nothing does that can be read."""
    text = (document["metadata"].get("annotations") or {}).get(STAGING_ANNOTATION)
    try:
        found = json.loads(text) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _copies(status: Mapping[str, Any], *, at_nodes: bool) -> tuple[Copy, ...]:
    if at_nodes:
        return tuple(_copy(one, str(one["name"])) for one in status.get("nodes") or ())
    return (_copy(status, CLAIM),) if "phase" in status else ()


def _copy(found: Mapping[str, Any], place: str) -> Copy:
    progress, reason = found.get("progress"), found.get("reason")
    amounts = _amounts(progress) if progress else None
    if place != CLAIM and amounts is None and "bytesDone" in found:
        amounts = Amounts(int(found.get("bytes", 0)), int(found["bytesDone"]))
    generation = found.get("madeFor", 0)
    return Copy(
        place, DataPhase(found["phase"]), int(found.get("attempts", 0)), int(found.get("judged", 0)),
        int(found.get("failures", 0)), int(generation), Trouble(reason) if reason else None,
        str(found.get("message", "")), str(found.get("digest", "")), amounts, _seconds(found.get("readyAt")),
        _seconds(found.get("retryAt")), gone=found.get("gone") is True, machine=str(found.get("machine", "")),
    )  # fmt: skip


def _node(one: Copy) -> Object:
    found: dict[str, Any] = {
        "name": one.place, "phase": one.phase.value, "attempts": one.attempts, "message": one.message[:_LONGEST],
        "reason": one.reason.value if one.reason else None, "digest": one.digest or None,
        "bytes": one.amounts.bytes if one.amounts else 0, "bytesDone": one.amounts.bytes_done if one.amounts else 0,
        "readyAt": _stamp(one.ready_at_s), "machine": one.machine or None,
    } | _books(one)  # fmt: skip
    return {key: value for key, value in found.items() if value is not None}


def _books(one: Copy) -> dict[str, Any]:
    """What only the controller reads."""
    return {
        "madeFor": one.generation,
        "judged": one.judged,
        "failures": one.failures,
        "retryAt": _stamp(one.retry_at_s),
        "gone": one.gone,
    }


def _progress(one: Amounts) -> Object:
    found = {
        "bytes": one.bytes, "bytesDone": one.bytes_done, "objects": one.objects, "objectsDone": one.objects_done,
        "bytesPerSecond": round(one.bytes_per_second), "at": stamp(one.at_s),
        "secondsLeft": None if one.seconds_left is None else round(one.seconds_left, 1),
    }  # fmt: skip
    return {key: value for key, value in found.items() if value is not None}


def _amounts(found: Mapping[str, Any]) -> Amounts:
    left = found.get("secondsLeft")
    return Amounts(
        int(found["bytes"]), int(found["bytesDone"]), int(found["objects"]), int(found["objectsDone"]),
        float(found["bytesPerSecond"]), None if left is None else float(left), seconds(found["at"]),
    )  # fmt: skip


def _seconds(text: str | None) -> float | None:
    return seconds(text) if text else None


def _stamp(at_s: float | None) -> str | None:
    return None if at_s is None else stamp(at_s)
