"""``StagedData`` objects as core types, what workloads request by annotations, and what is reported to them."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.annotations import mapping_of
from kopt.core.staging.manifest import Source, StagingError, Trouble, safe_path
from kopt.core.staging.staged_data import (
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
from kopt.core.times import optional_stamp, seconds, stamp

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
REQUESTS_DATA_LABEL = "kaiwo.ai/asks-for-data"
"""On pods that ask for data themselves, written as they are created: what they are found by."""
AGAIN_ANNOTATION = "kaiwo.ai/stage-again"
"""On a StagedData: another text than before has a failed download tried again now."""
FINALIZER = "kaiwo.ai/staged-copies"
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
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
            int(metadata.get("generation", 1)),
            spec_of(spec),
            seconds(metadata["creationTimestamp"]) if "creationTimestamp" in metadata else 0.0,
            _copies(status, at_nodes="nodeCache" in spec["destination"]),
            tuple(User(user["kind"], user["name"], user["uid"]) for user in status.get("users") or ()),
            _seconds(status.get("lastUsedAt")),
            "deletionTimestamp" in metadata,
            FINALIZER in (metadata.get("finalizers") or ()),
            str((metadata.get("annotations") or {}).get(AGAIN_ANNOTATION, "")),
            str(status.get("again", "")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"StagedData {metadata.get('name')} cannot be read ({error!r})") from error


def spec_of(spec: Mapping[str, Any]) -> DataSpec:
    """Raises KeyError or TypeError for one of another form."""
    target = spec["destination"]
    destination: ClaimFolder | NodeCache
    if "nodeCache" in target:
        cache = target["nodeCache"] or {}
        destination = NodeCache(int(cache.get("copies", 1)), tuple(sorted((cache.get("nodeSelector") or {}).items())))
    else:
        destination = ClaimFolder(target["claim"], target["path"])
    return DataSpec(
        spec["source"],
        destination,
        spec.get("sizeBytes"),
        spec.get("sha256", ""),
        (spec.get("credentials") or {}).get("secretName", ""),
        spec.get("limit", ""),
        spec.get("parallel"),
        spec.get("sourceChecksums", True),
    )


def body_of(namespace: str, name: str, spec: DataSpec) -> Object:
    """The object that an annotation asks for, as it is created."""
    assert isinstance(spec.destination, ClaimFolder)
    target = {"claim": spec.destination.claim, "path": spec.destination.path}
    wanted: Object = {"source": spec.source, "destination": target}
    if spec.secret:
        wanted["credentials"] = {"secretName": spec.secret}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": wanted}


def request_of(document: Object) -> Request:
    """What a workload asks for; false where that is nothing."""
    annotations = document["metadata"].get("annotations") or {}
    names = tuple(item.strip() for item in str(annotations.get(NAMES_ANNOTATION, "")).split(",") if item.strip())
    made: list[tuple[str, DataSpec]] = []
    try:
        for name in names:
            if not _NAME.fullmatch(name):
                raise StagingError(f"{name[:80]!r} in {NAMES_ANNOTATION} is no name of a StagedData")
        for line in str(annotations.get(REQUEST_ANNOTATION, "")).splitlines():
            if line.strip():
                spec = requested(line, str(annotations.get(SECRET_ANNOTATION, "")))
                made.append((name_of(spec), spec))
    except StagingError as error:
        return Request(problem=str(error))
    return Request(names, tuple(made))


def waits_for_data(document: Object) -> bool:
    """Whether a workload requests data that was not reported as ready."""
    return bool(request_of(document)) and staging_report_of(document).get("state") != "ready"


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
    ready = [copy.ready_at_s for copy in data.copies if copy.ready_at_s is not None]
    digests = {copy.digest for copy in data.copies if copy.digest}
    result: dict[str, Any] = {
        "phase": data.phase.value,
        "observedGeneration": data.generation,
        "attempts": max((copy.attempts for copy in data.copies), default=0),
        "progress": _progress(amounts) if amounts else None,
        "readyAt": stamp(max(ready)) if ready and data.phase is DataPhase.READY else None,
        "digest": next(iter(digests)) if len(digests) == 1 else None,
        "users": [{"kind": user.kind, "name": user.name, "uid": user.uid} for user in data.users[:_MOST_USERS]],
        "lastUsedAt": optional_stamp(data.last_used_at_s),
        "again": data.again_handled or None,
        "reason": speaker.reason.value if speaker and speaker.reason else None,
        "message": ((speaker.message if speaker else "") or data.missing)[:_LONGEST] or None,
        "nodes": [_node(copy) for copy in data.copies if copy.location != CLAIM] or None,
    }
    claim = next((copy for copy in data.copies if copy.location == CLAIM), None)
    if claim is not None:
        result |= _books(claim)
    return {key: value for key, value in result.items() if value is not None}


def staging_report(state: str, request: Request, data: list[StagedData], reason: str, message: str, at_s: float) -> str:
    """The value of ``kaiwo.ai/staging``. ``reason`` and ``message`` are empty where all is well."""
    amounts = [staged_data.amounts for staged_data in data if staged_data.amounts is not None]
    remaining_s = [amount.remaining_s for amount in amounts if amount.remaining_s is not None]
    result: dict[str, Any] = {
        "state": state,
        "data": list(request.all_names),
        "reason": reason,
        "message": message[:_LONGEST],
        "bytes": sum(amount.bytes for amount in amounts),
        "bytesDone": sum(amount.bytes_done for amount in amounts),
        "secondsLeft": round(max(remaining_s), 1) if remaining_s else None,
        "at": stamp(at_s),
    }
    return json.dumps(result, separators=(",", ":"), ensure_ascii=False)


def staging_report_of(document: Object) -> Mapping[str, Any]:
    """What stands on a workload; empty where nothing does that can be read."""
    return mapping_of(document["metadata"].get("annotations") or {}, STAGING_ANNOTATION)


def _copies(status: Mapping[str, Any], *, at_nodes: bool) -> tuple[Copy, ...]:
    if at_nodes:
        return tuple(_copy(node, str(node["name"])) for node in status.get("nodes") or ())
    return (_copy(status, CLAIM),) if "phase" in status else ()


def _copy(result: Mapping[str, Any], location: str) -> Copy:
    progress, reason = result.get("progress"), result.get("reason")
    amounts = _amounts(progress) if progress else None
    if location != CLAIM and amounts is None and "bytesDone" in result:
        amounts = Amounts(int(result.get("bytes", 0)), int(result["bytesDone"]))
    generation = result.get("madeFor", 0)
    return Copy(
        location,
        DataPhase(result["phase"]),
        int(result.get("attempts", 0)),
        int(result.get("judged", 0)),
        int(result.get("failures", 0)),
        int(generation),
        Trouble(reason) if reason else None,
        str(result.get("message", "")),
        str(result.get("digest", "")),
        amounts,
        _seconds(result.get("readyAt")),
        _seconds(result.get("retryAt")),
        removed=result.get("gone") is True,
        machine=str(result.get("machine", "")),
    )


def _node(copy: Copy) -> Object:
    result: dict[str, Any] = {
        "name": copy.location,
        "phase": copy.phase.value,
        "attempts": copy.attempts,
        "message": copy.message[:_LONGEST],
        "reason": copy.reason.value if copy.reason else None,
        "digest": copy.digest or None,
        "bytes": copy.amounts.bytes if copy.amounts else 0,
        "bytesDone": copy.amounts.bytes_done if copy.amounts else 0,
        "readyAt": optional_stamp(copy.ready_at_s),
        "machine": copy.machine or None,
    } | _books(copy)
    return {key: value for key, value in result.items() if value is not None}


def _books(copy: Copy) -> dict[str, Any]:
    """What only the controller reads."""
    return {
        "madeFor": copy.generation,
        "judged": copy.failed_attempt,
        "failures": copy.failures,
        "retryAt": optional_stamp(copy.retry_at_s),
        "gone": copy.removed,
    }


def _progress(amounts: Amounts) -> Object:
    result = {
        "bytes": amounts.bytes,
        "bytesDone": amounts.bytes_done,
        "objects": amounts.objects,
        "objectsDone": amounts.objects_done,
        "bytesPerSecond": round(amounts.bytes_per_second),
        "at": stamp(amounts.at_s),
        "secondsLeft": None if amounts.remaining_s is None else round(amounts.remaining_s, 1),
    }
    return {key: value for key, value in result.items() if value is not None}


def _amounts(result: Mapping[str, Any]) -> Amounts:
    remaining = result.get("secondsLeft")
    return Amounts(
        int(result["bytes"]),
        int(result["bytesDone"]),
        int(result["objects"]),
        int(result["objectsDone"]),
        float(result["bytesPerSecond"]),
        None if remaining is None else float(remaining),
        seconds(result["at"]),
    )


def _seconds(text: str | None) -> float | None:
    return seconds(text) if text else None
