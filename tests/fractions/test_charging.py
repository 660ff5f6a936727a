"""What queues of Kueue charge for shares: what they are of a GPU, else a refusal or a warning."""

import copy
from dataclasses import replace
from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import every_kind, review
from attacks.api_in_memory import MemoryKube
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.admission.review import Answer, Review, parse_review
from kopt.cluster.client.api import Forbidden, Listing
from kopt.cluster.client.resources import (
    CONFORMANCE_POLICIES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    Resource,
)
from kopt.cluster.workloads.requests.external import CLAIM_TEMPLATES, ObjectRef
from kopt.cluster.workloads.shares.writing import charge_of_template, claim_template
from kopt.cluster.workloads.workload import Workload
from kopt.controllers.admission import validation
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.lookups import before_change
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.state import read_once
from kopt.controllers.overview.queue_standings import queue_standings
from kopt.core.scheduling.submission import Framework
from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.core.workload.gpu_share import CHARGE_RESOURCE, ShareError, ShareExecutor, ShareRequest, parse_share
from kopt.core.workload.share_offer import NodeOffers, ShareOffer
from kopt.formats.share_terms import ShareForm, share_form
from kopt.policies.fractions.charging import charge_of
from kopt.policies.fractions.choose import choose_share, problem_of

from .test_shares_add_up import offers, requests
from .test_writing import admit, asking

QUEUE = "kueue.x-k8s.io/queue-name"
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
CLAIMS = ShareOffer(ShareExecutor.DRA, 81_920, 0, "", "d", "d", "memory", "milliGPU", WHOLE_GPU, "d/uuid")
HAMI = ShareOffer(ShareExecutor.HAMI, 81_920)
HALF = ShareRequest(MilliGpu(500))


@given(offers(), requests())
def test_a_claim_is_charged_all_that_nobody_else_can_have(offer: ShareOffer, request: ShareRequest) -> None:
    if problem_of(request, offer) or not offer.is_dra:
        return
    charge = charge_of(request, share_form(request, offer), offer, {CHARGE_RESOURCE})
    asked = max(request.milli / WHOLE_GPU, request.mib / offer.gpu_mib) * WHOLE_GPU
    rounding = 10 if offer.compute_units == 100 else 1
    assert request.count * asked <= charge.milli + 1e-6
    assert charge.milli < request.count * (asked + rounding)


def test_memory_counts_where_it_is_the_larger_part() -> None:
    request = ShareRequest(MilliGpu(100), 40_960, count=2)
    assert charge_of(request, share_form(request, CLAIMS), CLAIMS, {CHARGE_RESOURCE}).milli == 1000


def replicas(resource: str) -> ShareOffer:
    return ShareOffer(ShareExecutor.MPS, 81_920, 2, resource)


@pytest.mark.parametrize(
    ("offer", "covered", "problem", "warning"),
    [
        (CLAIMS, None, "what that has quota for is not known", ""),
        (CLAIMS, {GPU, "cpu"}, f"without quota for {CHARGE_RESOURCE}", ""),
        (replicas(SHARED), {SHARED}, "", ""),
        (replicas(SHARED), {GPU}, "", f"no quota for {SHARED}"),
        (replicas(GPU), {GPU}, "", "Kueue charges 1 whole GPU for 0.5"),
        (replicas(GPU), {CHARGE_RESOURCE}, "", f"no quota for {GPU}: it waits"),
        (HAMI, {GPU}, "", "no quota for nvidia.com/gpumem-percentage, nvidia.com/gpucores: it waits"),
        (HAMI, {GPU}, "", "Kueue charges 1 whole GPU for 0.5"),
        (HAMI, {GPU, "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"}, "", "Kueue charges 1 whole GPU for 0.5"),
        (ShareOffer(ShareExecutor.VOLCANO, 81_920), {"volcano.sh/vgpu-number"}, "", "vgpu-memory-percentage"),
        (ShareOffer(ShareExecutor.KAI, 81_920), {GPU}, "does not read KAI's annotations", ""),
    ],
)
def test_what_a_queue_does_not_charge_so_is_said(
    offer: ShareOffer, covered: set[str] | None, problem: str, warning: str
) -> None:
    charge = charge_of(HALF, share_form(HALF, offer), offer, covered)
    assert problem in charge.problem
    assert bool(charge.problem) is bool(problem)
    assert warning in charge.warning
    assert bool(charge.warning) is bool(warning)
    assert not charge.milli


