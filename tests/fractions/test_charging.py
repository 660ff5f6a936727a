"""What queues of Kueue charge for shares: what they are of a GPU, else a refusal or a warning."""

import copy
from typing import Any

import pytest
from admission.patching import patched
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.admission.review import Review
from kopt.cluster.workloads.queue_trees.usage import kueue_usage
from kopt.cluster.workloads.requests.external import CLAIM_TEMPLATES, ObjectRef
from kopt.cluster.workloads.shares.writing import charge_of_template, claim_template
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.core.workload.gpu_share import CHARGE_RESOURCE, ShareExecutor, ShareRequest
from kopt.core.workload.share_offer import ShareOffer
from kopt.formats.share_terms import ShareForm, share_form
from kopt.policies.fractions.charging import charge_of
from kopt.policies.fractions.choose import problem_of

from .test_shares_add_up import offers, requests

GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
CLAIMS = ShareOffer(ShareExecutor.DRA, 81_920, 0, "", "d", "d", "memory", "milliGPU", WHOLE_GPU, "d/uuid")
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
        (ShareOffer(ShareExecutor.HAMI, 81_920), {GPU}, "", "Kueue charges 1 whole GPU for 0.5"),
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


async def overheads(workload: dict[str, Any], *templates: dict[str, Any]) -> list[Any]:
    elsewhere = {ObjectRef(CLAIM_TEMPLATES, "team", each["metadata"]["name"]): each for each in templates}
    review = Review(
        "u", "kueue.x-k8s.io", "Workload", "team", "job-one", "CREATE", False, "", (), copy.deepcopy(workload)
    )
    admissions = Admissions(FixedState(elsewhere=elsewhere))
    assert admissions.mutate_at_once(review) is None
    admission = await admissions.mutate(review)
    admitted = patched(workload, admission.answer.patch)
    return [pods["template"]["spec"].get("overhead") for pods in admitted["spec"]["podSets"]]


async def test_each_set_of_pods_is_charged_by_its_own_template() -> None:
    templates = charged(250), charged(1000, "share-1")
    assert await overheads(kueue_workload("share-0", "share-1", "share-2"), *templates) == [
        {CHARGE_RESOURCE: "250"},
        {CHARGE_RESOURCE: "1000"},
        None,
    ]


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


def test_pages_show_what_is_charged_as_gpus() -> None:
    running = kueue_workload("share-0", overhead={CHARGE_RESOURCE: "500"})
    usage = {"name": "set-0", "count": 2, "resourceUsage": {CHARGE_RESOURCE: "1k"}, "flavors": {CHARGE_RESOURCE: "f"}}
    reserved = {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-12-01T00:00:00Z"}
    running["status"] = {"admission": {"clusterQueue": "all", "podSetAssignments": [usage]}, "conditions": [reserved]}
    pending = kueue_workload("share-0", overhead={CHARGE_RESOURCE: "250"})
    (queue,) = kueue_usage([running, pending], {("team", "gpus"): "all"}, ["gpu"]).values()
    assert (queue.use["gpu"], queue.demand["gpu"], queue.pending) == (1000, 1500, 1)
