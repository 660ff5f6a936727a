"""GPUs, pods and queues read from manifests, and where each framework wants its marks."""

from typing import Any

import orjson
import pytest
from admission.patching import patched
from admission.workloads import Object, deployment, every_kind, job, pod, pod_spec, pytorch_job, review, template

from kopt.cluster.admission.review import parse_review
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.cluster.workloads.requests.pods import ask_of
from kopt.cluster.workloads.served import is_evaluated
from kopt.cluster.workloads.workload import NamespaceDefaults, read_workload, shape_of, submission_of
from kopt.controllers.admission.evaluation import FixedState
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.policy import PolicyError, parse_policy
from kopt.core.scheduling.submission import Framework

VOLCANO = "scheduling.volcano.sh/queue-name"
KAI = "kai.scheduler/queue"


def limits(resource: str, amount: Any) -> Object:
    return {"resources": {"limits": {resource: amount}}}


@pytest.mark.parametrize(
    ("resource", "amount", "milli"),
    [
        ("nvidia.com/gpu", "2", 2000),
        ("amd.com/gpu", 8, 8000),
        ("nvidia.com/mig-1g.10gb", "7", 7 * 143),
        ("nvidia.com/mig-7g.80gb", "1", 1000),
        ("amd.com/cpx_nps4", "64", 8000),
        ("amd.com/spx_nps1", "1", 1000),
        ("cpu", "4", 0),
        ("nvidia.com/gpumem", "1000", 0),
        ("nvidia.com/gpu", "2.5", 0),
        ("nvidia.com/gpu", -1, 0),
        ("nvidia.com/gpu", None, 0),
        ("nvidia.com/gpu", True, 0),
    ],
)
def test_an_amount_of_a_resource_is_so_many_gpus(resource: str, amount: Any, milli: int) -> None:
    assert gpus_of({"containers": [limits(resource, amount)]}, {}) == milli


def test_init_containers_count_as_the_scheduler_counts_them() -> None:
    one, four = limits("amd.com/gpu", "1"), limits("amd.com/gpu", "4")
    assert gpus_of({"containers": [one, one], "initContainers": [one]}, {}) == 2000
    assert gpus_of({"containers": [one], "initContainers": [four]}, {}) == 4000
    assert gpus_of({"containers": [one], "initContainers": [four | {"restartPolicy": "Always"}]}, {}) == 5000


@pytest.mark.parametrize(
    ("annotations", "milli"),
    [
        ({"gpu-fraction": "0.5"}, 500),
        ({"kaiwo.ai/gpu-fraction": "0.25"}, 250),
        ({"gpu-memory": "2000"}, 1000),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "3"}, 1500),
        ({"kaiwo.ai/gpu-fraction": "0.25", "kaiwo.ai/gpu-count": "2", "gpu-fraction-num-devices": "2"}, 500),
        # Neither of the two lowers what the other asks for.
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "4", "kaiwo.ai/gpu-count": "1"}, 2000),
        ({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "4", "kaiwo.ai/gpu-fraction": "0.1"}, 2000),
        ({"gpu-memory": "2000", "gpu-fraction-num-devices": "4", "kaiwo.ai/gpu-count": "1"}, 4000),
        ({"kaiwo.ai/gpu-fraction": "0.5", "kaiwo.ai/gpu-count": "9999999"}, 16_000),
        ({"gpu-fraction": "half"}, 0),
        ({"kaiwo.ai/gpu-memory": "many"}, 0),
        ({"gpu-fraction": 0.5}, 0),
    ],
)
def test_shares_are_asked_for_by_annotation(annotations: Object, milli: int) -> None:
    assert gpus_of(pod_spec(0), annotations) == milli
    gpus = ask_of({"spec": pod_spec(0), "metadata": {"annotations": annotations}}).request.gpus
    assert gpus.total == milli


def test_a_pod_of_kueues_counts_as_what_it_is_charged() -> None:
    """Its Workload has no annotations where Kueue made it of a single pod."""
    assert gpus_of(pod_spec(0) | {"overhead": {"kaiwo.ai/milli-gpu": "250", "cpu": "1"}}, {}) == 250


def test_the_pods_of_each_kind_are_counted() -> None:
    expected = {
        "Pod": (1, 2000),
        "Deployment": (1, 2000),
        "StatefulSet": (1, 2000),
        "Job": (1, 2000),
        "CronJob": (1, 2000),
        "JobSet": (2, 4000),
        "LeaderWorkerSet": (2, 4000),
        "MPIJob": (4, 8000),
        "PyTorchJob": (4, 8000),
        "TrainJob": (2, 4000),
        "RayJob": (3, 4000),
        "RayCluster": (3, 4000),
        "RayService": (3, 4000),
        "InferenceService": (1, 2000),
        "KaiwoJob": (1, 4000),
        "KaiwoService": (1, 2000),
    }
    found = {}
    for one in every_kind("w", gpus=2):
        group, _, _ = one["apiVersion"].rpartition("/")
        workload = read_workload(one, group, one["kind"], "team", "w")
        assert workload is not None
        found[one["kind"]] = (workload.pods, int(workload.gpus))
    assert found == expected


