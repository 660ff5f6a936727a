"""What is asked by others: the scheduler, the API server, people."""

from kopt.cluster.client.resources import (
    GPU_WORKLOADS,
    JOBS,
    KAI_POD_GROUPS,
    LENDING_POOLS,
    NODE_ALLOCATIONS,
    NODE_BANDWIDTHS,
    NODE_TOPOLOGIES,
    PODS,
)
from kopt.cluster.objects.custom.staged_data import STAGED_DATA

from .ledger import GROUP
from .objects import NODE, SPACE, Host, job, pod
from .pairs import BANDWIDTH
from .preemption import KAI_WAITS, KUEUE_HOSTS, WAITS
from .reallocation import pool
from .staging import ASKS, staged

WORKLOAD = {
    "metadata": {"name": "w", "namespace": "tenant", "annotations": {}, "labels": {}, "generation": 1},
    "spec": {
        "workloadType": "Training",
        "gpuRequirements": {"count": 1, "minMemoryGB": 10, "topology": {"preference": "NVLink", "minBandwidthGBps": 1}},
    },
    "status": {},
}
TOPOLOGY = {
    "metadata": {"name": "hostile", "annotations": {}, "labels": {}},
    "spec": {
        "source": "nvidia-smi",
        "gpus": [{"index": n, "name": "H100", "numa": 0} for n in range(2)],
        "links": [{"a": 0, "b": 1, "type": "NV18"}],
        "nics": [],
    },
    "status": {"degraded": [{"part": "link 0 1", "was": 1.0, "now": 0.5}]},
}
ALLOCATION = {
    "metadata": {"name": "hostile", "annotations": {}, "labels": {}},
    "status": {
        "observedAt": "2026-01-01T00:00:00Z",
        "allocations": [
            {"namespace": "tenant", "pod": "a-bound", "resource": "nvidia.com/gpu", "devices": ["GPU-0"], "gpus": [0]}
        ],
    },
}
OF_WORKLOAD = {"kgwe.nvidia.io/workload": "w"}
EXTENDER_HOSTS = (
    Host(PODS, pod("a-waits", "tenant", labels=OF_WORKLOAD)),
    Host(PODS, pod("a-bound", "tenant", on="hostile")),
    NODE,
    SPACE,
    Host(GPU_WORKLOADS, WORKLOAD, schema="gpuworkloads"),
    Host(NODE_TOPOLOGIES, TOPOLOGY, schema="nodetopologies"),
    Host(NODE_ALLOCATIONS, ALLOCATION, schema="nodeallocations"),
    Host(NODE_BANDWIDTHS, BANDWIDTH | {"metadata": {"name": "hostile", "annotations": {}}}, schema="nodebandwidths"),
)
POLICY = {
    "metadata": {"name": "default", "annotations": {}, "labels": {}, "generation": 1},
    "spec": {"mode": "enforce"},
}
OVERVIEW_HOSTS = (
    *KUEUE_HOSTS,
    Host(JOBS, job("a-hostile", "tenant", annotations=ASKS)),
    Host(LENDING_POOLS, pool("a-pool", queue="hostile"), schema="lendingpools"),
    Host(STAGED_DATA, staged("a-data", "tenant"), schema="stageddata"),
    Host(KAI_POD_GROUPS, GROUP),
    Host(PODS, WAITS),
    Host(PODS, KAI_WAITS),
)
