"""Node pools on workloads: what is read of the pools, and what is written into pod templates for them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import Path, at, items, mapping, text
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.kinds import PodSet
from kopt.cluster.workloads.kueue.queues import read_flavor
from kopt.core.scheduling.queue_tree import KaiwoPool

KAI_NODE_POOL_LABEL = "kai.scheduler/node-pool"
_REQUIRED = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_PREFERRED = ("affinity", "nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution")


def pool_of_flavor(document: Object) -> KaiwoPool:
    """The pool that a ResourceFlavor of Kueue's is."""
    flavor = read_flavor(document)
    return KaiwoPool(flavor.name, flavor.labels, tolerations=tuple(flavor.tolerations), topology=flavor.topology)


def annotation_of(document: Object, pod_sets: Iterable[PodSet], key: str) -> str:
    """An annotation of a workload, else the first of its templates that has it; empty for none."""
    own = text(document, "metadata", "annotations", key)
    on_templates = (
        text(document, *pod_set.metadata, "annotations", key) for pod_set in pod_sets if pod_set.metadata is not None
    )
    return own or next(filter(None, on_templates), "")


def keyed(document: Object, pod_sets: Iterable[PodSet], key: str) -> str:
    """An annotation, else a label, of a workload or of the first of its templates that has it; empty for none."""
    paths = [("metadata",), *(pod_set.metadata for pod_set in pod_sets if pod_set.metadata is not None)]
    written = (text(document, *path, part, key) for part in ("annotations", "labels") for path in paths)
    return next(filter(None, written), "")


def selectors_of(document: Object, pod_sets: Iterable[PodSet], *, every: bool = False) -> list[dict[str, str]]:
    """The node selector of each template with GPUs, or of ``every`` template, empty ones included."""
    specs = [pod_set.spec for pod_set in pod_sets if pod_set.spec is not None and (pod_set.gpus or every)]
    return [{str(key): str(value) for key, value in mapping(document, *spec, "nodeSelector").items()} for spec in specs]


def write_pools(
    patch: JsonPatch,
    pod_sets: Iterable[PodSet],
    pools: Sequence[KaiwoPool],
    weights: Mapping[str, int],
    *,
    every: bool = False,
) -> None:
    """Node affinity to the nodes of ``pools``, preferred by ``weights`` (by name), and what their taints need, into the
    templates with GPUs, or into ``every`` template. What is written there already stays and holds as well; a second
    time changes nothing."""
    for pod_set in pod_sets:
        if pod_set.spec is None or not (pod_set.gpus or every):
            continue
        spec = pod_set.spec
        if all(pool.node_labels for pool in pools):
            _require(patch, (*spec, *_REQUIRED), pools)
        preferred = [item for _, item in items(patch.document, *spec, *_PREFERRED)]
        terms = [_preference(pool, weights[pool.name]) for pool in pools if pool.name in weights]
        if missing := [term for term in terms if term not in preferred]:
            patch.put((*spec, *_PREFERRED), [*preferred, *missing])
        tolerations = [item for _, item in items(patch.document, *spec, "tolerations")]
        wanted = [dict(toleration) for pool in pools for toleration in pool.tolerations]
        if lacking := [item for number, item in enumerate(wanted) if item not in [*tolerations, *wanted[:number]]]:
            patch.put((*spec, "tolerations"), [*tolerations, *lacking])


def write_kai_pool(patch: JsonPatch, pod_sets: Iterable[PodSet], pool: str) -> None:
    """KAI's label, by which the shard of a node pool takes pods; one that is written already stays."""
    for pod_set in pod_sets:
        if pod_set.metadata is not None and pod_set.gpus:
            path = (*pod_set.metadata, "labels", KAI_NODE_POOL_LABEL)
            if not text(patch.document, *path):
                patch.put(path, pool)


def _require(patch: JsonPatch, path: Path, pools: Sequence[KaiwoPool]) -> None:
    """Terms are alternatives: each of the user's is combined with each of the pools'."""
    written = [item for _, item in items(patch.document, *path)]
    of_pools = [_expressions(pool) for pool in pools]
    if written and all(any(_has(term, wanted) for wanted in of_pools) for term in written):
        return
    terms = [
        {**(term if isinstance(term, dict) else {}), "matchExpressions": [*_own(term), *wanted]}
        for wanted in of_pools
        for term in (written or [{}])
    ]
    patch.put(path, terms)


def _own(term: Any) -> list[Any]:
    result = at(term, "matchExpressions")
    return result if isinstance(result, list) else []


def _has(term: Any, expressions: Sequence[Object]) -> bool:
    own = _own(term)
    return all(expression in own for expression in expressions)


def _expressions(pool: KaiwoPool) -> list[Object]:
    return [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(pool.node_labels.items())]


def _preference(pool: KaiwoPool, weight: int) -> Object:
    return {"weight": weight, "preference": {"matchExpressions": _expressions(pool)}}
