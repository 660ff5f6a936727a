"""What the webhook writes for each executor, by the documented contract of each, and what it refuses."""

import copy
from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import Object, every_kind, pod, review

from kopt.cluster.admission.review import parse_review
from kopt.cluster.objects.device_slices import DevicePool, shared_gpus
from kopt.cluster.workloads.shares.offers import HAMI_DRIVER, SharedGpus, sharing_of
from kopt.cluster.workloads.shares.writing import charge_of_template
from kopt.controllers.admission.answers import Admission
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.core.workload.gpu_share import ShareExecutor

GPU = "nvidia.com/gpu"
MEMORY = {"nvidia.com/gpu.memory": "81920", "nvidia.com/gpu.count": "2"}
KAI_ON = {"spec": {"admission": {"gpuSharing": True}}}
HAMI = {"hami.io/node-nvidia-register": '[{"id":"GPU-1","devmem":81920}]'}


def node(labels: Mapping[str, str] = MEMORY, annotations: Mapping[str, str] | None = None, **amounts: str) -> Object:
    metadata = {"name": "gpu-1", "labels": dict(labels), "annotations": dict(annotations or {})}
    return {
        "metadata": metadata,
        "status": {"allocatable": {name.replace("__", "/"): n for name, n in amounts.items()}},
    }


def replicas(strategy: str, number: int = 4, renamed: bool = True) -> Object:
    labels = {"nvidia.com/gpu.replicas": str(number), "nvidia.com/gpu.sharing-strategy": strategy}
    made = node(MEMORY | labels)
    made["status"]["allocatable"] = {GPU + (".shared" if renamed else ""): str(number)}
    return made


def devices(driver: str, document: Object, index: bool = True) -> SharedGpus:
    slices = DevicePool(driver, "gpu-1", shared_gpus(2, "H100", 80)).slices()
    for device in slices[0]["spec"]["devices"] if not index else ():
        del device["attributes"]["index"]
    device_class = {"metadata": {"name": driver}, "spec": {"selectors": [_selector(driver)]}}
    return sharing_of([document], slices, [device_class], [])


def _selector(driver: str) -> Object:
    return {"cel": {"expression": f"device.driver == '{driver}' && device.attributes['{driver}'].type == 'gpu'"}}


WHOLE = node(**{"nvidia.com__gpu": "8"})
VIEWS = {
    ShareExecutor.DRA: devices("gpu.nvidia.com", node({})),
    ShareExecutor.DRA_HAMI: devices(HAMI_DRIVER, node({})),
    ShareExecutor.KAI: sharing_of([WHOLE], [], [], [KAI_ON]),
    ShareExecutor.HAMI: sharing_of([node(annotations=HAMI, **{"nvidia.com__gpu": "10"})], [], [], []),
    ShareExecutor.VOLCANO: sharing_of([node(**{"volcano.sh__vgpu-memory": "163840"})], [], [], []),
    ShareExecutor.MPS: sharing_of([replicas("mps")], [], [], []),
    ShareExecutor.TIME_SLICING: sharing_of([replicas("time-slicing", renamed=False)], [], [], []),
}
FRAMEWORKS = {ShareExecutor.KAI: "KAI"}


class Claims:
    """Keeps what would be created, as an API server that is reached or not."""

    def __init__(self, reached: bool = True) -> None:
        self.reached, self.created = reached, list[Object]()

    async def create(self, templates: Any) -> bool:
        self.created += templates
        return self.reached

    def written(self, workload: Any, word: str, message: str) -> None:
        pass


async def admit(
    workload: Object,
    executor: ShareExecutor,
    mode: str = "enforce",
    framework: str = "",
    claims: Claims | None = None,
    view: SharedGpus | None = None,
    covered: Mapping[tuple[str, str], Any] | None = None,
    **fields: Any,
) -> Admission:
    framework = framework or FRAMEWORKS.get(executor, "Volcano")
    spec = {"mode": mode, "framework": framework, "queues": {"default": "team"}, "tracing": {"samplesPerThousand": 0}}
    policy = parse_policy({"metadata": {"name": "default"}, "spec": spec})
    state = FixedState(policy, share_offers=view or VIEWS[executor], covered_resources=covered or {})
    admissions = Admissions(state, share_claims=claims or Claims())
    wanted = parse_review(orjson.dumps(review(workload, **fields)))
    at_once = admissions.mutate_at_once(copy.deepcopy(wanted))
    return at_once if at_once is not None else await admissions.mutate(wanted)


