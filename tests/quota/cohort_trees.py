"""Random cohort trees as objects of Kueue's, and workloads that come to them one after the other."""

import random
from typing import Any

GPU = "nvidia.com/gpu"
Object = dict[str, Any]
FLAVORS = ("a100", "h100")
POLICIES = ("Never", "LowerPriority", "Any")


def random_case(seed: int, prefix: str) -> tuple[list[Object], list[Object]]:
    """Cohorts and ClusterQueues, then what comes to them: ``{"queue", "gpus", "priority", "selector"}``."""
    rng = random.Random(seed)
    flavors = [f"{prefix}-{name}" for name in FLAVORS[: rng.choice((1, 2, 2))]]
    cohorts = [f"{prefix}-c{number}" for number in range(rng.choice((0, 1, 1, 2, 3)))]
    objects = [_cohort(rng, name, cohorts[:number], flavors) for number, name in enumerate(cohorts)]
    queues = [f"{prefix}-q{number}" for number in range(rng.choice((1, 2, 3)) if cohorts else 1)]
    objects += [_queue(rng, name, rng.choice(cohorts) if cohorts else "", flavors) for name in queues]
    jobs = [
        {
            "queue": rng.choice(queues),
            "gpus": rng.choice((1, 2, 2, 3, 4, 6)),
            "priority": min(number, 3) * 10 + rng.randrange(3) * 50,
            "selector": rng.choice((None, None, None, *flavors)),
        }
        for number in range(8)
    ]
    return objects, jobs


def _limits(rng: random.Random, flavors: list[str], *, limited: bool) -> list[Object]:
    result = []
    for flavor in flavors:
        nominal = rng.choice((0, 2, 4, 6))
        item: Object = {"name": GPU, "nominalQuota": str(nominal)}
        if limited and rng.random() < 0.4:
            item["borrowingLimit"] = str(rng.choice((0, 1, 2, 4)))
        if limited and rng.random() < 0.4:
            item["lendingLimit"] = str(rng.randint(0, nominal))
        result.append({"name": flavor, "resources": [item]})
    return [{"coveredResources": [GPU], "flavors": result}]


def _cohort(rng: random.Random, name: str, above: list[str], flavors: list[str]) -> Object:
    spec: Object = {"parentName": rng.choice(above)} if above else {}
    if rng.random() < 0.5:
        spec["resourceGroups"] = _limits(rng, flavors, limited=bool(above))
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Cohort", "metadata": {"name": name}, "spec": spec}


def _queue(rng: random.Random, name: str, cohort: str, flavors: list[str]) -> Object:
    reclaim = rng.choice((*POLICIES, "Any")) if cohort else "Never"
    preemption: Object = {
        "withinClusterQueue": rng.choice(("Never", "LowerPriority", "LowerOrNewerEqualPriority")),
        "reclaimWithinCohort": reclaim,
    }
    if reclaim != "Never" and rng.random() < 0.3:
        preemption["borrowWithinCohort"] = {"policy": "LowerPriority"}
        if rng.random() < 0.5:
            preemption["borrowWithinCohort"]["maxPriorityThreshold"] = 60
    fungibility = {
        "whenCanBorrow": rng.choice(("Borrow", "TryNextFlavor")),
        "whenCanPreempt": rng.choice(("Preempt", "TryNextFlavor")),
    }
    spec = {
        "namespaceSelector": {},
        "resourceGroups": _limits(rng, flavors, limited=bool(cohort)),
        "preemption": preemption,
        "flavorFungibility": fungibility,
    }
    if cohort:
        spec["cohort"] = cohort
    return {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ClusterQueue", "metadata": {"name": name}, "spec": spec}
