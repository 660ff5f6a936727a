"""The objects of the example cluster at a moment: a pool that lends, jobs, evictions, staged data and nodes."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import combinations

from kopt.agents.topology.documents import spec_of
from kopt.cli.local.example.health import healths_at
from kopt.cli.local.example.jobs import BORROWERS, DATA, DATA_USER, H100, LENT, PRODUCT_LABEL, QUEUE, job_objects
from kopt.cli.local.example.reservations import reservations_at
from kopt.cluster.client.resources import (
    EVICTIONS,
    FEATURE_ROLLOUTS,
    KAIWO_RESERVATIONS,
    LENDING_POOLS,
    NAMESPACES,
    NODE_HEALTHS,
    NODE_TOPOLOGIES,
    Object,
    Resource,
)
from kopt.cluster.client.resources import NODES as KUBERNETES_NODES
from kopt.cluster.objects.custom.feature_rollout import rollout_document
from kopt.cluster.objects.custom.staged_data import STAGED_DATA
from kopt.cluster.objects.eviction import body_of, entry_of, status_of
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink, TopologyNic
from kopt.core.scheduling.eviction import Cause, Eviction, Phase, Return, System, Verified, WorkloadRef
from kopt.core.switches import Switches
from kopt.core.times import stamp
from kopt.core.units import GIB, Bytes
from kopt.simulator.lending.recording import MOMENTS, STEP_S, PoolDay, record_day
from kopt.topology.hardware import CUBE_MESH

SERVICES = ("llama-8b-chat", "mistral-7b-code", "whisper-large")
NODES = tuple(f"gpu-{number:02d}" for number in range(1, 7))
TEAMS = {"research": "language", "vision": "vision", "serving": "inference"}
"""By namespace."""
LEAD_S = 1800.0
_POOL = "inference"
_GPUS = 32
_COST_GPU_S = 210.0
"""Of one take-back, since the jobs save first."""


def objects_at(now_s: float) -> Mapping[Resource, Sequence[Object]]:
    """Every object at ``now_s`` (Unix seconds). The recorded day repeats by the time of day, in UTC."""
    evictions = _evictions(now_s)
    entries = sorted(map(entry_of, evictions), key=lambda entry: entry.eviction.evicted_at_s)
    back_s = {entry.eviction.workload.name: entry.outcome.resumed_at_s for entry in entries}
    return {
        **job_objects(now_s, NODES, _last_day(now_s)[-1][1].lent, back_s, _download(now_s)),
        LENDING_POOLS: [_pool(now_s)],
        EVICTIONS: evictions,
        STAGED_DATA: _staged(now_s),
        KAIWO_RESERVATIONS: reservations_at(now_s),
        FEATURE_ROLLOUTS: [_switches(now_s)],
        NODE_TOPOLOGIES: [_node(topology, now_s) for topology in topologies().values()],
        NODE_HEALTHS: healths_at(now_s, NODES),
        KUBERNETES_NODES: [_kubernetes_node(name) for name in NODES],
        NAMESPACES: [{"metadata": {"name": name, "labels": {"team": team}}} for name, team in TEAMS.items()],
    }


def _switches(now_s: float) -> Object:
    trial = Switches().set_by("admin@example.com", "placement", 10, "first trial", now_s - 90_000.0)
    assert trial is not None
    return rollout_document(trial)


@lru_cache(maxsize=1)
def _day() -> tuple[PoolDay, ...]:
    return record_day(SERVICES, gpus=_GPUS, lead_s=LEAD_S)


def _last_day(now_s: float) -> list[tuple[float, PoolDay]]:
    """The moments of the last 24 hours with their times, oldest first."""
    newest = int(now_s) // STEP_S
    return [(step * float(STEP_S), _day()[step % MOMENTS]) for step in range(newest - MOMENTS + 1, newest + 1)]


def _pool(now_s: float) -> Object:
    moments = _last_day(now_s)
    at_s, last = moments[-1]
    status: Object = {
        "lentGpus": last.lent,
        "borrowedGpus": last.borrowed,
        "serviceGpus": last.service,
        "provisionGpus": last.provision,
        "leadTimeSeconds": int(LEAD_S),
        "caution": 0.99,
        "forecast": {"state": "Fresh", "at": stamp(at_s), "model": "demand/1"},
        "decision": {
            "verb": last.verb,
            "gpus": last.gpus,
            "at": stamp(at_s),
            "reasons": [{"code": reason.code, "message": reason.message} for reason in last.reasons],
        },
        "history": [
            {
                "at": stamp(step_start_s),
                "lent": step.lent,
                "borrowed": step.borrowed,
                "service": step.service,
                "provision": step.provision,
                "p50": step.p50,
                "p99": step.p99,
            }
            for step_start_s, step in moments
        ],
    }
    if last.verb == "reclaim":
        status["reclaiming"] = {
            "gpus": last.gpus,
            "since": stamp(at_s),
            "by": stamp(at_s + LEAD_S),
            "victims": [f"research/{BORROWERS[0]}"],
        }
    services = [
        {"name": name, "namespace": "serving", "selector": {"matchLabels": {"app": name}}, "capacityPerGpu": 450}
        for name in SERVICES
    ]
    return {
        "metadata": {"name": _POOL},
        "spec": {
            "gpus": _GPUS,
            "mode": "enforce",
            "leadTime": "30m",
            "services": services,
            "borrowers": [{"system": "Kueue", "queue": QUEUE, "flavor": LENT}],
        },
        "status": status,
    }


def _evictions(now_s: float) -> list[Object]:
    """One for each time that lent GPUs were taken back, and two of other causes."""
    evictions = []
    for number, (at_s, step) in enumerate(item for item in _last_day(now_s) if item[1].verb == "reclaim"):
        job = BORROWERS[number % len(BORROWERS)]
        reason = f"LendingPool {_POOL} needs {step.gpus} GPUs by {stamp(at_s + LEAD_S)[11:16]} for {SERVICES[0]}."
        waits = now_s - at_s < 2 * LEAD_S
        back = Return(Phase.WAITING) if waits else _resumed(at_s + 2 * LEAD_S, 1200 + 400 * number)
        evictions.append(
            _eviction(job, at_s, Cause.LENDING, "kopt-lending", f"serving/{SERVICES[0]}", reason, step.gpus, back)
        )
    preempted = now_s - now_s % 3600 - 7 * 3600
    reason = "Preempted to accommodate a workload of higher priority in the ClusterQueue research"
    evictions.append(
        _eviction(
            "sam2-finetune",
            preempted,
            Cause.PREEMPTED,
            "kueue",
            "vision/eval-nightly",
            reason,
            2,
            _resumed(preempted + 900, 800),
        )
    )
    lost = now_s - now_s % 3600 - 31 * 3600
    evictions.append(
        _eviction("clip-embeddings", lost, Cause.NODE_LOST, "taint manager", "", "", 1, Return(Phase.GONE))
    )
    return evictions


def _resumed(at_s: float, step: int) -> Return:
    return Return(Phase.RESUMED, at_s, step, Verified.YES)


def _eviction(
    job: str, at_s: float, cause: Cause, by: str, for_whom: str, reason: str, gpus: int, outcome: Return
) -> Object:
    namespace = "research" if job in BORROWERS[:2] else "vision"
    reference = WorkloadRef("batch/v1", "Job", job, f"uid-{job}")
    has_checkpoint = cause is not Cause.NODE_LOST
    eviction = Eviction(
        namespace,
        f"{job}-{int(at_s) // STEP_S}",
        reference,
        System.KUEUE,
        at_s,
        cause,
        by,
        for_whom,
        reason,
        gpus * 1000,
        int(at_s * 1000),
        outcome.resumed_step,
        at_s - 40 if has_checkpoint else None,
        _COST_GPU_S * gpus if has_checkpoint else None,
    )
    return {**body_of(eviction), "status": status_of(outcome)}


def _download(now_s: float) -> Object:
    """How far the data is that comes within an hour, hour by hour."""
    share = min(0.97, now_s % 3600 / 3300 + 0.02)
    size = 2048 * GIB
    return {
        "bytes": size,
        "bytesDone": int(share * size),
        "objects": 4096,
        "objectsDone": int(share * 4096),
        "bytesPerSecond": size // 3300,
        "secondsLeft": round((1 - share) * 3300),
        "at": stamp(now_s - now_s % 10),
    }


def _staged(now_s: float) -> list[Object]:
    begun_s = now_s - now_s % 3600
    ready = {"bytes": 400 * GIB, "bytesDone": 400 * GIB, "objects": 120, "objectsDone": 120, "at": stamp(begun_s)}
    return [
        _staged_data("research", DATA, DATA_USER, {"phase": "Staging", "progress": _download(now_s)}),
        _staged_data(
            "vision",
            "imagenet-1k",
            "resnet50-imagenet",
            {"phase": "Ready", "progress": ready, "readyAt": stamp(begun_s)},
        ),
        _staged_data(
            "vision",
            "satellite-tiles",
            "sam2-finetune",
            {
                "phase": "Failed",
                "reason": "Denied",
                "attempts": 3,
                "message": "403 from the bucket: the key may not read s3://datasets/satellite-tiles",
            },
        ),
    ]


def _staged_data(namespace: str, name: str, job: str, status: Object) -> Object:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"source": f"s3://datasets/{name}", "destination": {"claim": "datasets", "path": name}},
        "status": {"attempts": 1, "users": [{"kind": "Job", "name": job, "uid": f"uid-{job}"}], **status},
    }


@lru_cache(maxsize=1)
def topologies() -> Mapping[str, NodeTopology]:
    """Of each node: five with H100 behind NVLink switches, and an older one whose links form a cube mesh."""
    older = NODES[-1]
    return {name: _cube_mesh(name) if name == older else _switched(name) for name in NODES}


def _switched(node: str) -> NodeTopology:
    gpus = tuple(
        TopologyGpu(n, "NVIDIA H100 80GB HBM3", f"0000:{0x19 + 16 * n:02x}:00.0", n // 4, Bytes(80 * GIB))
        for n in range(8)
    )
    links = tuple(TopologyLink(a, b, LinkType.NVLINK, 18) for a, b in combinations(range(8), 2))
    cards = tuple(TopologyNic(f"mlx5_{n}", numa=n // 4, gbit_per_s=400.0, state="ACTIVE") for n in range(8))
    return NodeTopology(node, gpus, links, cards, tool="nvidia-smi topo -m", vendor="nvidia")


def _cube_mesh(node: str) -> NodeTopology:
    linked = {(a, b): count for a, b, count in CUBE_MESH}
    links = tuple(
        TopologyLink(a, b, LinkType.NVLINK, linked[a, b]) if (a, b) in linked else TopologyLink(a, b, LinkType.SYS)
        for a, b in combinations(range(8), 2)
    )
    gpus = tuple(TopologyGpu(n, "Tesla V100-SXM2-32GB", numa=n // 4) for n in range(8))
    cards = tuple(TopologyNic(f"mlx5_{n}", gbit_per_s=100.0, state="ACTIVE") for n in range(4))
    return NodeTopology(node, gpus, links, cards, tool="nvidia-smi topo -m", vendor="nvidia")


def _kubernetes_node(name: str) -> Object:
    product = "Tesla-V100-SXM2-32GB" if name == NODES[-1] else H100
    offers = {"nvidia.com/gpu": "8", "cpu": "96", "memory": "1024Gi", "pods": "110"}
    status = {"allocatable": offers, "capacity": offers, "conditions": [{"type": "Ready", "status": "True"}]}
    labels = {"kubernetes.io/hostname": name, PRODUCT_LABEL: product}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


def _node(topology: NodeTopology, now_s: float) -> Object:
    status: Object = {"observedAt": stamp(now_s - now_s % 3600)}
    if topology.node == NODES[2]:
        status["degraded"] = [{"part": "nic mlx5_3", "was": 400.0, "now": 200.0, "since": status["observedAt"]}]
    return {"metadata": {"name": topology.node}, "spec": spec_of(topology), "status": status}