def asking(limits: Mapping[str, str] | None = None, **annotations: str) -> Object:
    made = pod("one")
    made["metadata"]["annotations"] = {f"kaiwo.ai/gpu-{name.replace('_', '-')}": n for name, n in annotations.items()}
    made["spec"]["containers"][0]["resources"] = {"limits": dict(limits or {})}
    return made


FORMS: dict[ShareExecutor, tuple[Mapping[str, str], Mapping[str, str]]] = {
    ShareExecutor.KAI: ({}, {"gpu-fraction": "0.25"}),
    ShareExecutor.HAMI: ({GPU: "1", "nvidia.com/gpumem": "20480", "nvidia.com/gpucores": "25"}, {}),
    ShareExecutor.VOLCANO: (
        {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "20480", "volcano.sh/vgpu-cores": "25"},
        {},
    ),
    ShareExecutor.MPS: ({"nvidia.com/gpu.shared": "1"}, {}),
    ShareExecutor.TIME_SLICING: ({GPU: "1"}, {}),
    ShareExecutor.DRA: ({}, {}),
    ShareExecutor.DRA_HAMI: ({}, {}),
}


@pytest.mark.parametrize("executor", ShareExecutor)
@pytest.mark.parametrize("limits", [{}, {GPU: "1"}], ids=["by annotation alone", "beside a whole GPU"])
async def test_each_executor_is_asked_in_its_terms(executor: ShareExecutor, limits: Mapping[str, str]) -> None:
    claims = Claims()
    workload = asking(limits, fraction="0.25", memory="20480")
    admission = await admit(workload, executor, claims=claims)
    assert not admission.answer.refusal
    admitted = patched(workload, admission.answer.patch)
    container, notes = admitted["spec"]["containers"][0], admitted["metadata"]["annotations"]
    wanted, annotations = FORMS[executor]
    assert container["resources"]["limits"] == wanted
    assert annotations.items() <= notes.items()
    assert (notes["kaiwo.ai/gpu-executor"], notes["kaiwo.ai/gpu-enforced"]) == (str(executor), "fraction,memory")
    is_dra = executor in (ShareExecutor.DRA, ShareExecutor.DRA_HAMI)
    assert bool(claims.created) is is_dra
    if is_dra:
        (template,) = claims.created
        assert charge_of_template(template) == 250, "it may come to wait in a queue later"
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["capacity"] == {"requests": {"memory": "20480Mi", "milliGPU": "250"}}
        (entry,) = admitted["spec"]["resourceClaims"]
        assert entry["resourceClaimTemplateName"] == template["metadata"]["name"]
        assert container["resources"]["claims"] == [{"name": entry["name"]}]
    again = await admit(copy.deepcopy(admitted), executor)
    assert patched(admitted, again.answer.patch) == admitted, "a second review changes nothing"


