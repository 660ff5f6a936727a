"""Pools that users name in order, before the real kube-scheduler and the real Kueue."""

from collections.abc import Iterator
from typing import Any

import pytest
from admission.conftest import Webhooks, running
from admission.workloads import Object, job
from controlplane.api import Refused
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.processes import wait_for

GPU, LABEL = "nvidia.com/gpu", "kopt.test/pool"
KUEUE = {"apiVersion": "kueue.x-k8s.io/v1beta1"}
FIRST, SECOND = "pool-first", "pool-second"


@pytest.fixture(scope="module")
def webhooks(control_plane: Any, kueue: Kueue) -> Iterator[Webhooks]:
    yield from running(control_plane)


def naming(space: str, name: str, pools: str, gpus: int, **fields: Any) -> Object:
    wanted = job(name, gpus, resource=GPU, **fields)
    wanted["metadata"] |= {"namespace": space, "annotations": {"kaiwo.ai/node-pools": pools}}
    return wanted


def node_of(webhooks: Webhooks, space: str, name: str) -> str:
    def bound() -> str | None:
        pods = webhooks.api.list("v1", "Pod", space, f"batch.kubernetes.io/job-name={name}")
        return next((pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")), None)

    return wait_for(bound, what=f"{name} is bound")


def test_kube_scheduler_fills_the_first_pool_and_then_the_second(webhooks: Webhooks, kwok: Kwok) -> None:
    api = webhooks.api
    webhooks.policy(mode="enforce", queues={"default": "rest"}, rollout={"queues": 0})
    space = webhooks.namespace()
    for name in (FIRST, SECOND):
        spec = {"nodeLabels": {LABEL: name}}
        api.apply({"apiVersion": "kaiwo.ai/v1alpha2", "kind": "KaiwoPool", "metadata": {"name": name}, "spec": spec})
    # By itself the scheduler prefers the emptier nodes, and the one without a pool is larger than all of them.
    with (
        kwok.nodes(1, gpus=4, labels={LABEL: FIRST}, cpu="8", memory="16Gi") as first,
        kwok.nodes(2, gpus=8, labels={LABEL: SECOND}) as second,
        kwok.nodes(1, gpus=16, cpu="192"),
    ):
        pools = f"{FIRST},{SECOND}"
        wait_for(lambda: "affinity" in tried(webhooks, space, pools)["spec"]["template"]["spec"])
        for number in range(2):
            api.create(naming(space, f"fits-{number}", pools, 2))
            assert node_of(webhooks, space, f"fits-{number}") in first
        api.create(naming(space, "over", pools, 2))
        assert node_of(webhooks, space, "over") in second
        api.create(naming(space, "reversed", f"{SECOND},{FIRST}", 2))
        assert node_of(webhooks, space, "reversed") in second
        with pytest.raises(Refused, match=f"There is no node pool pool-frist .* did you mean {FIRST}"):
            api.create(naming(space, "wrong", f"pool-frist,{SECOND}", 2))


def tried(webhooks: Webhooks, space: str, pools: str) -> Object:
    """A dry run; the webhook learns of new pools by a watch."""
    try:
        return webhooks.api.create(naming(space, "tried", pools, 1), dryRun="All")
    except Refused:
        return job("none")


def test_kueue_gives_flavors_of_the_named_pools_alone_in_the_order_of_its_queue(
    webhooks: Webhooks, kueue: Kueue, kwok: Kwok
) -> None:
    api = webhooks.api
    webhooks.policy(mode="enforce", queues={"default": "gpus"})
    space = webhooks.namespace()
    names = [f"{space}-a", f"{space}-b"]
    flavors = [
        {**KUEUE, "kind": "ResourceFlavor", "metadata": {"name": n}, "spec": {"nodeLabels": {LABEL: n}}} for n in names
    ]
    amounts = [{"name": GPU, "nominalQuota": "4"}, {"name": "cpu", "nominalQuota": "100"}]
    groups = [{"coveredResources": [GPU, "cpu"], "flavors": [{"name": name, "resources": amounts} for name in names]}]
    queue = {"namespaceSelector": {}, "resourceGroups": groups}
    api.apply(
        *flavors,
        {**KUEUE, "kind": "ClusterQueue", "metadata": {"name": space}, "spec": queue},
        {
            **KUEUE,
            "kind": "LocalQueue",
            "metadata": {"name": "gpus", "namespace": space},
            "spec": {"clusterQueue": space},
        },
    )
    nodes = [kwok.nodes(1, gpus=4, labels={LABEL: name}) for name in names]
    try:
        wait_for(lambda: "affinity" in tried(webhooks, space, names[1])["spec"]["template"]["spec"])
        made = api.create(naming(space, "last", names[1], 2))
        wait_for(lambda: admitted(workload_of(webhooks.plane, made)))
        assert flavor_of(webhooks, made) == names[1], "although the first of the queue is free"
        assert node_of(webhooks, space, "last") in nodes[1]
        made = api.create(naming(space, "both", f"{names[1]},{names[0]}", 2))
        wait_for(lambda: admitted(workload_of(webhooks.plane, made)))
        assert flavor_of(webhooks, made) == names[0], "flavors are tried in the order of the ClusterQueue"
        made = api.create(naming(space, "more", names[1], 4))
        wait_for(lambda: conditions(webhooks, made), what="Kueue says why it waits")
        assert not admitted(workload_of(webhooks.plane, made)), "the first has no part in it"
    finally:
        for each in nodes:
            each.remove()
        for kind, name in (("LocalQueue", "gpus"), ("ClusterQueue", space), *(("ResourceFlavor", n) for n in names)):
            api.delete(KUEUE["apiVersion"], kind, name, space)


def flavor_of(webhooks: Webhooks, made: Object) -> str:
    (assigned,) = workload_of(webhooks.plane, made)["status"]["admission"]["podSetAssignments"]
    return str(assigned["flavors"][GPU])


def conditions(webhooks: Webhooks, made: Object) -> list[Object]:
    return [
        each
        for each in workload_of(webhooks.plane, made).get("status", {}).get("conditions", [])
        if each["type"] == "QuotaReserved" and each["status"] == "False"
    ]
