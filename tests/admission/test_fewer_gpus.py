"""Whole GPUs that no process uses are not asked for: each template by its own container, of every kind (K3)."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import Object, deployment, job, pod, pytorch_job, ray_cluster_spec, review

from kopt.cluster.admission.review import parse_review
from kopt.cluster.objects.json_patch import JsonPatch
from kopt.cluster.workloads.memory_need import Need
from kopt.cluster.workloads.pod_sizing import takes_patches
from kopt.cluster.workloads.workload import Workload, read_workload
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import parse_policy
from kopt.controllers.admission.sizes.advice import apply_sizing
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.units import MilliGpu

GIB = 1 << 30
BOUNDS = ("peak_bytes", "low_bytes", "high_bytes", "probability")
RESOURCE = "amd.com/gpu"
ASSUMED = {"code": "PROCESSES_ASSUMED", "message": "Nothing says how many."}


class Endpoint:
    """Answers as ``/v1/sizing``: a process for each ``--nproc-per-node``, assumed to be one where that is not given."""

    def __init__(self, confidence: float = 0.95, high_gib: int = 8) -> None:
        self.confidence, self.high_gib = confidence, high_gib
        self.asked: list[Mapping[str, Any]] = []

    async def ask(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append(copy.deepcopy(body))
        container = max(body["workload"]["spec"]["containers"], key=lambda item: (_gpus(item), item["name"] == "main"))
        env = {item["name"]: item["value"] for item in container.get("env", ())}
        words = [word.replace("$(N)", env.get("N", "")) for word in container["command"]]
        if words[0] != "torchrun":
            return {"memory": {"peak_bytes": None, "low_bytes": None, "high_bytes": None}}
        given = int(words[2]) if words[1] == "--nproc-per-node" else None
        return {
            "gpu": "MI300X",
            "memory": dict(zip(BOUNDS, (6 * GIB, 5 * GIB, self.high_gib * GIB, 0.95), strict=True)),
            "recommendation": {"kind": "whole", "count": given or 1},
            "confidence": self.confidence,
            "reasons": [] if given else [ASSUMED],
        }


def _gpus(container: Object) -> int:
    return int(next(iter(container.get("resources", {}).get("limits", {}).values()), 0))


def runs(template: Object, *command: str) -> Object:
    """The template, its GPU container behind a sidecar, with requests beside the limits."""
    (container,) = template["spec"]["containers"]
    container["command"] = list(command)
    container["resources"]["requests"] = {**container["resources"]["limits"], "memory": "1Gi"}
    template["spec"]["containers"] = [{"name": "log", "image": "log", "command": ["tail"]}, container]
    return template


def launches(template: Object, processes: int) -> Object:
    return runs(template, "torchrun", "--nproc-per-node", str(processes), "train.py")


def asked(template: Object) -> tuple[str, str]:
    """GPUs in limits and requests."""
    log, container = template["spec"]["containers"]
    assert log == {"name": "log", "image": "log", "command": ["tail"]}
    resources = container["resources"]
    assert resources["requests"]["memory"] == "1Gi"
    return resources["limits"][RESOURCE], resources["requests"][RESOURCE]


async def admit(workload: Object, endpoint: Endpoint, mode: str = "enforce", **more: Any) -> Object:
    spec = {"mode": mode, "queues": {"default": "main"}, "tracing": {"samplesPerThousand": 0}}
    policy = parse_policy({"metadata": {"name": "default"}, "spec": spec})
    sizes = SizingCache(endpoint.ask)
    admissions = Admissions(FixedState(policy), sizes, **more)
    admission = await admissions.mutate(parse_review(orjson.dumps(review(workload))))
    await sizes.close()
    return patched(workload, admission.answer.patch)


def templates_of(workload: Object) -> list[Object]:
    """Every template with GPUs, in the order in which they are written."""
    spec = workload["spec"]
    match workload["kind"]:
        case "Pod":
            return [workload]
        case "PyTorchJob":
            return [role["template"] for role in spec["pytorchReplicaSpecs"].values()]
        case "JobSet":
            return [item["template"]["spec"]["template"] for item in spec["replicatedJobs"]]
        case "RayJob":
            return [group["template"] for group in spec["rayClusterSpec"]["workerGroupSpecs"]]
    return [spec["template"]]


def job_set(gpus: int) -> Object:
    jobs = [{"name": name, "replicas": 2, "template": {"spec": job("x", gpus)["spec"]}} for name in ("a", "b")]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set"},
        "spec": {"replicatedJobs": jobs},
    }


def ray_job(gpus: int) -> Object:
    spec = {"entrypoint": "python train.py", "rayClusterSpec": ray_cluster_spec(gpus)}
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": "ray"}, "spec": spec}


WORKLOADS = {
    "Pod": pod("one", 8),
    "Job": job("one", 8),
    "Job-of-several-pods": job("many", 8, pods=4),
    "Deployment": deployment("chat", 8, pods=3),
    "StatefulSet": deployment("chat", 8, kind="StatefulSet"),
    "PyTorchJob": pytorch_job("train", 8),
    "JobSet": job_set(8),
    "RayJob": ray_job(8),
}
every_kind = pytest.mark.parametrize("kind", WORKLOADS)


@every_kind
async def test_each_template_asks_for_a_gpu_for_each_of_its_own_processes(kind: str) -> None:
    workload = copy.deepcopy(WORKLOADS[kind])
    counts = [3, 5][: len(templates_of(workload))]
    for template, processes in zip(templates_of(workload), counts, strict=True):
        launches(template, processes)
    after = await admit(workload, Endpoint())
    assert [asked(template) for template in templates_of(after)] == [(str(count), str(count)) for count in counts]
    for template in templates_of(after):
        assert template["metadata"]["annotations"]["kaiwo.ai/requested-gpus"] == "8"
    assert (
        "Its 3 processes have a GPU each; it asks for 8 GPUs."
        in after["metadata"]["annotations"]["kaiwo.ai/recommended-reason"]
    )
    assert await admit(after, Endpoint()) == after, "reviews come twice"


@every_kind
@pytest.mark.parametrize("mode", ["observe", "annotate"])
async def test_only_enforce_changes_what_is_asked_for(kind: str, mode: str) -> None:
    workload = copy.deepcopy(WORKLOADS[kind])
    for template in templates_of(workload):
        launches(template, 2)
    after = await admit(workload, Endpoint(), mode)
    assert {asked(template) for template in templates_of(after)} == {("8", "8")}
    reason = after["metadata"].get("annotations", {}).get("kaiwo.ai/recommended-reason", "")
    assert ("Its 2 processes have a GPU each" in reason) == (mode == "annotate")


@every_kind
@pytest.mark.parametrize(
    ("command", "endpoint"),
    [
        (("torchrun", "train.py"), Endpoint()),
        (("python", "train.py"), Endpoint()),
        (("torchrun", "--nproc-per-node", "2", "train.py"), Endpoint(confidence=0.5)),
        (("torchrun", "--nproc-per-node", "2", "train.py"), Endpoint(high_gib=250)),
        (("torchrun", "--nproc-per-node", "2", "train.py"), Endpoint(high_gib=5000)),
        (("torchrun", "--nproc-per-node", "16", "train.py"), Endpoint()),
    ],
    ids=["assumed", "unknown", "unsure", "on-a-larger-gpu", "on-none", "more-than-asked"],
)
async def test_without_evidence_the_gpus_stay(kind: str, command: tuple[str, ...], endpoint: Endpoint) -> None:
    workload = copy.deepcopy(WORKLOADS[kind])
    for template in templates_of(workload):
        runs(template, *command)
    after = await admit(workload, endpoint)
    assert {asked(template) for template in templates_of(after)} == {("8", "8")}
    assert "requested-gpus" not in str(after)


async def test_only_the_roles_whose_processes_are_known_change() -> None:
    workload = pytorch_job("train", 8)
    master, worker = templates_of(workload)
    runs(master, "python", "coordinate.py")
    launches(worker, 4)
    after = await admit(workload, Endpoint())
    assert [asked(template) for template in templates_of(after)] == [("8", "8"), ("4", "4")]


@pytest.mark.parametrize("resource", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"])
async def test_parts_of_gpus_stay_as_they_are(resource: str) -> None:
    workload = launches(pod("one", 4, resource=resource), 1)
    (after,) = templates_of(await admit(workload, Endpoint()))
    assert after["spec"]["containers"][1]["resources"] == workload["spec"]["containers"][1]["resources"]


async def test_answers_are_of_the_container_with_the_gpus_its_variables_and_its_gpu() -> None:
    endpoint, policy = Endpoint(), parse_policy({"metadata": {"name": "x"}, "spec": {"mode": "enforce"}})
    admissions = Admissions(FixedState(policy), SizingCache(endpoint.ask))
    pods = [launches(pod(f"p{count}", 8), count) for count in (1, 2)]
    for count in (3, 4):
        one = runs(pod(f"p{count}", 8), "torchrun", "--nproc-per-node", "$(N)", "train.py")
        one["spec"]["containers"][1]["env"] = [{"name": "N", "value": str(count)}]
        pods.append(one)
    elsewhere = copy.deepcopy(pods[0])
    elsewhere["spec"]["nodeSelector"] = {"amd.com/gpu.product-name": "AMD_Instinct_MI250X"}
    results = []
    for one in [*pods, elsewhere]:
        admission = await admissions.mutate(parse_review(orjson.dumps(review(one))))
        results.append(asked(patched(one, admission.answer.patch))[0])
    assert results == ["1", "2", "3", "4", "1"]
    assert len(endpoint.asked) == 5, "the sidecar is the same in all of them"


class Holder:
    """A controller that holds what is created, and keeps what it asks for."""

    kept: Any = None

    def need(self, workload: Workload) -> Need | None:
        return None

    def hold(self, patch: JsonPatch, workload: Workload, mode: Mode, *, managed: bool) -> Reason | None:
        self.kept = copy.deepcopy(workload.document["spec"]["template"])
        return Reason("HELD", "It waits.")


async def test_what_is_held_keeps_the_request_that_it_was_given() -> None:
    workload, holder = job("one", 8), Holder()
    launches(workload["spec"]["template"], 2)
    await admit(workload, Endpoint(), dry_runs=holder)
    assert asked(holder.kept) == ("2", "2")


async def test_what_a_user_writes_into_our_annotation_gives_no_more_gpus() -> None:
    workload = launches(pod("one", 4), 6)
    workload["metadata"]["annotations"] = {"kaiwo.ai/requested-gpus": "100"}
    assert asked(await admit(workload, Endpoint())) == ("4", "4")


@pytest.mark.parametrize("annotations", [{}, {"gpu-memory": "1000", "gpu-fraction-num-devices": "8"}])
async def test_gpus_that_no_container_asks_for_are_not_asked_for_beside_them(annotations: Object) -> None:
    """Claims of devices, and other executors' annotations."""
    document = launches(pod("one", 8), 2)
    document["metadata"]["annotations"] = annotations
    document["spec"]["containers"][1]["resources"] = {"claims": [{"name": "gpus"}]}
    read = read_workload(document, "", "Pod", "team", "one")
    assert read is not None
    workload = replace(read, pod_sets=tuple(replace(pods, gpus=MilliGpu(8000)) for pods in read.pod_sets))
    policy, sizes = parse_policy({"metadata": {"name": "x"}, "spec": {"mode": "enforce"}}), SizingCache(Endpoint().ask)
    patch = JsonPatch(copy.deepcopy(document))
    await apply_sizing(patch, workload, Mode.ENFORCE, policy, sizes, dry_run=False)
    assert patch.document["spec"] == document["spec"]
    assert takes_patches(workload, workload.pod_sets[0]) == bool(annotations)
