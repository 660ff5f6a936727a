"""``KaiwoQueue`` and ``KaiwoPool`` objects (``kaiwo.ai/v1alpha2``) as core types, and back."""

import re
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from kopt.cluster.client.resources import Object
from kopt.core.scheduling.queue_tree import (
    DEFAULT_GPU_RESOURCE,
    DEFAULT_POOL,
    UNLIMITED,
    KaiwoPool,
    KaiwoQueue,
    OtherResources,
    Reclaim,
    Share,
    Shares,
)
from kopt.core.units import UnitError, format_thousandths, parse_thousandths

API_VERSION = "kaiwo.ai/v1alpha2"
POLICY = "DRF"
"""The one policy: who has the smallest dominant share of what is idle is next."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_SPAN = re.compile(r"(\d{1,5})([smhd])")
Choice = TypeVar("Choice", Reclaim, OtherResources)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_QUEUE_FIELDS = (
    "displayName", "parentQueue", "priority", "resources", "pools", "namespaces", "fairness", "otherResources",
    "kueue", "kai",
)  # fmt: skip
_SHARE_FIELDS = ("quota", "overQuotaWeight", "limit", "guarantee")
_FAIRNESS_FIELDS = ("policy", "reclaimStrategy", "gracePeriod", "minRuntime")
_POOL_FIELDS = ("nodeLabels", "capacity", "gpuResource", "taints", "tolerations", "topologyName")


def queue_of(document: Object) -> KaiwoQueue:
    """The spec. Raises ValueError for one that cannot be meant; the message names the field."""
    name = _named(document)
    spec = _table(document.get("spec") or {}, f"{name}/spec", _QUEUE_FIELDS)
    fairness = _table(spec.get("fairness") or {}, f"{name}/spec.fairness", _FAIRNESS_FIELDS)
    if fairness.get("policy", POLICY) != POLICY:
        raise ValueError(f"{name}/spec.fairness.policy: {fairness['policy']!r} is not known; there is {POLICY}")
    parent = spec.get("parentQueue") or ""
    if parent and not (isinstance(parent, str) and _NAME.fullmatch(parent)):
        raise ValueError(f"{name}/spec.parentQueue: {parent!r} is no name of a queue")
    return KaiwoQueue(
        name,
        parent,
        _text(spec.get("displayName"), f"{name}/spec.displayName"),
        _whole(spec.get("priority"), f"{name}/spec.priority"),
        _pools(spec, name),
        _texts(spec.get("namespaces"), f"{name}/spec.namespaces"),
        _choice(Reclaim, fairness.get("reclaimStrategy"), f"{name}/spec.fairness.reclaimStrategy"),
        _span(fairness.get("gracePeriod"), f"{name}/spec.fairness.gracePeriod"),
        _span(fairness.get("minRuntime"), f"{name}/spec.fairness.minRuntime"),
        _choice(OtherResources, spec.get("otherResources"), f"{name}/spec.otherResources") or OtherResources.UNLIMITED,
        _kueue(spec.get("kueue"), f"{name}/spec.kueue"),
        _table(spec.get("kai") or {}, f"{name}/spec.kai"),
    )


def pool_of(document: Object) -> KaiwoPool:
    """The spec. Raises ValueError as ``queue_of`` does."""
    name = _named(document)
    spec = _table(document.get("spec") or {}, f"{name}/spec", _POOL_FIELDS)
    capacity = _table(spec.get("capacity") or {}, f"{name}/spec.capacity")
    labels = _table(spec.get("nodeLabels") or {}, f"{name}/spec.nodeLabels")
    return KaiwoPool(
        name,
        {key: _text(value, f"{name}/spec.nodeLabels.{key}") for key, value in labels.items()},
        {key: _amount(value, f"{name}/spec.capacity.{key}") for key, value in capacity.items()},
        _text(spec.get("gpuResource"), f"{name}/spec.gpuResource") or DEFAULT_GPU_RESOURCE,
        tuple(_tables(spec.get("taints"), f"{name}/spec.taints")),
        tuple(_tables(spec.get("tolerations"), f"{name}/spec.tolerations")),
        _text(spec.get("topologyName"), f"{name}/spec.topologyName"),
    )


def queue_document(queue: KaiwoQueue) -> Object:
    """The manifest that ``queue_of`` reads as this queue."""
    fairness = {
        "policy": POLICY,
        "reclaimStrategy": queue.reclaim and queue.reclaim.value,
        "gracePeriod": None if queue.grace_s is None else f"{queue.grace_s}s",
        "minRuntime": None if queue.min_runtime_s is None else f"{queue.min_runtime_s}s",
    }
    other = queue.other_resources
    spec = {
        "displayName": queue.display_name or None,
        "parentQueue": queue.parent or None,
        "priority": queue.priority,
        **_pools_document(queue.pools),
        "namespaces": list(queue.namespaces) or None,
        "fairness": _filled(fairness),
        "otherResources": None if other is OtherResources.UNLIMITED else other.value,
        "kueue": dict(queue.kueue) or None,
        "kai": dict(queue.kai) or None,
    }
    return _document("KaiwoQueue", queue.name, spec)


def pool_document(pool: KaiwoPool) -> Object:
    """The manifest that ``pool_of`` reads as this pool."""
    spec = {
        "nodeLabels": dict(pool.node_labels) or None,
        "capacity": {key: format_thousandths(value) for key, value in pool.capacity.items()} or None,
        "gpuResource": None if pool.gpu_resource == DEFAULT_GPU_RESOURCE else pool.gpu_resource,
        "taints": [dict(taint) for taint in pool.taints] or None,
        "tolerations": [dict(toleration) for toleration in pool.tolerations] or None,
        "topologyName": pool.topology or None,
    }
    return _document("KaiwoPool", pool.name, spec)


def _kueue(value: Any, where: str) -> Mapping[str, Any]:
    """As it stands, but for what the compiler reads of it."""
    result = _table(value or {}, where)
    preemption = _table(result.get("preemption") or {}, f"{where}.preemption")
    _table(preemption.get("borrowWithinCohort") or {}, f"{where}.preemption.borrowWithinCohort")
    return result


def _pools(spec: Mapping[str, Any], name: str) -> dict[str, Shares]:
    if spec.get("pools") and spec.get("resources"):
        raise ValueError(f"{name}/spec: give amounts by pool in spec.pools, or for the one pool in spec.resources")
    if not spec.get("pools"):
        resources = spec.get("resources")
        return {DEFAULT_POOL: _shares(resources, f"{name}/spec.resources")} if resources else {}
    result: dict[str, Shares] = {}
    for row in _tables(spec["pools"], f"{name}/spec.pools"):
        pool = _text(row.get("name"), f"{name}/spec.pools[].name")
        where = f"{name}/spec.pools[{pool}]"
        if not _NAME.fullmatch(pool) or pool in result:
            raise ValueError(f"{where}: each pool has a name, and is named once")
        _table(row, where, ("name", "resources"))
        result[pool] = _shares(row.get("resources") or {}, f"{where}.resources")
    return result


def _shares(value: Any, where: str) -> dict[str, Share]:
    result = {}
    for resource, row in _table(value, where).items():
        path = f"{where}.{resource}"
        fields = _table(row, path, _SHARE_FIELDS)
        result[resource] = Share(
            _bound(fields.get("quota"), f"{path}.quota"),
            _bound(fields.get("limit"), f"{path}.limit"),
            None if "overQuotaWeight" not in fields else _amount(fields["overQuotaWeight"], f"{path}.overQuotaWeight"),
            None if "guarantee" not in fields else _amount(fields["guarantee"], f"{path}.guarantee"),
        )
    return result


def _pools_document(pools: Mapping[str, Shares]) -> Object:
    if list(pools) == [DEFAULT_POOL]:
        return {"resources": _shares_document(pools[DEFAULT_POOL])}
    rows = [{"name": pool, "resources": _shares_document(shares)} for pool, shares in pools.items()]
    return {"pools": rows or None}


def _shares_document(shares: Shares) -> Object:
    return {
        resource: _filled(
            {
                "quota": _written(share.quota),
                "overQuotaWeight": _written(share.weight),
                "limit": _written(share.limit),
                "guarantee": _written(share.guarantee),
            }
        )
        for resource, share in shares.items()
    }


def _written(amount: int | None) -> int | str | None:
    if amount is None or amount == UNLIMITED:
        return amount
    text = format_thousandths(amount)
    return int(text) if text.isdigit() else text


def _bound(value: Any, where: str) -> int | None:
    if value is None:
        return None
    return UNLIMITED if value in (-1, "-1") and not isinstance(value, bool) else _amount(value, where)


def _amount(value: Any, where: str) -> int:
    try:
        return parse_thousandths(value)
    except UnitError as error:
        raise ValueError(f"{where}: {error}") from None


def _span(value: Any, where: str) -> int | None:
    if value is None:
        return None
    match = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{where}: {value!r} is no span of time such as 10m")
    return int(match[1]) * _UNITS_S[match[2]]


def _whole(value: Any, where: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{where}: {value!r} is no whole number")
    return value


def _text(value: Any, where: str) -> str:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{where}: {value!r} is no text")
    return value or ""


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise ValueError(f"{where}: {value!r} is no list of names")
    return tuple(value or ())


def _choice(kind: type[Choice], value: Any, where: str) -> Choice | None:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{where}: {value!r} is none of {', '.join(kind)}") from None


def _table(value: Any, where: str, fields: Collection[str] = ()) -> Mapping[str, Any]:
    """A mapping with no other fields than these, where any are named."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{where}: {value!r} is no mapping")
    for key in value if fields else ():
        if key not in fields:
            near = get_close_matches(key, list(fields), n=1)
            meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            raise ValueError(f"{where}: there is no field {key}; {meant}")
    return value


def _tables(value: Any, where: str) -> list[Mapping[str, Any]]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{where}: {value!r} is no list")
    return [_table(row, f"{where}[{number}]") for number, row in enumerate(value or ())]


def _named(document: Object) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 253:
        raise ValueError(f"{document.get('kind')}: metadata.name {name!r} is no name of an object")
    return name


def _document(kind: str, name: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": _filled(spec)}


def _filled(result: Mapping[str, Any]) -> Object:
    return {key: value for key, value in result.items() if value is not None}