def kueue_workload(*templates: str, **more: Any) -> dict[str, Any]:
    """One set of pods for each claim template."""
    pod_sets = []
    for number, template in enumerate(templates):
        claims = [{"name": "kaiwo-gpu-share", "resourceClaimTemplateName": template}]
        spec = {"containers": [{"name": "main"}], "resourceClaims": claims, **more}
        pod_sets.append({"name": f"set-{number}", "count": 2, "template": {"spec": spec}})
    metadata = {"name": "job-one", "namespace": "team"}
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata} | {
        "spec": {"podSets": pod_sets, "queueName": "gpus"}
    }


def charged(milli: int, name: str = "share-0") -> dict[str, Any]:
    return claim_template(name, "team", "word", "jobs.v1.batch", ShareForm({}, claim={"requests": []}), milli)


async def charging(workload: dict[str, Any], *templates: dict[str, Any], operation: str = "CREATE") -> Answer:
    elsewhere = {ObjectRef(CLAIM_TEMPLATES, "team", each["metadata"]["name"]): each for each in templates}
    review = Review(
        "u", "kueue.x-k8s.io", "Workload", "team", "job-one", operation, False, "", (), copy.deepcopy(workload)
    )
    admissions = Admissions(FixedState(elsewhere=elsewhere))
    assert admissions.mutate_at_once(review) is None
    return (await admissions.mutate(review)).answer


async def overheads(workload: dict[str, Any], *templates: dict[str, Any], operation: str = "CREATE") -> list[Any]:
    admitted = patched(workload, (await charging(workload, *templates, operation=operation)).patch)
    return [pods["template"]["spec"].get("overhead") for pods in admitted["spec"]["podSets"]]


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
async def test_each_set_of_pods_is_charged_by_its_own_template(operation: str) -> None:
    templates = charged(250), charged(1000, "share-1"), charged(0, "share-2")
    result = await overheads(kueue_workload("share-0", "share-1", "share-2"), *templates, operation=operation)
    assert result == [{CHARGE_RESOURCE: "250"}, {CHARGE_RESOURCE: "1000"}, None]


async def test_a_workload_is_not_made_while_what_it_is_charged_cannot_be_read() -> None:
    """Kueue makes it again; one that is there can still be changed, as when it is deleted."""
    workload = kueue_workload("share-0", "share-1")
    refusal = (await charging(workload, charged(250))).refusal
    assert "ResourceClaimTemplate team/share-1" in refusal
    assert "Try again" in refusal
    assert await overheads(workload, charged(250), operation="UPDATE") == [{CHARGE_RESOURCE: "250"}, None]


async def test_other_overhead_stays() -> None:
    beside = {"cpu": "250m"}
    result = await overheads(kueue_workload("share-0", overhead=beside), charged(250))
    assert result == [beside | {CHARGE_RESOURCE: "250"}]


@pytest.mark.parametrize("written", ["", "-5", "1e9", "٣", "99999999", "0.5", "none"])
async def test_a_charge_that_cannot_be_read_is_none(written: str) -> None:
    template = charged(250)
    template["metadata"]["annotations"]["kaiwo.ai/gpu-charge"] = written
    assert charge_of_template(template) == 0
    assert await overheads(kueue_workload("share-0"), template) == [None]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["podSets", "template", "spec", "resourceClaims", "name"]), inner)
        ),
    )
)
async def test_no_shape_of_a_workload_makes_the_webhook_fail(spec: Any) -> None:
    review = Review("u", "kueue.x-k8s.io", "Workload", "team", "one", "CREATE", False, "", (), {"spec": spec})
    assert not (await Admissions(FixedState()).mutate(review)).answer.refusal


