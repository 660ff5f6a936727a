"""GPUs that stand in other objects: which devices are GPUs, how many, and what is read to know it."""

from typing import Any

import pytest
from admission.workloads import deployment, job, pod, pod_spec
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.workloads.requests.external import (
    CLAIM_TEMPLATES,
    CLAIMS,
    CLUSTER_RUNTIMES,
    DEVICE_CLASSES,
    ObjectRef,
    complete,
    completed,
    is_gpu_class,
    stands_elsewhere,
)
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.cluster.workloads.workload import Workload, read_workload

Object = dict[str, Any]
SPACE = "research"
BY_TEMPLATE = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}]}


def requests(*wanted: Object) -> Object:
    return {"devices": {"requests": [{"name": f"r{number}"} | one for number, one in enumerate(wanted)]}}


def exactly(device_class: str, count: int | None = None, **fields: Any) -> Object:
    return {"exactly": {"deviceClassName": device_class} | ({"count": count} if count else {}) | fields}


def template(*wanted: Object) -> dict[ObjectRef, Object]:
    return {ObjectRef(CLAIM_TEMPLATES, SPACE, "gpus"): {"spec": {"spec": requests(*wanted)}}}


def device_class(name: str, expression: str) -> Object:
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def workload(document: Object) -> Workload:
    group, _, _ = document["apiVersion"].rpartition("/")
    found = read_workload(document, group, document["kind"], SPACE, document["metadata"]["name"])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("wanted", "gpus"),
    [
        ([exactly("gpu.nvidia.com")], 1),
        ([exactly("gpu.amd.com", 4)], 4),
        ([exactly("mig.nvidia.com", 2)], 2),
        ([exactly("gpu.nvidia.com", 2), exactly("dra.net", 8)], 2),
        ([exactly("dra.net", 8)], 0),
        ([], 0),
        ([exactly("gpu.nvidia.com", allocationMode="All")], 1),
        ([exactly("gpu.nvidia.com", adminAccess=True)], 0),
        (
            [
                {
                    "firstAvailable": [
                        {"deviceClassName": "gpu.nvidia.com", "count": 2},
                        {"deviceClassName": "dra.net", "count": 9},
                    ]
                }
            ],
            2,
        ),
    ],
)
def test_devices_of_gpu_classes_are_counted(wanted: list[Object], gpus: int) -> None:
    found, missing = complete(workload(job("train", 0, pods=3, **BY_TEMPLATE)), template(*wanted).get)
    assert found.gpus == 3 * gpus * 1000
    assert {place.resource for place in missing} <= {DEVICE_CLASSES}


def test_claimed_devices_come_on_top_of_those_asked_for_and_stay_writable() -> None:
    found, _ = complete(workload(deployment("web", 1)), template(exactly("gpu.nvidia.com")).get)
    assert found.gpus == 1000
    both = deployment("web", 1)
    both["spec"]["template"]["spec"] |= BY_TEMPLATE
    found, _ = complete(workload(both), template(exactly("gpu.nvidia.com")).get)
    assert found.gpus == 2000
    assert found.pod_sets[0].metadata is not None


@pytest.mark.parametrize(
    ("expression", "gpus"),
    [
        ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'", True),
        ('device.driver in ["other.driver", "gpu.amd.com"]', True),
        ("device.driver == 'dra.net'", False),
        ("device.driver != 'gpu.nvidia.com'", False),
        ("", False),
        ("device.attributes['gpu.nvidia.com'].x == 'y'", False),
    ],
)
def test_a_class_is_one_of_gpus_by_the_driver_that_it_selects(expression: str, gpus: bool) -> None:
    assert is_gpu_class(device_class("big", expression)) is gpus


async def test_what_is_not_in_memory_is_read_link_by_link() -> None:
    claims = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "shared"}]}
    inner = {
        "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
        "spec": job("x", 0, **claims)["spec"],
    }
    cluster = {
        ObjectRef(CLUSTER_RUNTIMES, "", "torch"): {
            "spec": {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": inner}]}}}
        },
        ObjectRef(CLAIMS, SPACE, "shared"): {"spec": requests(exactly("big", 2))},
        ObjectRef(DEVICE_CLASSES, "", "big"): device_class("big", "device.driver == 'gpu.amd.com'"),
    }
    asked: list[ObjectRef] = []

    async def read(place: ObjectRef) -> Object | None:
        asked.append(place)
        return cluster.get(place)

    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "tune"},
        "spec": {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 4}},
    }
    found = await completed(workload(train_job), lambda _: None, read)
    assert (found.gpus, found.pods) == (8000, 4)
    assert asked == list(cluster)
    asked.clear()
    told = train_job | {"spec": {"runtimeRef": {"name": "torch"}, "trainer": {"resourcesPerNode": {"limits": {}}}}}
    assert not (await completed(workload(told), lambda _: None, read)).uses_gpus
    assert not (await completed(workload(pod("lone", 0)), lambda _: None, read)).uses_gpus
    assert asked == []


def test_a_device_asked_for_without_a_claim_counts_by_its_class() -> None:
    assert gpus_of(pod_spec(2, "deviceclass.resource.kubernetes.io/gpu.nvidia.com"), {}) == 2000
    assert gpus_of(pod_spec(2, "deviceclass.resource.kubernetes.io/dra.net"), {}) == 0


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "devices",
                    "requests",
                    "exactly",
                    "firstAvailable",
                    "deviceClassName",
                    "count",
                    "spec",
                    "name",
                    "resourceClaimName",
                    "resourceClaimTemplateName",
                    "template",
                    "replicatedJobs",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(claims=anything, found=anything)
def test_nothing_that_stands_anywhere_raises(claims: Any, found: Any) -> None:
    one = pod("lone", 0)
    one["spec"]["resourceClaims"] = claims
    odd = found if isinstance(found, dict) else {"spec": found}
    for document in (one, one | {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "spec": odd}):
        assert complete(workload(document), lambda _: odd)[0].gpus >= 0
        assert stands_elsewhere(workload(document)) in (True, False)