REPLICAS = (ShareExecutor.MPS, ShareExecutor.TIME_SLICING)
TWO: dict[ShareExecutor, tuple[Mapping[str, str], Mapping[str, str]]] = {
    ShareExecutor.KAI: ({}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
    ShareExecutor.HAMI: ({GPU: "2", "nvidia.com/gpumem": "20480", "nvidia.com/gpucores": "50"}, {}),
    ShareExecutor.VOLCANO: (
        {"volcano.sh/vgpu-number": "2", "volcano.sh/vgpu-memory": "20480", "volcano.sh/vgpu-cores": "50"},
        {},
    ),
    ShareExecutor.DRA: ({}, {}),
    ShareExecutor.DRA_HAMI: ({}, {}),
}


@pytest.mark.parametrize("executor", TWO)
@pytest.mark.parametrize("limits", [{}, {GPU: "2"}], ids=["by annotation alone", "beside whole GPUs"])
async def test_shares_of_several_gpus_are_asked_of_different_ones(
    executor: ShareExecutor, limits: Mapping[str, str]
) -> None:
    claims = Claims()
    workload = asking(limits, fraction="0.5", memory="20480", count="2")
    admission = await admit(workload, executor, claims=claims)
    assert not admission.answer.refusal
    admitted = patched(workload, admission.answer.patch)
    wanted, annotations = TWO[executor]
    assert admitted["spec"]["containers"][0]["resources"]["limits"] == wanted
    assert annotations.items() <= admitted["metadata"]["annotations"].items()
    for template in claims.created:
        assert charge_of_template(template) == 1000
        devices = template["spec"]["spec"]["devices"]
        driver = HAMI_DRIVER if executor is ShareExecutor.DRA_HAMI else "gpu.nvidia.com"
        assert devices["requests"][0]["exactly"]["count"] == 2
        assert devices["constraints"] == [{"requests": ["share"], "distinctAttribute": f"{driver}/index"}]


@pytest.mark.parametrize("executor", REPLICAS)
async def test_replicas_are_no_shares_of_several_gpus(executor: ShareExecutor) -> None:
    refusal = (await admit(asking(fraction="0.2", count="2"), executor)).answer.refusal
    assert "it gives no shares of several GPUs" in refusal
    assert "what could: dra-hami, dra, hami, volcano, kai" in refusal


async def test_no_node_has_fewer_gpus_than_are_asked_for() -> None:
    for executor in (ShareExecutor.DRA, ShareExecutor.KAI, ShareExecutor.HAMI):
        refusal = (await admit(asking(fraction="0.2", count="9"), executor)).answer.refusal
        assert "fewer than 9" in refusal, executor
    unnamed = devices("gpu.nvidia.com", node({}), index=False)
    refusal = (await admit(asking(fraction="0.2", count="2"), ShareExecutor.DRA, view=unnamed)).answer.refusal
    assert "no attribute (uuid, index) that tells them apart" in refusal
    assert not (await admit(asking(fraction="0.2"), ShareExecutor.DRA, view=unnamed)).answer.refusal


async def test_a_limit_goes_to_the_environment_of_mps() -> None:
    workload = asking(fraction="0.1", fraction_limit="0.2", memory="5000", memory_limit="15000")
    admitted = patched(workload, (await admit(workload, ShareExecutor.MPS)).answer.patch)
    assert admitted["spec"]["containers"][0]["env"] == [
        {"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "20"},
        {"name": "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "value": "0=15000M"},
    ]
    selector = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps"}
    assert admitted["spec"]["nodeSelector"] == selector
    workload["spec"]["containers"][0]["env"] = [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "90"}]
    refused = await admit(workload, ShareExecutor.MPS)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE says otherwise" in refused.answer.refusal


YES, WRITTEN, NO = "", "is written but not enforced", "cannot be expressed"
FIXED, OTHER = "no room to grow", "is not what it does"
ROOM = {"fraction": "0.1", "memory": "5000"}
VERDICTS: dict[ShareExecutor, tuple[str, ...]] = {
    # fraction, memory, both; limits: fraction, memory, memory with room to grow; isolation: time-slicing, mps, none
    ShareExecutor.DRA: (YES, YES, YES, NO, NO, NO, YES, OTHER, YES),
    ShareExecutor.DRA_HAMI: (YES, YES, YES, WRITTEN, YES, FIXED, YES, OTHER, YES),
    ShareExecutor.KAI: (YES, YES, YES, NO, NO, NO, YES, OTHER, YES),
    ShareExecutor.HAMI: (YES, YES, YES, WRITTEN, YES, FIXED, YES, OTHER, YES),
    ShareExecutor.VOLCANO: (YES, YES, YES, WRITTEN, YES, FIXED, YES, OTHER, YES),
    ShareExecutor.MPS: (YES, YES, YES, YES, YES, YES, OTHER, YES, YES),
    ShareExecutor.TIME_SLICING: (YES, YES, YES, NO, NO, NO, YES, OTHER, YES),
}
ASKED: tuple[dict[str, str], ...] = (
    {"fraction": "0.1"},
    {"memory": "5000"},
    ROOM,
    ROOM | {"fraction_limit": "0.1"},
    ROOM | {"memory_limit": "5000"},
    ROOM | {"memory_limit": "9000"},
    ROOM | {"isolation": "time-slicing"},
    ROOM | {"isolation": "mps"},
    ROOM | {"isolation": "none"},
)


@pytest.mark.parametrize(
    ("executor", "asked", "verdict"),
    [
        (executor, asked, verdict)
        for executor, verdicts in VERDICTS.items()
        for asked, verdict in zip(ASKED, verdicts, strict=True)
    ],
)
async def test_what_is_not_enforced_is_refused(executor: ShareExecutor, asked: Object, verdict: str) -> None:
    admission = await admit(asking(**asked), executor)
    assert verdict in admission.answer.refusal
    assert bool(admission.answer.refusal) is bool(verdict)


@pytest.mark.parametrize("executor", ShareExecutor)
@pytest.mark.parametrize("isolation", ["mig", "partition"])
async def test_parts_of_hardware_are_asked_for_by_their_names(executor: ShareExecutor, isolation: str) -> None:
    admission = await admit(asking(fraction="0.25", isolation=isolation), executor)
    assert "is a device of its own" in admission.answer.refusal


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"fraction": "0.05"}, "from 0.1 to 1"),
        ({"fraction": "1.5"}, "from 0.1 to 1"),
        ({"fraction": "half"}, "is not a number of GPUs"),
        ({"fraction": "0.12345"}, "finer than a thousandth"),
        ({"memory": "20Gi"}, "write 20480"),
        ({"memory": "0"}, "whole number of MiB"),
        ({"fraction_limit": "0.5"}, "which is not there"),
        ({"memory": "5000", "memory_limit": "4000"}, "is less than"),
        ({"fraction": "0.5", "isolation": "strong"}, "is one of time-slicing"),
        ({"count": "2"}, "neither is there"),
        ({"fraction": "0.5", "count": "0"}, "from 1 to 32"),
        ({"fraction": "0.5", "count": "33"}, "from 1 to 32"),
        ({"fraction": "0.5", "count": "two"}, "and not 'two'"),
    ],
)
async def test_requests_that_cannot_be_read_are_refused(annotations: dict[str, str], words: str) -> None:
    workload = asking({GPU: "1"}, **annotations)
    assert words in (await admit(workload, ShareExecutor.DRA)).answer.refusal
    assert not (await admit(workload, ShareExecutor.DRA, mode="observe")).answer.refusal


