"""The controller of pairwise benchmarks, beside two nodes that nobody has tested."""

from typing import Any

from kopt.cluster.client.resources import JOBS, NODE_BANDWIDTHS, NODES, PAIRWISE_BENCHMARKS, PODS, Object
from kopt.cluster.runtime.manager import LedReplica
from kopt.controllers.pairwise import main as pairs

from ..api_in_memory import MemoryKube
from .objects import GPU, LEASE, Host, Scenario, job, label_of, node, pod, space


def _pairs(kube: Any) -> LedReplica:
    return pairs.Replica(kube, pairs.ProcessSettings(lease=LEASE, port=0))


def benchmark(name: str, **spec: Any) -> Object:
    template = {"spec": {"containers": [{"name": "test", "image": "rccl:1", "command": ["x"]}]}}
    own = {
        "gpuResource": GPU,
        "gpusPerNode": 4,
        "template": template,
        "nodeSelector": {"pool": name},
        "maxPairsAtOnce": 1,
        "gpuSecondsPerDay": 0,
        "timeout": "2m",
    }
    return {
        "metadata": {"name": name, "annotations": {}, "labels": {}, "generation": 1},
        "spec": own | spec,
        "status": {},
    }


def _fill_pairs(kube: MemoryKube) -> None:
    space(kube, "kopt-benchmarks", "tenant")
    for number in range(2):
        kube.put(NODES, node(f"n{number}", pool="ordinary"))
        kube.put(NODES, node(f"h{number}", pool="a-hostile"))
    kube.put(PAIRWISE_BENCHMARKS, benchmark("ordinary"))


TEST_JOB = job(
    "a-test",
    "kopt-benchmarks",
    annotations={"kaiwo.ai/pair": "h0,h1"},
    labels={
        "kaiwo.ai/pairwise-benchmark": "a-hostile",
        "app.kubernetes.io/component": "pairs",
        "app.kubernetes.io/part-of": "kaiwo-optimizer",
    },
)
BANDWIDTH = {
    "metadata": {"name": "h0", "annotations": {}},
    "status": {
        "health": "Healthy",
        "judgedAt": "2026-11-23T12:00:00Z",
        "peers": [
            {
                "node": "h1",
                "gpusPerNode": 4,
                "collective": "all_reduce",
                "points": [{"bytes": 1024, "latencyMicroseconds": 5.0}],
                "measuredAt": "2026-11-23T12:00:00Z",
                "software": "x",
                "health": "Healthy",
                "reason": "",
                "alphaMicroseconds": 1.0,
                "betaGBps": 90.0,
            }
        ],
    },
}
PAIRS = Scenario(
    "pairs",
    _fill_pairs,
    _pairs,
    lambda kube: any(
        label_of(kube, JOBS, one["metadata"]["name"], "kaiwo.ai/pairwise-benchmark", "kopt-benchmarks") == "ordinary"
        for one in kube.all(JOBS)
        if one["metadata"]["namespace"] == "kopt-benchmarks"
    ),
    (
        Host(
            PAIRWISE_BENCHMARKS, benchmark("a-hostile"), schema="pairwisebenchmarks", fixed=(("spec", "nodeSelector"),)
        ),
        Host(NODES, node("h0", pool="a-hostile")),
        Host(JOBS, TEST_JOB),
        Host(NODE_BANDWIDTHS, BANDWIDTH, schema="nodebandwidths"),
        Host(PODS, pod("a-pod", "kopt-benchmarks", on="h0", job_name="a-test")),
        Host(PODS, pod("a-other", "tenant", on="h1")),
    ),
)
