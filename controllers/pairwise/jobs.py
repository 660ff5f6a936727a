"""The Job of one test: two pods, one on each node of a pair, that find each other by name."""

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

from kopt.cluster.client.resources import (
    COMPONENT_LABEL,
    PAIRWISE_BENCHMARKS,
    PART_OF,
    PART_OF_LABEL,
    TESTS_COMPONENT,
    Object,
)
from kopt.cluster.objects.fields import items, mapping, text
from kopt.controllers.pairwise.default_command import KEY_FOLDER, SCRIPT
from kopt.controllers.pairwise.spec import Benchmark
from kopt.core.hardware.pairwise import Pair

BENCHMARK_LABEL = "kaiwo.ai/pairwise-benchmark"
"""On Jobs and their pods: the PairwiseBenchmark's name."""
PAIR_ANNOTATION = "kaiwo.ai/pair"
"""On Jobs: the two nodes, joined by a comma."""
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"
_KEPT_S = 86_400
"""A test that has ended and is not deleted, as the controller was removed."""
_SHARED_MEMORY = "/dev/shm"


def name_of(benchmark: Benchmark, pair: Pair) -> str:
    """One name per pair, whichever replica leads: a test is never started twice."""
    return f"kopt-pair-{_digest(benchmark.uid, *pair)[:20]}"


def service_name(benchmark: Benchmark) -> str:
    return f"kopt-pairs-{_digest(benchmark.uid)[:16]}"


def pair_of_job(job: Object) -> Pair | None:
    """None for a Job without a pair, which others have created or changed."""
    names = text(job, "metadata", "annotations", PAIR_ANNOTATION).split(",")
    return (names[0], names[1]) if len(names) == 2 and names[0] < names[1] else None


def service_for(benchmark: Benchmark, namespace: str) -> Object:
    """The headless Service that gives the pods of every test their names, before they are ready."""
    return {
        "metadata": _metadata(benchmark, service_name(benchmark), namespace),
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {BENCHMARK_LABEL: benchmark.name}},
    }


def job_for(benchmark: Benchmark, pair: Pair, namespace: str) -> Object:
    """Needs nothing but the node names: it is killed by its deadline, and goes with its PairwiseBenchmark."""
    name = name_of(benchmark, pair)
    metadata = _metadata(benchmark, name, namespace)
    metadata["annotations"] = {PAIR_ANNOTATION: ",".join(pair)}
    template = mapping(benchmark.template, "metadata")
    labels = {**mapping(template, "labels"), BENCHMARK_LABEL: benchmark.name}
    return {
        "metadata": metadata,
        "spec": {
            "completionMode": "Indexed",
            "completions": 2,
            "parallelism": 2,
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(benchmark.timeout_s),
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {
                "metadata": {"labels": labels, "annotations": dict(mapping(template, "annotations"))},
                "spec": _pod(benchmark, pair, name, namespace),
            },
        },
    }


def _metadata(benchmark: Benchmark, name: str, namespace: str) -> Object:
    # Without blocking: that would need rights on the owner's finalizers.
    owner = PAIRWISE_BENCHMARKS.reference("", benchmark.name, benchmark.uid) | {"controller": True}
    labels = {PART_OF_LABEL: PART_OF, COMPONENT_LABEL: TESTS_COMPONENT, BENCHMARK_LABEL: benchmark.name}
    return {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owner]}


def _pod(benchmark: Benchmark, pair: Pair, name: str, namespace: str) -> Object:
    spec: Object = copy.deepcopy(benchmark.template["spec"])
    spec |= {
        "restartPolicy": "Never",
        "subdomain": service_name(benchmark),
        "enableServiceLinks": False,
        "affinity": _apart(spec.get("affinity") or {}, pair, name),
    }
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("terminationGracePeriodSeconds", 5)
    if spec.get("hostNetwork"):
        spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    if benchmark.priority_class:
        spec["priorityClassName"] = benchmark.priority_class
    first = spec["containers"][0]
    first.setdefault("name", "test")
    _ask_for_gpus(first, benchmark)
    own = {text(item, "name") for _, item in items(first, "env")}
    added = [item for item in _environment(benchmark, pair, name, namespace) if item["name"] not in own]
    first["env"] = added + list(first.get("env") or ())
    if not first.get("command") and not first.get("args"):
        first["command"] = ["sh", "-c", SCRIPT]
        # Readable by the pod's group, where it does not run as root.
        _mount(
            spec, first, "kopt-ssh", KEY_FOLDER, {"secret": {"secretName": benchmark.ssh_secret, "defaultMode": 288}}
        )
    if not spec.get("hostIPC") and all(
        text(item, "mountPath") != _SHARED_MEMORY for _, item in items(first, "volumeMounts")
    ):
        # The usual 64 MiB are too few for eight ranks.
        _mount(spec, first, "kopt-shm", _SHARED_MEMORY, {"emptyDir": {"medium": "Memory"}})
    return spec


def _environment(benchmark: Benchmark, pair: Pair, name: str, namespace: str) -> list[Object]:
    where = f"{service_name(benchmark)}.{namespace}.svc"
    rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX_ANNOTATION}']"}}
    values = {
        "KOPT_PEERS": ",".join(f"{name}-{n}.{where}" for n in (0, 1)),
        "KOPT_NODES": ",".join(pair),
        "KOPT_GPUS_PER_NODE": str(benchmark.gpus_per_node),
        "KOPT_COLLECTIVES": ",".join(collective.value for collective in benchmark.collectives),
        "KOPT_MIN_BYTES": str(benchmark.min_bytes),
        "KOPT_MAX_BYTES": str(benchmark.max_bytes),
    }
    return [{"name": "KOPT_RANK", "valueFrom": rank}, *({"name": key, "value": item} for key, item in values.items())]


def _ask_for_gpus(container: Object, benchmark: Benchmark) -> None:
    resources = container.setdefault("resources", {})
    for part in ("limits", "requests"):
        if part == "limits" or part in resources:
            amounts = resources.get(part) or {}
            resources[part] = {**amounts, benchmark.resource: str(benchmark.gpus_per_node)}


def _mount(spec: Object, container: Object, name: str, path: str, source: Object) -> None:
    spec["volumes"] = [*(spec.get("volumes") or ()), {"name": name, **source}]
    mount: Object = {"name": name, "mountPath": path}
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]


def _apart(affinity: Object, pair: Pair, job: str) -> Object:
    """One pod on each of the two nodes, on top of what the user's template asks."""
    node_affinity = affinity.get("nodeAffinity") or {}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own: Sequence[Any] = (node_affinity.get(required) or {}).get("nodeSelectorTerms") or [{}]
    field = [{"key": "metadata.name", "operator": "In"}]
    terms = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), {**field[0], "values": [node]}]}
        for term in own
        for node in pair
    ]
    apart = affinity.get("podAntiAffinity") or {}
    other = {
        "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": job}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        **affinity,
        "nodeAffinity": {**node_affinity, required: {"nodeSelectorTerms": terms}},
        "podAntiAffinity": {**apart, required: [*(apart.get(required) or ()), other]},
    }


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