def test_the_priority_class_is_found_wherever_a_kind_keeps_it() -> None:
    plain = job("a", priorityClassName="high")
    kueues = job("b")
    kueues["metadata"]["labels"] = {"kueue.x-k8s.io/priority-class": "high"}
    torch = pytorch_job("c")
    torch["spec"]["runPolicy"] = {"schedulingPolicy": {"priorityClass": "high"}}
    for one in (plain, kueues, torch):
        group = one["apiVersion"].rpartition("/")[0]
        workload = read_workload(one, group, one["kind"], "team", "w")
        assert workload is not None
        assert submission_of(workload, Framework.KUEUE, NamespaceDefaults(), ()).priority_class == "high"


def test_a_stated_class_is_believed() -> None:
    one = deployment("trainer", pods=4)
    one["metadata"]["labels"] = {"kaiwo.ai/class": "training"}
    workload = read_workload(one, "apps", "Deployment", "team", "w")
    assert workload is not None
    assert shape_of(workload).role == "unattended"


async def admitted(workload: Object, framework: str, **schedulers: Any) -> Object:
    spec = {"mode": "enforce", "framework": framework, "queues": {"default": "main"}, "schedulers": schedulers}
    policy = parse_policy({"metadata": {"name": "default"}, "spec": spec})
    view = FixedState(policy, schedulers={"volcano", "kai-scheduler"})
    done = await Admissions(view).mutate(parse_review(orjson.dumps(review(workload))))
    return patched(workload, done.answer.patch)


def volcano_job() -> Object:
    tasks = [{"name": "w", "replicas": 4, "template": template(1)}]
    spec = {"tasks": tasks}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "v"}, "spec": spec}


async def test_volcano_reads_annotations_fields_and_labels() -> None:
    made = await admitted(job("j", pods=4), "Volcano")
    assert made["metadata"]["annotations"][VOLCANO] == "main"
    assert made["spec"]["template"]["metadata"]["annotations"][VOLCANO] == "main"
    torch = await admitted(pytorch_job("t"), "Volcano")
    assert torch["spec"]["runPolicy"]["schedulingPolicy"]["queue"] == "main"
    ray = next(one for one in every_kind("r") if one["kind"] == "RayCluster")
    assert (await admitted(ray, "Volcano"))["metadata"]["labels"]["volcano.sh/queue-name"] == "main"
    assert (await admitted(volcano_job(), "Volcano"))["spec"]["queue"] == "main"


async def test_what_another_cluster_decides_about_stays_as_it_is() -> None:
    copied = job("j", pods=4)
    assert await admitted(copied, "Kueue") != copied
    copied["metadata"]["labels"] = {"kueue.x-k8s.io/multikueue-origin": "hub"}
    assert await admitted(copied, "Kueue") == copied


async def test_volcano_is_told_the_size_of_a_gang() -> None:
    gang = {"scheduler": "volcano", "framework": "Volcano"}
    made = await admitted(job("j", pods=4), "Volcano", gang=gang)
    assert made["spec"]["template"]["spec"]["schedulerName"] == "volcano"
    assert made["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] == "4"


async def test_kai_reads_labels_of_owner_and_pods() -> None:
    made = await admitted(job("j", pods=4), "KAI", gang={"scheduler": "kai-scheduler"})
    assert made["metadata"]["labels"][KAI] == made["spec"]["template"]["metadata"]["labels"][KAI] == "main"
    assert made["metadata"]["annotations"]["kai.scheduler/batch-min-member"] == "4"


async def test_a_node_selector_that_excludes_the_schedulers_nodes_keeps_the_pod_where_it_is() -> None:
    gang = {"scheduler": "kai-scheduler", "nodeSelector": {"pool": "kai"}}
    made = await admitted(job("j", pods=4), "KAI", gang=gang)
    assert made["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "kai"}
    other = await admitted(job("j", pods=4, nodeSelector={"pool": "mine"}), "KAI", gang=gang)
    assert "schedulerName" not in other["spec"]["template"]["spec"]


def test_a_policy_that_cannot_be_used_says_where() -> None:
    packing = {"scheduler": "p", "maxGpus": "a few"}
    with pytest.raises(PolicyError, match=r"spec\.schedulers\.packing\.maxGpus"):
        parse_policy({"metadata": {"name": "default"}, "spec": {"schedulers": {"packing": packing}}})
    with pytest.raises(PolicyError, match="'force'"):
        parse_policy({"metadata": {"name": "default"}, "spec": {"mode": "force"}})


def test_a_daemon_of_a_node_is_not_judged() -> None:
    one = pod("driver")
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "controller": True}
    one["metadata"]["ownerReferences"] = [owner]
    workload = read_workload(one, "", "Pod", "team", "driver")
    assert workload is not None
    assert not is_evaluated(workload)