async def test_annotate_says_it_and_observe_changes_nothing() -> None:
    workload = asking(fraction="0.25")
    admitted = patched(workload, (await admit(workload, ShareExecutor.HAMI, mode="annotate")).answer.patch)
    assert admitted["metadata"]["annotations"]["kaiwo.ai/recommended-gpu-executor"] == "hami"
    assert admitted["spec"] == workload["spec"]
    observed = await admit(workload, ShareExecutor.HAMI, mode="observe")
    assert patched(workload, observed.answer.patch)["spec"] == workload["spec"]
    assert "fractions" in {record.row for record in observed.records}


async def test_what_stands_in_the_way_is_named() -> None:
    two = await admit(asking({GPU: "2"}, fraction="0.5"), ShareExecutor.DRA)
    assert "it asks for 2 nvidia.com/gpu beside shares of 1 GPU (kaiwo.ai/gpu-count)" in two.answer.refusal
    queued = asking(fraction="0.5")
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    refusal = (await admit(queued, ShareExecutor.DRA, framework="Kueue")).answer.refusal
    assert "there is no LocalQueue team/team whose ClusterQueue exists" in refusal
    other = asking(fraction="0.5")
    other["spec"]["schedulerName"] = "mine"
    assert "its scheduler is volcano" in (await admit(other, ShareExecutor.VOLCANO)).answer.refusal
    nothing = await admit(asking(fraction="0.5"), ShareExecutor.DRA, view=sharing_of([WHOLE], [], [], []))
    assert "none of the nodes that it may use hands out shares" in nothing.answer.refusal
    named = asking(fraction="0.5")
    named["spec"]["schedulerName"] = "mine"
    left = await admit(named, ShareExecutor.DRA, view=sharing_of([WHOLE], [], [], []))
    assert not left.answer.refusal
    assert "GPU_SHARE_LEFT" in {record.code for record in left.records}
    both = sharing_of([replicas("mps")], [], [], [KAI_ON])
    assert "several executors" in (await admit(asking(fraction="0.1"), ShareExecutor.MPS, view=both)).answer.refusal