def test_queues_stand_in_gpus_on_the_pages_and_are_charged_in_thousandths() -> None:
    """With quota for both as well."""
    running = kueue_workload("share-0", overhead={CHARGE_RESOURCE: "500"})
    usage = {"name": "set-0", "count": 2, "resourceUsage": {CHARGE_RESOURCE: "1k"}, "flavors": {CHARGE_RESOURCE: "f"}}
    reserved = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-12-01T00:00:00Z"}
    running["status"] = {"admission": {"clusterQueue": "all", "podSetAssignments": [usage]}, "conditions": [reserved]}
    pending = kueue_workload("share-0", overhead={CHARGE_RESOURCE: "250"})
    for quotas, gpus in (({CHARGE_RESOURCE: "4k"}, 4), ({CHARGE_RESOURCE: "4k", GPU: "8"}, 12)):
        rows = [{"name": name, "nominalQuota": quota, "borrowingLimit": "0"} for name, quota in quotas.items()]
        group = {"coveredResources": [*quotas], "flavors": [{"name": "f", "resources": rows}]}
        (queue,) = queue_standings(
            {
                KUEUE_CLUSTER_QUEUES: [{"metadata": {"name": "all"}, "spec": {"resourceGroups": [group]}}],
                KUEUE_FLAVORS: [{"metadata": {"name": "f"}, "spec": {}}],
                KUEUE_LOCAL_QUEUES: [
                    {"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"clusterQueue": "all"}}
                ],
                KUEUE_WORKLOADS: [running, pending],
            }
        ).queues
        assert (queue.quota, queue.limit) == (1000 * gpus, 1000 * gpus)
        assert (queue.use, queue.pending_gpus, queue.pending) == (1000, 500, 1)


def test_where_claims_are_handed_out_counts_and_not_by_which_attribute_they_could_be_told_apart() -> None:
    alike = [replace(CLAIMS, distinct=f"d/{name}") for name in ("uuid", "uuid", "uuid", "index", "index", "index")]
    others = [replace(CLAIMS, driver="h")] * 4
    nodes = [NodeOffers(str(at), (offer,)) for at, offer in enumerate([*alike, *others])]
    choice = choose_share(HALF, nodes)
    assert (choice.offer is not None and choice.offer.driver, choice.nodes) == ("d", 6)
    two = choose_share(replace(HALF, count=2), nodes)
    assert (two.offer is not None and two.offer.driver, two.nodes) == ("h", 4)


def test_what_an_offer_lacks_is_named_before_what_the_queue_does() -> None:
    choice = choose_share(replace(HALF, count=64), [NodeOffers("n", (replace(CLAIMS, gpus=8),))], lambda _: "its queue")
    assert "fewer than 64" in choice.text


@pytest.mark.parametrize("count", ["٣", "1٣", "0", "33", "2 "])
def test_other_digits_are_no_number_of_gpus(count: str) -> None:
    with pytest.raises(ShareError, match="from 1 to 32"):
        parse_share({"kaiwo.ai/gpu-fraction": "0.5", "kaiwo.ai/gpu-count": count})


async def test_who_may_not_list_cluster_queues_still_gets_an_answer() -> None:
    class Forbidding(MemoryKube):
        async def list(self, resource: Resource, *args: Any, **more: Any) -> Listing:
            if resource is KUEUE_CLUSTER_QUEUES:
                raise Forbidden(403, "Forbidden", "cannot list resource clusterqueues")
            return await super().list(resource, *args, **more)

    kube: Any = Forbidding()
    policy = {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "ConformancePolicy", "metadata": {"name": "default"}}
    kube.put(CONFORMANCE_POLICIES, policy | {"spec": {"queues": {"framework": "Kueue"}}})
    kube.put(
        KUEUE_LOCAL_QUEUES,
        {"metadata": {"name": "gpus", "namespace": "team"}, "spec": {"clusterQueue": "all"}},
    )
    state = await read_once(kube)
    assert state.covered("team", "gpus") is None
    assert state.policy.queues.framework is Framework.KUEUE


@pytest.mark.parametrize("framework", ["KAI", "Volcano"])
async def test_where_queues_of_kueue_are_not_read_that_is_why_its_claims_are_refused(framework: str) -> None:
    workload = asking(fraction="0.25")
    workload["metadata"]["labels"] = {QUEUE: "gpus", "kai.scheduler/queue": "team"}
    refusal = (await admit(workload, ShareExecutor.DRA, framework=framework)).answer.refusal
    assert f"the ConformancePolicy's framework is {framework}: take the name of Kueue's queue, gpus, off" in refusal
    assert "spec.queues.framework" not in refusal, "there is no such field"
    missing = (await admit(workload, ShareExecutor.DRA, framework="Kueue")).answer.refusal
    assert "there is no LocalQueue team/gpus whose ClusterQueue exists" in missing


async def test_who_puts_shares_into_a_queue_without_quota_for_them_is_told_that_they_wait() -> None:
    before = next(each for each in every_kind("one", 0) if each["kind"] == "Deployment")
    before["spec"]["template"]["metadata"].setdefault("annotations", {})["kaiwo.ai/gpu-fraction"] = "0.25"
    before = patched(before, (await admit(before, ShareExecutor.DRA)).answer.patch)
    late = copy.deepcopy(before)
    late["metadata"].setdefault("labels", {})[QUEUE] = "gpus"

    async def warnings(covered: set[str], workload: dict[str, Any] = late, executor: str = "dra") -> tuple[str, ...]:
        made = copy.deepcopy(workload)
        made["spec"]["template"]["metadata"]["annotations"]["kaiwo.ai/gpu-executor"] = executor
        spec = {"mode": "enforce", "framework": "Kueue", "queues": {"default": "gpus"}}
        policy = parse_policy({"metadata": {"name": "default"}, "spec": spec})
        state = FixedState(policy, covered_resources={("team", "gpus"): covered})
        body = review(made, operation="UPDATE", oldObject=before)
        answer = (await Admissions(state).validate(parse_review(orjson.dumps(body)))).answer
        return tuple(each for each in answer.warnings if CHARGE_RESOURCE in each)

    (warning,) = await warnings({GPU, "cpu"})
    assert "It waits in queue gpus" in warning
    assert "1000 for each GPU" in warning
    assert not await warnings({CHARGE_RESOURCE})
    assert not await warnings({GPU}, before), "it is in no queue"
    assert not await warnings({GPU}, executor="hami"), "Kueue charges these what their pods request"


@pytest.mark.parametrize(
    ("operation", "framework", "mode", "reads"),
    [
        ("UPDATE", "Kueue", "enforce", 1),
        ("CREATE", "Kueue", "enforce", 0),
        ("UPDATE", "KAI", "enforce", 0),
        ("UPDATE", "Kueue", "observe", 0),
    ],
)
async def test_what_was_before_is_read_only_where_it_matters(
    monkeypatch: pytest.MonkeyPatch, operation: str, framework: str, mode: str, reads: int
) -> None:
    """Every object that is let through comes by here."""
    read = list[Review]()

    def counted(seen: Review) -> Workload | None:
        read.append(seen)
        return before_change(seen)

    monkeypatch.setattr(validation, "before_change", counted)
    workload = next(each for each in every_kind("one", 1) if each["kind"] == "Deployment")
    workload["metadata"].setdefault("labels", {}).update({QUEUE: "gpus", "kai.scheduler/queue": "gpus"})
    spec = {"mode": mode, "framework": framework, "queues": {"default": "gpus"}}
    state = FixedState(parse_policy({"metadata": {"name": "default"}, "spec": spec}))
    body = review(workload, operation=operation, oldObject=workload if operation == "UPDATE" else None)
    answer = (await Admissions(state).validate(parse_review(orjson.dumps(body)))).answer
    assert not answer.refusal
    assert len(read) == reads
