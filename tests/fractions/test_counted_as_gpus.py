"""1,000 ``kaiwo.ai/milli-gpu`` of quota are a GPU to whatever of ours reads quota: it decides as with whole ones."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lending.in_memory import World
from preemption_controller.builders import NOW_S, notes, pod, queue, workload

from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, KUEUE_WORKLOADS, LENDING_POOLS
from kopt.cluster.workloads.kueue.objects import ClusterQueue, Flavor, GpuPod
from kopt.cluster.workloads.kueue.queues import charged_of
from kopt.cluster.workloads.kueue.reading import read_gpu_pod, read_kueue_workload
from kopt.cluster.workloads.queue_trees.usage import kueue_usage
from kopt.cluster.workloads.requests.gpus import devices_in, gpus_in, milli_of
from kopt.controllers.lending.views import BorrowingQueue
from kopt.controllers.preemption.snapshot import QueueSnapshot, snapshot_for
from kopt.controllers.queues.borrowers import gpus_of
from kopt.controllers.queues.demand import queued_gpus
from kopt.controllers.reservations import status
from kopt.controllers.reservations.observed import Observed
from kopt.controllers.reservations.proposing import ProposalSettings, proposals
from kopt.controllers.reservations.snapshot import Reading, pools_of, read_reservations
from kopt.controllers.reservations.status import Standing
from kopt.controllers.reservations.views import read_node, read_reserved, read_workload
from kopt.core.decision import Mode
from kopt.core.scheduling.eviction import System
from kopt.core.scheduling.lending_pool import Borrower
from kopt.core.scheduling.queue_demand import QueueDemandHistory
from kopt.core.scheduling.queue_tree import KaiwoQueue, Share
from kopt.core.scheduling.quota import Quota, ResourceGroup
from kopt.core.times import stamp
from kopt.core.workload.gpu_share import CHARGE_RESOURCE
from kopt.policies.preemption import decide
from kopt.policies.queues import QueueTree
from kopt.policies.queues.quota_groups import advised_quotas

GPU = "nvidia.com/gpu"
Object = dict[str, Any]


def charged(document: Object) -> Object:
    """A Workload as it is where Kueue counts GPUs in thousandths, and as our webhook charges shares by claims."""
    result: Object = json.loads(json.dumps(document))
    (pods,) = result["spec"]["podSets"]
    (container,) = pods["template"]["spec"]["containers"]
    pods["template"]["spec"]["overhead"] = {CHARGE_RESOURCE: str(1000 * int(container["resources"]["limits"].pop(GPU)))}
    for usage in result["status"].get("admission", {}).get("podSetAssignments", ()):
        usage["flavors"][CHARGE_RESOURCE] = usage["flavors"].pop(GPU)
        usage["resourceUsage"][CHARGE_RESOURCE] = f"{usage['resourceUsage'].pop(GPU)}k"
    return result


def charging(whole: ClusterQueue) -> ClusterQueue:
    """The same queue with its quota in thousandths."""

    def named(resource: str) -> str:
        return CHARGE_RESOURCE if resource == GPU else resource

    quotas = {
        (flavor, named(resource)): Quota(quota.nominal * (1000 if resource == GPU else 1))
        for (flavor, resource), quota in whole.quotas.items()
    }
    groups = tuple(
        ResourceGroup(tuple(map(named, group.resources)), tuple(group.flavors)) for group in whole.rules.groups
    )
    return replace(whole, quotas=quotas, rules=replace(whole.rules, groups=groups))


@given(
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 900), st.integers(0, 10_000)), max_size=6), st.integers(1, 8)
)
def test_preemption_decides_the_same(running: list[tuple[int, int, int]], asks: int) -> None:
    documents = [
        workload(f"gang-{number}", gpus, 100, started_s=NOW_S - 1000 - age)
        for number, (gpus, _, age) in enumerate(running)
    ]
    urgent = workload("urgent", asks, 1000, held=True)
    pods = {
        f"uid-gang-{number}": [pod(f"gang-{number}", gpus, notes(lost=lost))]
        for number, (gpus, lost, _) in enumerate(running)
    }
    whole = queue(sum(gpus for gpus, *_ in running))
    results = []
    for as_it_is, make in ((whole, dict), (charging(whole), charged)):
        views = [read_kueue_workload(make(each)) for each in documents]
        waiting = read_kueue_workload(make(urgent))
        assert waiting.gpu_resource
        snapshot = snapshot_for(waiting, QueueSnapshot(NOW_S, as_it_is, views, pods), 0.0)
        results.append((snapshot.preemptor, snapshot.free, [gang.gpus for gang in snapshot.gangs], decide(snapshot)[0]))
    assert results[0] == results[1]


class Thousandths(World):
    """Kueue counts whole GPUs in thousandths, too."""

    def queue(self, name: str = "lent", quotas: Object | None = None, **spec: Any) -> None:
        super().queue(name, quotas, **spec)
        (group,) = self.get(KUEUE_CLUSTER_QUEUES, name)["spec"]["resourceGroups"]
        group["coveredResources"] = [CHARGE_RESOURCE]
        for flavor in group["flavors"]:
            quota = str(1000 * int(flavor["resources"][0]["nominalQuota"]))
            flavor["resources"] = [{"name": CHARGE_RESOURCE, "nominalQuota": quota}]

    def submit(self, name: str, gpus: int, queue: str = "lent") -> None:
        super().submit(name, gpus, queue)
        requested = {"name": "main", "resources": {CHARGE_RESOURCE: f"{gpus}k"}}
        self.get(KUEUE_WORKLOADS, name, "team")["status"] = {"resourceRequests": [requested]}

    def _admit(self, one: Object) -> None:
        queue = self.get(KUEUE_CLUSTER_QUEUES, one["spec"]["queueName"])
        quotas = [flavor["resources"][0] for flavor in queue["spec"]["resourceGroups"][0]["flavors"]]
        before = [quota["nominalQuota"] for quota in quotas]
        for quota in quotas:
            quota["nominalQuota"] = str(int(quota["nominalQuota"]) // 1000)
        super()._admit(one)
        for quota, amount in zip(quotas, before, strict=True):
            quota["nominalQuota"] = amount
        for usage in one["status"].get("admission", {}).get("podSetAssignments", ()):
            usage["flavors"][CHARGE_RESOURCE] = usage["flavors"][GPU]
            usage["resourceUsage"] = {CHARGE_RESOURCE: f"{usage['resourceUsage'][GPU]}k"}


def lent_and_returned(world: World, unit: int) -> list[tuple[float, set[str], set[str]]]:
    """Quota in GPUs, what runs and what is held after each step from when all is stopped until all of it runs again."""
    world.queue(quotas={"h100": "1"})
    world.demand = {"serving/chat": 2.0}
    world.pool(gpus=8)
    for name in ("one", "two", "three"):
        world.submit(name, 2)
    world.lives(4)
    assert (world.quota(), world.runs()) == (7 * unit, {"one", "two", "three"})
    assert world.status()["lentGpus"] == 6
    world.demand["serving/chat"] = 8.0
    world.lives(4)
    assert (world.quota(), world.runs()) == (unit, set())
    assert world.status()["lentGpus"] == 0
    steps = []
    for busy in (7.0, 7.0, 7.0, 7.0, 2.0, 2.0, 2.0):
        world.demand["serving/chat"] = busy
        world.lives(1)
        steps.append((world.quota() / unit, world.runs(), world.held()))
    assert steps[3] == (2, {"one"}, {"lent"})
    assert steps[-1] == (7, {"one", "two", "three"}, {"lent"})
    return steps


def test_lending_lends_takes_back_and_returns_the_same() -> None:
    """Kueue does not look at what was stopped: of that only its pods say what it wants."""
    assert lent_and_returned(World(), 1) == lent_and_returned(Thousandths(), 1000)


def test_what_kueue_has_not_looked_at_counts_by_its_pods() -> None:
    """Also where reservations and lending would else find that nothing waits."""
    document = workload("one", 2, runs=False)
    seen = read_kueue_workload(document)
    own = ClusterQueue("all", {("h100", CHARGE_RESOURCE): Quota(8_000_000)})
    both = ClusterQueue("all", {**own.quotas, ("a100", GPU): Quota(8000)})

    def charge(queue: ClusterQueue, resource: str = CHARGE_RESOURCE) -> int:
        return charged_of(seen.requests, resource, queue, is_counted=seen.is_counted)

    assert (charge(own), charge(both), charge(both, GPU)) == (2000, 0, 2000)
    document["status"]["resourceRequests"] = [{"name": "main", "resources": {GPU: "2"}}]
    seen = read_kueue_workload(document)
    assert charge(own) == 0, "Kueue charges it nothing of these"
    document["status"]["resourceRequests"] = [{"name": "main", "resources": {CHARGE_RESOURCE: "2k"}}]
    seen = read_kueue_workload(document)
    assert charge(own) == charge(both) == 2000


def test_a_part_of_a_gpu_that_a_queue_owns_stays_its_own_while_it_is_lent_to() -> None:
    world = Thousandths()
    world.queue(quotas={"h100": "1"})
    (flavor,) = world.get(KUEUE_CLUSTER_QUEUES, "lent")["spec"]["resourceGroups"][0]["flavors"]
    flavor["resources"][0]["nominalQuota"] = "1500"
    world.demand = {"serving/chat": 2.0}
    world.pool(gpus=8)
    for name in ("one", "two", "three"):
        world.submit(name, 2)
    world.lives(4)
    assert world.quota() == 7500
    world.delete(LENDING_POOLS, "chat")
    world.lives(2)
    assert world.quota() == 1500


def test_in_a_cohort_a_queue_lends_all_that_it_owns_while_it_is_lent_to() -> None:
    world = Thousandths()
    world.queue(quotas={"h100": "1"}, cohort="all")
    (flavor,) = world.get(KUEUE_CLUSTER_QUEUES, "lent")["spec"]["resourceGroups"][0]["flavors"]
    flavor["resources"][0] |= {"nominalQuota": "1500", "borrowingLimit": "0"}
    world.demand = {"serving/chat": 8.0}
    world.pool(gpus=8)
    for name in ("one", "two"):
        world.submit(name, 1)
    world.lives(2)
    assert (world.runs(), world.status()["borrowedGpus"]) == ({"one"}, 0)
    world.demand["serving/chat"] = 2.0
    world.lives(3)
    (flavor,) = world.get(KUEUE_CLUSTER_QUEUES, "lent")["spec"]["resourceGroups"][0]["flavors"]
    (quota,) = flavor["resources"]
    assert (quota["nominalQuota"], quota["lendingLimit"]) == ("7500", "1500")
    assert world.runs() == {"one", "two"}


def test_a_queue_may_use_the_part_of_a_gpu_that_it_owns() -> None:
    queue = BorrowingQueue(Borrower(System.KUEUE, "lent"), KUEUE_CLUSTER_QUEUES, None, own=1, own_part=500)
    for backed, unborrowed in ((None, 1500), (1200, 1200), (2000, 1500)):
        used = replace(queue, used=1500, backed=backed)
        assert (used.unborrowed, used.beyond) == (unborrowed, 1500 - unborrowed)
    assert replace(queue, used=1501).borrowed == 1


@pytest.mark.parametrize("flavor", ["", "shares"])
def test_quota_of_shares_is_not_lent_beside_that_of_whole_gpus(flavor: str) -> None:
    world = World()
    world.queue(quotas={"a100": "1", "h100": "1"})
    groups = world.get(KUEUE_CLUSTER_QUEUES, "lent")["spec"]["resourceGroups"]
    shares = {"name": CHARGE_RESOURCE, "nominalQuota": "1000"}
    groups.append({"coveredResources": [CHARGE_RESOURCE], "flavors": [{"name": "shares", "resources": [shares]}]})
    world.demand = {"serving/chat": 2.0}
    world.pool(gpus=8, borrowers=[{"system": "Kueue", "queue": "lent", **({"flavor": flavor} if flavor else {})}])
    world.submit("one", 2)
    world.lives(3)
    assert groups == world.get(KUEUE_CLUSTER_QUEUES, "lent")["spec"]["resourceGroups"]
    (ready,) = (each for each in world.status()["conditions"] if each["type"] == "Ready")
    assert ready["reason"] == "Flavour"


def test_quota_of_shares_is_not_lent_where_kueue_counts_whole_gpus_as_they_are() -> None:
    world = Thousandths()
    world.queue(quotas={"h100": "1"})
    world.demand = {"serving/chat": 2.0}
    world.pool(gpus=8)
    world.submit("one", 2)
    requests = world.get(KUEUE_WORKLOADS, "one", "team")["status"]["resourceRequests"]
    requests[0]["resources"] = {GPU: "2"}
    world.life(3)
    assert world.quota() == 1000
    (ready,) = (each for each in world.status()["conditions"] if each["type"] == "Ready")
    assert ready["reason"] == "Flavour"
    assert "Kueue counts nvidia.com/gpu of team/one as it is" in ready["message"]
    world.end("one")
    world.submit("one", 2)
    world.life(3)
    assert world.quota() == 7000


def reserving(quotas: dict[str, int], *, offers: str = GPU) -> Observed:
    spec = {
        "queueName": "nightly",
        "nodes": 1,
        "gpusPerNode": 8,
        "start": stamp(NOW_S + 60),
        "until": stamp(NOW_S + 600),
    }
    metadata = {"name": "night", "namespace": "team", "uid": "r-1", "resourceVersion": "1", "generation": 1}
    status = {"allocatable": {offers: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    node = read_node({"metadata": {"name": "n1", "labels": {}}, "spec": {}, "status": status})
    assert node is not None
    queue = ClusterQueue("all", {("h100", name): Quota(1000 * amount) for name, amount in quotas.items()}, active=True)
    return Observed(
        NOW_S,
        [read_reserved({"metadata": metadata, "spec": spec})],
        [],
        [],
        [node],
        [],
        {("team", "nightly"): "all"},
        {"all": queue},
        {"h100": Flavor("h100")},
        {},
        {},
        lambda _: Mode.ENFORCE,
        lambda _: Mode.ENFORCE,
    )


def test_reservations_hold_what_nodes_offer_and_count_what_the_queue_charges() -> None:
    (accepted,) = read_reservations(reserving({CHARGE_RESOURCE: 8000})).accepted
    assert (accepted.resource, accepted.charged) == (GPU, CHARGE_RESOURCE)
    reason, message = read_reservations(reserving({CHARGE_RESOURCE: 7999})).refused["team/night"]
    assert reason == "QuotaTooSmall"
    assert "may use 7 of h100" in message
    (beside,) = read_reservations(reserving({CHARGE_RESOURCE: 500, GPU: 8})).accepted
    assert beside.charged == GPU, "a quota of whole GPUs is meant, and not that of shares"
    reason, message = read_reservations(reserving({CHARGE_RESOURCE: 8000}, offers="cpu")).refused["team/night"]
    assert reason == "UnknownPool"
    assert "by claims alone" in message


@pytest.mark.parametrize("quotas", [{CHARGE_RESOURCE: 8000}, {CHARGE_RESOURCE: 500, GPU: 8}])
def test_no_reservation_is_proposed_where_demand_may_be_of_shares(quotas: dict[str, int]) -> None:
    hours = tuple(8000 if hour % 24 == 9 else 0 for hour in range(24 * 21))
    history = QueueDemandHistory(NOW_S - 3600 * len(hours), {("all", "h100"): hours}, {})
    (proposal,) = proposals(reserving(quotas), history, ProposalSettings(queues=("all",)))
    assert (proposal.reason.code, proposal.document) == ("RESERVATION_OF_SHARES", None)


def test_a_reservation_says_that_kueue_counts_whole_gpus_as_they_are() -> None:
    """It waited for ever else, as what holds its GPUs is never admitted."""
    document = workload("one", 2, runs=False)
    document["spec"]["queueName"] = "nightly"
    observed = reserving({CHARGE_RESOURCE: 8000})

    def reading(counted: str = "", owner: str = "one") -> Reading:
        document["status"] = {"resourceRequests": [{"name": "main", "resources": {counted: "2"}}]} if counted else {}
        document["metadata"]["ownerReferences"][0]["name"] = owner
        each = read_workload(document)
        return read_reservations(replace(observed, workloads=[each] if each else []))

    for counted in ("", CHARGE_RESOURCE):
        (accepted,) = reading(counted).accepted
        assert not accepted.problem
    reason, message = reading(GPU).refused["team/night"]
    assert reason == "UnknownPool"
    assert "resources.transformations" in message
    (accepted,) = reading(GPU, "night-r-1-0").accepted
    assert accepted.problem == message
    (condition,) = status.accepted(Standing(accepted), 600.0, NOW_S - 10_000).document["conditions"]
    assert (condition["status"], condition["message"]) == ("False", message)


def test_what_kueue_has_not_looked_at_is_reserved_for() -> None:
    document = workload("one", 2, runs=False)
    document["spec"]["queueName"] = "nightly"
    waits = read_workload(document)
    assert waits is not None
    observed = replace(reserving({CHARGE_RESOURCE: 8000}), workloads=[waits])
    (pool,) = pools_of(observed, read_reservations(observed).accepted, 600.0)
    assert [(each.owner, each.gpus) for each in pool.snapshot.pending] == [("team/nightly", 2000)]


def test_shares_of_a_pool_beside_whole_gpus_of_another_are_not_reserved() -> None:
    observed = reserving({CHARGE_RESOURCE: 8000})
    queue = observed.queues["all"]
    both = replace(queue, quotas={**queue.quotas, ("a100", GPU): Quota(8000)})
    (reserved,) = observed.reservations
    assert reserved.spec is not None
    named = replace(reserved, spec=replace(reserved.spec, pool="h100"))
    result = read_reservations(replace(observed, queues={"all": both}, reservations=[named]))
    assert "in other pools than h100, whose quota is of shares" in result.refused["team/night"][1]


def test_a_queues_demand_is_of_gpus() -> None:
    running, pending = charged(workload("one", 2)), charged(workload("two", 3, runs=False))
    views = [queued_gpus(read_kueue_workload(each)) for each in (running, pending)]
    assert [view and view.gpus for view in views] == [(("h100", 2000),), (("", 3000),)]
    assert gpus_of({("h100", CHARGE_RESOURCE): 250_000, ("h100", GPU): 1000, ("h100", "cpu"): 9000}) == 1250
    usage = kueue_usage([running, pending], {("team", "gpus"): "research"}, {"gpu", "cpu"})
    assert (usage["research"].use["gpu"], usage["research"].demand["gpu"]) == (2000, 5000)


def test_kueues_own_count_of_what_waits_goes_before_what_its_pods_request() -> None:
    """After its transformations, and once it has quota no more."""
    document = workload("one", 2, runs=False)
    document["status"]["resourceRequests"] = [{"name": "main", "resources": {CHARGE_RESOURCE: "2k", "cpu": "1"}}]
    assert read_kueue_workload(document).requests == {CHARGE_RESOURCE: 2_000_000, "cpu": 1000, "pods": 1000}
    document["status"]["admission"] = {"clusterQueue": "research"}
    assert read_kueue_workload(document).requests[GPU] == 2000


def test_what_kueue_counted_before_a_change_is_not_taken_for_what_is_asked_now() -> None:
    document = workload("one", 2, runs=False, generation=3)
    (pods,), status = document["spec"]["podSets"], document["status"]
    pods["count"] = 4
    status["resourceRequests"] = [{"name": "main", "resources": {CHARGE_RESOURCE: "8k", "cpu": "4"}}]
    status["conditions"] = [{"type": "QuotaReserved", "status": "False", "observedGeneration": 3}]
    assert read_kueue_workload(document).requests[CHARGE_RESOURCE] == 8_000_000
    document["metadata"]["generation"] = 4
    changed = read_kueue_workload(document)
    assert (changed.is_counted, changed.requests[GPU], CHARGE_RESOURCE in changed.requests) == (False, 8000, False)


def test_pods_that_have_ended_since_kueue_counted_are_left_out() -> None:
    document = workload("one", 2, runs=False)
    (pods,), status = document["spec"]["podSets"], document["status"]
    pods["count"] = 4
    status["resourceRequests"] = [{"name": "main", "resources": {CHARGE_RESOURCE: "8k", "cpu": "4"}}]
    status["reclaimablePods"] = [{"name": "main", "count": 3}]
    (left,) = read_kueue_workload(document).pod_sets
    assert left.requests == {"pods": 1000, CHARGE_RESOURCE: 2_000_000, "cpu": 1000}
    # Kueue has looked again since.
    status["resourceRequests"] = [{"name": "main", "resources": {CHARGE_RESOURCE: "2k", "cpu": "1"}}]
    (left,) = read_kueue_workload(document).pod_sets
    assert left.requests == {"pods": 1000, CHARGE_RESOURCE: 2_000_000, "cpu": 1000}


@given(
    st.dictionaries(st.sampled_from([GPU, "cpu", CHARGE_RESOURCE]), st.integers(0, 10**400) | st.text(max_size=3)),
    st.integers(-3, 5) | st.none(),
    st.integers(-3, 5) | st.none() | st.text(max_size=3),
)
def test_whatever_stands_in_kueues_count_is_read(resources: Object, pods: int | None, ended: Any) -> None:
    document = workload("one", 2, runs=False)
    document["spec"]["podSets"][0]["count"] = pods
    document["status"] = {
        "resourceRequests": [{"name": "main", "resources": resources}],
        "reclaimablePods": [{"name": "main", "count": ended}],
    }
    (left,) = read_kueue_workload(document).pod_sets
    assert all(amount >= 0 for amount in left.requests.values())


@given(st.integers(0, 10**9))
def test_a_thousand_are_one_and_no_thousandth_is_lost(thousandths: int) -> None:
    assert gpus_in(CHARGE_RESOURCE, thousandths) == devices_in(CHARGE_RESOURCE, thousandths) == thousandths // 1000
    assert gpus_in(GPU, thousandths) == devices_in(GPU, thousandths) == thousandths
    assert gpus_in("cpu", thousandths) == devices_in("cpu", thousandths) == 0
    assert milli_of(CHARGE_RESOURCE, thousandths) == thousandths


def test_quotas_beside_shares_are_not_advised() -> None:
    """As what was demanded of each is not known."""

    def tree(*more: str) -> QueueTree:
        shares = {"gpu": Share(quota=4000), **{name: Share(quota=4_000_000) for name in more}}
        leaves = [KaiwoQueue(name, "all", pools={"h100": shares}) for name in ("a", "b")]
        return QueueTree.of([KaiwoQueue("all"), *leaves], [])

    history = QueueDemandHistory(0, {}, {})
    assert len(advised_quotas(tree(), history, lambda name: name == "gpu")) == 2
    assert not advised_quotas(tree(CHARGE_RESOURCE), history, lambda name: name == "gpu")


def test_pods_with_shares_are_observed_as_what_their_workload_is_charged() -> None:
    """Their specs have no GPUs: else none would count as observed, and no moment as safe, or all of them as idle."""

    def shared(number: int, **annotations: str) -> GpuPod:
        claims = [{"name": "kaiwo-gpu-share", "resourceClaimTemplateName": "share-0"}]
        metadata = {"name": f"p-{number}", "namespace": "team", "uid": f"p-{number}", "annotations": annotations}
        spec = {"containers": [{"name": "main"}], "resourceClaims": claims}
        result = read_gpu_pod({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
        assert result is not None
        return result

    pods = [shared(number, **notes(), **{"kaiwo.ai/gpu-fraction": "0.25"}) for number in range(3)]
    (one,) = members_of(500, pods, NOW_S, 600.0)
    assert (one.gpus, one.status and one.status.safe) == (500, True)
    beside = pod("gang", 1, notes())
    assert sorted(each.gpus for each in members_of(1500, [beside, *pods], NOW_S, 600.0)) == [500, 1000]