async def test_a_claim_that_cannot_be_created_refuses_the_workload() -> None:
    admission = await admit(asking(fraction="0.25"), ShareExecutor.DRA, claims=Claims(reached=False))
    assert "could not be created in time" in admission.answer.refusal


async def test_a_share_is_not_changed_in_place() -> None:
    workload = next(one for one in every_kind("one", 0) if one["kind"] == "Deployment")
    annotations = workload["spec"]["template"]["metadata"].setdefault("annotations", {})
    annotations["kaiwo.ai/gpu-fraction"] = "0.25"
    admitted = patched(workload, (await admit(workload, ShareExecutor.DRA)).answer.patch)
    scaled = copy.deepcopy(admitted)
    scaled["spec"]["replicas"] = 5
    fields = {"operation": "UPDATE", "oldObject": admitted}
    assert not (await admit(scaled, ShareExecutor.DRA, **fields)).answer.refusal
    scaled["spec"]["template"]["metadata"]["annotations"]["kaiwo.ai/gpu-fraction"] = "0.5"
    assert "create it anew" in (await admit(scaled, ShareExecutor.DRA, **fields)).answer.refusal


def _templates(found: Any) -> list[Object]:
    """Every mapping that has the metadata and the containers of pods in an object."""
    result = []
    if isinstance(found, dict):
        spec = found.get("spec")
        if isinstance(spec, dict) and "containers" in spec:
            result.append(found)
        result += [each for value in found.values() for each in _templates(value)]
    if isinstance(found, list):
        result += [each for value in found for each in _templates(value)]
    return result


@pytest.mark.parametrize("workload", every_kind("one", 0), ids=lambda one: str(one["kind"]))
@pytest.mark.parametrize("executor", [ShareExecutor.DRA, ShareExecutor.KAI, ShareExecutor.HAMI])
async def test_every_kind_with_a_pod_template_is_written(workload: Object, executor: ShareExecutor) -> None:
    workload, claims = copy.deepcopy(workload), Claims()
    templates = _templates(workload)
    for template in templates:
        template.setdefault("metadata", {}).setdefault("annotations", {})["kaiwo.ai/gpu-fraction"] = "0.25"
    if workload["kind"] == "InferenceService":
        workload["spec"]["predictor"]["annotations"] = {"kaiwo.ai/gpu-fraction": "0.25"}
    admission = await admit(workload, executor, claims=claims)
    assert not admission.answer.refusal
    admitted = patched(workload, admission.answer.patch)
    written = [found["metadata"]["annotations"].get("kaiwo.ai/gpu-executor") for found in _templates(admitted)]
    assert set(written) <= {str(executor)}
    if workload["kind"] == "InferenceService":
        predictor = admitted["spec"]["predictor"]
        assert predictor["annotations"]["kaiwo.ai/gpu-executor"] == str(executor)
        assert bool(predictor["model"]["resources"].get("claims")) is (executor is ShareExecutor.DRA)
    if executor is ShareExecutor.DRA:
        assert len(claims.created) == len(templates) + (workload["kind"] == "InferenceService")
        assert admitted["metadata"].get("labels", {}).get("kaiwo.ai/gpu-share", "") == (
            claims.created[0]["metadata"]["labels"]["kaiwo.ai/gpu-share"] if claims.created else ""
        )
