"""Pods and Jobs that kube-scheduler finds no node for."""

import random
from collections.abc import Callable

from benchmarks.why_situations.objects import (
    GPU,
    SPACE,
    Cluster,
    Constructed,
    Object,
    event,
    job,
    node,
    owner,
    pod,
    pod_spec,
    stamp,
    taint,
)

SIZES = (2, 4, 8)
POOL = "team.example/pool"


class Fleet:
    """A cluster in the making: nodes filled as asked, a waiting Job at the end."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.cluster = rng, Cluster()
        self.count = 0
        for number in range(rng.randrange(3)):
            control = [taint("node-role.kubernetes.io/control-plane")]
            self.cluster.nodes.append(node(f"control-{number}", 0, taints=control))
        for number in range(rng.randrange(4)):
            self.cluster.nodes.append(node(f"cpu-{number}", 0))

    def add(self, gpus: int, used: int = 0, *, held_cpu: int = 0, held_gib: int = 0, **more: object) -> str:
        """A node on which pods use so many GPUs; the name."""
        name = f"node-{len(self.cluster.nodes)}"
        self.cluster.nodes.append(node(name, gpus, **more))  # type: ignore[arg-type]
        while used > 0:
            size = self.rng.randint(1, used)
            self.run(name, pod_spec(size, cpu=2, memory_gib=8))
            used -= size
        if held_cpu or held_gib:
            self.run(name, pod_spec(0, cpu=max(1, held_cpu), memory_gib=max(1, held_gib)))
        return name

    def run(self, name: str, spec: Object, **more: object) -> None:
        self.count += 1
        other = owner("Job", f"other-{self.count}", "others")
        running = pod(f"other-{self.count}-x", spec, on=name, owned_by=other, space="others", **more)  # type: ignore[arg-type]
        self.cluster.pods.append(running)

    def waits(self, spec: Object, message: str, pods: int = 1, labels: dict[str, str] | None = None) -> None:
        self.cluster.jobs.append(job("train", spec, pods=pods))
        for number in range(pods):
            waiting = pod(f"train-{number}", spec, message=message, owned_by=owner("Job", "train"), labels=labels)
            self.cluster.pods.append(waiting)
            if message and self.rng.random() < 0.5:
                self.cluster.events.append(event(waiting, message))

    def message(self, *reasons: tuple[int, str]) -> str:
        total = len(self.cluster.nodes)
        rest = total - sum(number for number, _ in reasons)
        others = [(rest, f"Insufficient {GPU}")] if rest else []
        text = ", ".join(f"{number} {reason}" for number, reason in (*reasons, *others))
        return (
            f"0/{total} nodes are available: {text}. preemption: 0/{total} nodes are available: "
            f"{total} Preemption is not helpful for scheduling."
        )


def gpus_in_use(rng: random.Random) -> Constructed:
    fleet, size = Fleet(rng), rng.choice((1, 2, 4, 8))
    for _ in range(rng.randint(1, 6)):
        fleet.add(8, 8 - rng.randrange(size))
    # Too few in all: else the label would be fragmentation.
    free = _free(fleet)
    if size > 1 and free >= size:
        fleet = Fleet(rng)
        for _ in range(rng.randint(1, 4)):
            fleet.add(8, 8)
    fleet.waits(pod_spec(size), fleet.message())
    return Constructed("kube-scheduler", "GPUS_IN_USE", fleet.cluster)


def _free(fleet: Fleet) -> int:
    total = sum(int(item["status"]["allocatable"].get(GPU, 0)) for item in fleet.cluster.nodes)
    used = sum(int(item["spec"]["containers"][0]["resources"]["limits"].get(GPU, 0)) for item in fleet.cluster.pods)
    return total - used


def gpus_fragmented(rng: random.Random) -> Constructed:
    fleet, size = Fleet(rng), rng.choice(SIZES)
    for _ in range(rng.randint(size, size + 4)):
        fleet.add(8, 8 - rng.randint(1, size - 1))
    fleet.waits(pod_spec(size), fleet.message())
    return Constructed("kube-scheduler", "GPUS_FRAGMENTED", fleet.cluster)


def gpus_too_many(rng: random.Random) -> Constructed:
    fleet = Fleet(rng)
    for _ in range(rng.randint(1, 5)):
        fleet.add(4, rng.randrange(4))
    fleet.waits(pod_spec(rng.choice((5, 6, 8))), fleet.message())
    return Constructed("kube-scheduler", "GPUS_TOO_MANY", fleet.cluster)


def gpu_absent(rng: random.Random) -> Constructed:
    fleet = Fleet(rng)
    for _ in range(rng.randint(1, 5)):
        fleet.add(8, rng.randrange(9))
    fleet.waits(
        pod_spec(1, resource="amd.com/gpu"), fleet.message((len(fleet.cluster.nodes), "Insufficient amd.com/gpu"))
    )
    return Constructed("kube-scheduler", "GPU_ABSENT", fleet.cluster)


def _some_full(fleet: Fleet, nodes: int) -> frozenset[str]:
    """Nodes whose GPUs alone are in use; where they are as many as the others, that binds as much."""
    full = fleet.rng.randrange(3)
    for _ in range(full):
        fleet.add(8, 8)
    return frozenset({"GPUS_IN_USE"} if full >= nodes else ())


def cpu_in_use(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(5), held_cpu=rng.randint(70, 80))
    full = _some_full(fleet, nodes)
    fleet.waits(pod_spec(2, cpu=rng.randint(30, 90)), fleet.message((nodes, "Insufficient cpu")))
    return Constructed("kube-scheduler", "CPU_IN_USE", fleet.cluster, full)


def memory_in_use(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(5), held_gib=rng.randint(800, 900))
    full = _some_full(fleet, nodes)
    fleet.waits(pod_spec(2, memory_gib=rng.randint(300, 900)), fleet.message((nodes, "Insufficient memory")))
    return Constructed("kube-scheduler", "MEMORY_IN_USE", fleet.cluster, full)


def cpu_too_large(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(8))
    fleet.waits(pod_spec(1, cpu=rng.randint(97, 300)), fleet.message((nodes, "Insufficient cpu")))
    return Constructed("kube-scheduler", "CPU_TOO_LARGE", fleet.cluster)


def memory_too_large(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(8))
    fleet.waits(pod_spec(1, memory_gib=rng.randint(1100, 4000)), fleet.message((nodes, "Insufficient memory")))
    return Constructed("kube-scheduler", "MEMORY_TOO_LARGE", fleet.cluster)


def tainted(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    key, value = rng.choice((("dedicated", "research"), ("maintenance", ""), ("nvidia.com/gpu", "present")))
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4), taints=[taint(key, value)])
    fleet.waits(
        pod_spec(rng.randint(1, 4)), fleet.message((nodes, f"node(s) had untolerated taint {{{key}: {value}}}"))
    )
    return Constructed("kube-scheduler", "TAINT", fleet.cluster)


def selected(rng: random.Random) -> Constructed:
    """A selector that no node satisfies, while others have room."""
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4), labels={POOL: rng.choice("ab")})
    spec = pod_spec(rng.randint(1, 4), nodeSelector={POOL: "c"})
    fleet.waits(spec, fleet.message((nodes, "node(s) didn't match Pod's node affinity/selector")))
    return Constructed("kube-scheduler", "NODE_SELECTOR", fleet.cluster)


def pool_in_use(rng: random.Random) -> Constructed:
    """The pool that is selected is full, another has room: what binds is what is in use in the pool."""
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(rng.randint(1, 3)):
        fleet.add(8, 8, labels={POOL: "a"})
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4), labels={POOL: "b"})
    spec = pod_spec(rng.randint(1, 4), nodeSelector={POOL: "a"})
    fleet.waits(spec, fleet.message((nodes, "node(s) didn't match Pod's node affinity/selector")))
    return Constructed("kube-scheduler", "GPUS_IN_USE", fleet.cluster)


def affine(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4), labels={"zone": rng.choice("ab")})
    expression = {"key": "zone", "operator": "In", "values": ["c", "d"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    fleet.waits(
        pod_spec(rng.randint(1, 4), affinity=affinity),
        fleet.message((nodes, "node(s) didn't match Pod's node affinity/selector")),
    )
    return Constructed("kube-scheduler", "NODE_AFFINITY", fleet.cluster)


def anti_affine(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 4)
    for _ in range(nodes):
        name = fleet.add(8, rng.randrange(3))
        fleet.run(name, pod_spec(1), labels={"app": "noisy"})
    term = {
        "labelSelector": {"matchLabels": {"app": "noisy"}},
        "topologyKey": "kubernetes.io/hostname",
        "namespaces": ["others"],
    }
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    fleet.waits(
        pod_spec(rng.randint(1, 4), affinity=affinity),
        fleet.message((nodes, "node(s) didn't match pod anti-affinity rules")),
    )
    return Constructed("kube-scheduler", "POD_ANTI_AFFINITY", fleet.cluster)


def cordoned(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 3)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4), cordoned=True)
    fleet.waits(pod_spec(rng.randint(1, 4)), fleet.message((nodes, "node(s) were unschedulable")))
    return Constructed("kube-scheduler", "CORDONED", fleet.cluster)


def not_ready(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 3)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4), ready=False)
    reason = "node(s) had untolerated taint {node.kubernetes.io/not-ready: }"
    fleet.waits(pod_spec(rng.randint(1, 4)), fleet.message((nodes, reason)))
    return Constructed("kube-scheduler", "NOT_READY", fleet.cluster)


def too_many_pods(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 3)
    for _ in range(nodes):
        name = fleet.add(8, most_pods=3)
        for _ in range(3):
            fleet.run(name, pod_spec(1))
    fleet.waits(pod_spec(rng.randint(1, 4)), fleet.message((nodes, "Too many pods")))
    return Constructed("kube-scheduler", "PODS_PER_NODE", fleet.cluster)


def other_resource(rng: random.Random) -> Constructed:
    fleet, nodes, name = Fleet(rng), rng.randint(1, 3), "rdma/hca"
    for _ in range(nodes):
        where = fleet.add(8, rng.randrange(3))
        fleet.cluster.nodes[-1]["status"]["allocatable"][name] = "2"
        fleet.run(where, pod_spec(1, extra={name: "2"}))
    fleet.waits(pod_spec(2, extra={name: "1"}), fleet.message((nodes, f"Insufficient {name}")))
    return Constructed("kube-scheduler", "RESOURCE_IN_USE", fleet.cluster)


def volume(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 3)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4))
    if rng.random() < 0.5:
        text = fleet.message((nodes, "node(s) had volume node affinity conflict"))
    else:
        total = len(fleet.cluster.nodes)
        text = f"0/{total} nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
    fleet.waits(pod_spec(rng.randint(1, 4)), text)
    return Constructed("kube-scheduler", "VOLUME", fleet.cluster)


def spread(rng: random.Random) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 3)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4))
    fleet.waits(
        pod_spec(rng.randint(1, 4)), fleet.message((nodes, "node(s) didn't match pod topology spread constraints"))
    )
    return Constructed("kube-scheduler", "TOPOLOGY_SPREAD", fleet.cluster)


def claim(rng: random.Random, *, exists: bool = True) -> Constructed:
    fleet, nodes = Fleet(rng), rng.randint(1, 3)
    for _ in range(nodes):
        fleet.add(8, rng.randrange(4))
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": rng.choice((1, 2, 4))}}
    if exists:
        metadata = {"name": "gpus", "namespace": SPACE, "uid": "claim", "creationTimestamp": stamp(500)}
        fleet.cluster.claims.append({"metadata": metadata, "spec": {"devices": {"requests": [request]}}, "status": {}})
    text = (
        fleet.message((nodes, "cannot allocate all claims"))
        if exists
        else '0/3 nodes are available: resourceclaim "gpus" not found.'
    )
    fleet.waits(pod_spec(0, resourceClaims=[{"name": "gpu", "resourceClaimName": "gpus"}]), text)
    return Constructed("kube-scheduler", "CLAIM_UNALLOCATED" if exists else "CLAIM_MISSING", fleet.cluster)


def claim_missing(rng: random.Random) -> Constructed:
    return claim(rng, exists=False)


def gated(rng: random.Random) -> Constructed:
    fleet = Fleet(rng)
    fleet.add(8)
    fleet.waits(pod_spec(1, schedulingGates=[{"name": "team.example/review"}]), "")
    return Constructed("kube-scheduler", "GATED", fleet.cluster)


KUBE: tuple[Callable[[random.Random], Constructed], ...] = (
    gpus_in_use, gpus_fragmented, gpus_too_many, gpu_absent, cpu_in_use, memory_in_use, cpu_too_large, memory_too_large,
    tainted, selected, pool_in_use, affine, anti_affine, cordoned, not_ready, too_many_pods, other_resource, volume,
    spread, claim, claim_missing, gated,
)  # fmt: skip
